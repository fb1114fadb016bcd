"""Methods against client drift, which several local steps on unlike data cause: SCAFFOLD, FedDyn
and FedNova.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
