"""Wrappers take an algorithm and return an algorithm: `private`, `robust`, `secure`, `averaged`,
`on_devices`, `timed`.

`phases` has what they share, `noising` and `accounting` the parts of `private`, `chosen_prior` what
`Training(prior_precision="auto")` does.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
