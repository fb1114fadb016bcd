"""How usual a row's features are, from sums over the clients' rows: `recipe`, and the `model` that
scores rows.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
