"""Approximate message passing: sparse vectors from few random projections.

`thresholds` has the soft threshold; `iteration` the algorithm.
"""
