"""Laws that every implementation of a seam obeys; run them on your own codec, view, local, pool, support, guide or manifold.

Each function takes an instance, raises `LawError` with what was broken, and returns None. The package's own
tests run them on everything it ships.
"""

from bayesfed.testing.beliefs import check_blocks, check_support
from bayesfed.testing.clients import check_local, check_pool, check_sampler, check_view
from bayesfed.testing.codecs import check_codec
from bayesfed.testing.codes import check_integer_code, check_mask_code
from bayesfed.testing.hostile import check_hostile
from bayesfed.testing.law import LawError
from bayesfed.testing.leaves import check_leaf_codec
from bayesfed.testing.manifold import ManifoldOperations, check_fixed_rank, check_retraction

__all__ = [
    "LawError",
    "ManifoldOperations",
    "check_blocks",
    "check_codec",
    "check_fixed_rank",
    "check_hostile",
    "check_integer_code",
    "check_leaf_codec",
    "check_local",
    "check_mask_code",
    "check_pool",
    "check_retraction",
    "check_sampler",
    "check_support",
    "check_view",
]
