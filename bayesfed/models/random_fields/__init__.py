"""Random fields of binary variables: which weights of a matrix are active, and the priors that say
so.

Lowest first: `ising` (any graph); `grid`; `clusters` (entries that share a variable); `forest` and
`transfer_matrix` (exact sums and draws on trees and on narrow grids); `elimination` and
`junction_tree` (the same on any graph whose clique tree fits); `phase_transition` (warnings about
strong couplings); `support_priors` (the declarations), `whole` (those of inputs and outputs);
`sampling` (a random field as a Pyro distribution).
"""
