"""Federated stochastic variational inference, for any Pyro model and guide.

In this order: `recipe` (the arguments, and how the parts fit together); `local` (a client's round)
and `steps` (what it does with gradients); `server` (the fusion rule on the sum). `conjugate` is the
case in closed form. The rules are in `bayesfed.inference.variational.fusion`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
