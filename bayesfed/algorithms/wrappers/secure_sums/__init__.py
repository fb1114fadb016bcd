"""Secure sums (Bonawitz et al., 2017; Bell et al., 2020): the server learns the sum of a round and
no single update.

From the bottom: `graphs` (who shares masks with whom), `primitives` (the cryptography),
`fixed_point` (numbers as integers of one limb), `sums` (sums of them without masks), `sessions`
(what a client knows in one round), `locals` (what it answers in the four phases, and where it
keeps its sessions), `unmasking` and `phases` (the server's part), and `recipe`, which is
`secure`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
