"""Methods that train low-rank adapters.

`slices`, `sketch_view`, `adapting`, `sketched` and `stacking` are shared parts; `sketched_svi` is
the local step of `bayesian_lora`; the other files are recipes.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
