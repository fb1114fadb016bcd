"""What tests and benchmarks share and users never import: every recipe at a tiny size, every codec,
the laws of codes, pairs of recipes and parts, and hostile clients.
"""
