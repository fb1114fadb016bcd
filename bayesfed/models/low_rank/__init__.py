"""Layers whose weight matrix has low rank and is never formed, and the networks made of them.

Lowest first: `unrolling` (kernels as matrices); `thin_layers`; `replacing` and `export`;
`factored_spectra` and `factored_trees` (two free factors ``u v^T``); `fixed_rank` (points
``u s v^T`` of a manifold); `hybrid` (networks of which some layers are factored).
"""
