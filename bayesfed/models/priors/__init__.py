"""Priors on the weights of a network, and the Pyro models and guides made of them.

Lowest first: `precisions` and `belief` (the guide of D-Turbo-VBI); `prior` (support,
precision and weight in one declaration) and `weights` (priors p(w) for any Pyro guide); `declared`
applies the former to a network, `bayesian` the latter.
"""
