"""Messages that keep to a budget (AnycostFL, end of section III-C).

`budgeted` has the piecewise-linear map from beta, the size of a message relative to the update at
32 bits an entry, to rho and L, and encodes again if a message exceeds its budget; `fitting` learns
the map offline from the real sizes of a few encoded updates, header and digest included.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
