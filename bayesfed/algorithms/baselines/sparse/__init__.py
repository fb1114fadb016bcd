"""Sparse and low-rank training by penalties: `proximal_descent` has the steps and the server, the
other files a recipe each.
"""
