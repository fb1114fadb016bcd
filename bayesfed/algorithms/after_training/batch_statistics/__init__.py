"""The query of static batch norms' statistics after training: `recipe`, and the `moments` that
clients send.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
