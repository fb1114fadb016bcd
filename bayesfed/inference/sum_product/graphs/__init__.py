"""Factor graphs for people, lowered to the flat models that message passing takes.

`factor_graph` has the class. What it is made of, in this order: `flat` (general flat models),
`networks` (checks of networkx graphs), `recognise` (colourings and grids), `grouping`,
`reading` and `lowering` (bipartite graphs to flat models), `pairwise`.
"""
