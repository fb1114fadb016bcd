"""Laws that every implementation of a seam obeys; run them on your own codec, view, local, pool, support or guide.

Each function takes an instance, raises `LawError` with what was broken, and returns None. The package's own
tests run them on everything it ships.
"""

from bayesfed.testing.beliefs import check_blocks, check_support
from bayesfed.testing.clients import check_local, check_pool, check_sampler, check_view
from bayesfed.testing.codecs import check_codec
from bayesfed.testing.law import LawError

__all__ = ["LawError", "check_blocks", "check_codec", "check_local", "check_pool", "check_sampler", "check_support", "check_view"]
