"""Approximate message passing: sparse vectors from few random projections.

`state_evolution` has the denoisers, their risk, and the recursion that predicts how the algorithm
fares; `iteration` the algorithm itself, and `Projection`, which shortens long vectors block by
block.
"""
