"""AnycostFL: `recipe`, and `weights` of clients by the divergence of their updates.

Its views (`Slice`, `Kept`) and its planner (`wrappers.on_devices`) also serve other methods.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
