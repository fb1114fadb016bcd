"""Message-passing methods. All take a flat model and flat evidence and return an `Outcome`; `dispatch` chooses between them.

Shared: `outcome` (settings and results), `settle` (the loop over sweeps), `pairwise` (binary pairs), `jit` (compiled kernels). The methods: `exact`
(narrow grids), `grids` (checkerboard and chains), `strips`, `edges` (any binary pairwise graph, forests) and `tables` (any graph).
"""
