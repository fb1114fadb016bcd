"""Laws that every implementation of a seam obeys; run them on your own codec, view, local
or sampler.

Each function takes an instance, returns None, and raises `LawError` with the law that was broken.
The package's own tests run them on everything it ships. `law` has the error and the comparisons;
`codecs` and `clients` hold the laws.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
