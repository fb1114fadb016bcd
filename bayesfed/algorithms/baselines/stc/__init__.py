"""STC, sparse ternary compression in both directions: `recipe` and `server`."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
