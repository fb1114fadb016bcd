"""Calibration after training, on rows that clients held out: `recipe`, the `sums` that they send,
and the model that comes of it.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
