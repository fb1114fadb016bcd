"""FedHM: the `view` of layers as factors of a client's rank, the `server` that factorises anew, and
the `recipe`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
