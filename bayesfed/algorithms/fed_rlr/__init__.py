"""FedRLR: `encodings` of points on the manifold, `local` Riemannian steps, the `server` that
retracts, and the `recipe`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
