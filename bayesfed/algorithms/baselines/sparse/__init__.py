"""Sparse and low-rank training by penalties: `proximal_descent` has the steps and the server,
`penalties` the recipes.
"""
