"""How belief is updated: closed-form blocks, sum-product on support graphs, turbo exchange, the
local ELBO.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
