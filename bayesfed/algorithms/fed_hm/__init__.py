"""FedHM: layers `factored` at a client's rank, and anew by the server; and the `recipe`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
