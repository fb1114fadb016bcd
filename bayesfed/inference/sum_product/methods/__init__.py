"""Message-passing methods. All take a flat model and flat evidence and return an `Outcome`;
`dispatch` chooses between them.

Shared: `outcome` (settings and results), `settle` (the loop over sweeps), `pairwise` (binary
pairs), `structure` (models as lists), `jit` (compiled kernels). The methods: `exact` (narrow
grids), `junction` (any graph whose clique tree fits), `grids` (checkerboard), `strips`,
`edges` (any binary pairwise graph, forests), `tables` (any graph) and `regions` (generalised belief
propagation on any graph).
"""
