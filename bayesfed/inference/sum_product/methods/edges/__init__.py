"""Binary pairwise graphs as edge lists.

`wiring` arranges the edges, worked out once per model; `propagation` is belief propagation, and
exact sums on forests; `propagation_jit` has the same as numba kernels.
"""
