"""Layers whose weight matrix has low rank and is never formed, and the networks made of them.

Lowest first: `thin_layers`; `factored_layers`, `factored_spectra`, `factored_trees` and
`factored_export` (two free factors ``U V^T``); `fixed_rank_layers`, `fixed_rank_trees` and
`fixed_rank` (points ``u s v^T`` of a manifold); `hybrid` (networks of which some layers are
factored).
"""
