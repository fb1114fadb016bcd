"""Laws that every implementation of a seam obeys; run them on your own codec, view, local, pool, support, guide or manifold.

Each function takes an instance, raises `LawError` with what was broken, and returns None. The package's own
tests run them on everything it ships.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
