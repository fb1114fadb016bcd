"""How belief is updated: closed-form blocks, sum-product on support graphs, turbo exchange, the
local ELBO.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
