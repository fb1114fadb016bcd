"""Where clients live, and what happens there in one turn.

In the order of their imports: `envelopes` and `serialisation` (messages and tensors as bytes),
`turn` (decode, train, pack), `memory` (what clients keep), `vmap_training` and `cohorts` (many
clients at once), `worker_loop`, `worker` and `workers` (clients in other processes and threads),
and `pools` (all clients, for the engine).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
