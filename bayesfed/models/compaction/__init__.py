"""Clustered inference: a sparse network rewritten so that only its active weights are multiplied.

Lowest first: `pruned` (drops units that do nothing); `forms` (how one sparse layer is multiplied);
`layout` (how pictures lie in memory, and pooling before activations); `rewriting` (a network layer
by layer); `compact` (the entry point).
"""
