"""Sum-product on binary grids, pairwise graphs and general factor graphs.

In this order: `infer` (the entry) and `result` (what it returns); `dispatch` (which method serves
which graph); `graphs` (graphs for people, lowered to flat models); `methods` (message passing on
flat models); `trust` (how far a result can be trusted).
"""
