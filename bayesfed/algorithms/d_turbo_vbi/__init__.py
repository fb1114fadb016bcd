"""D-Turbo-VBI: `recipe`, and the `server` that averages and exchanges messages with the support
prior.

Message passing and the closed-form blocks are in `bayesfed.inference.turbo`, priors in
`bayesfed.models`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
