"""The round of federated learning and its seams, without any particular method.

From the lowest floor to the highest: `core` (the seams, as protocols and values); `aggregation` and
`training` (what servers and clients do); `links` (how payloads travel); `clients` (where clients
live); `engine` (the only round loop, its gate, ledger and checkpoints).
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
