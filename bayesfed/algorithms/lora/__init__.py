"""Methods that train low-rank adapters.

`slices`, `sketches`, `adapting` and `stacking` are shared parts; the other files are recipes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
