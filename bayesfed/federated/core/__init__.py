"""The seams of a federated method, as protocols and values.

In the order of their imports: `update` (what is summed), `limbs`, `limbs_jit`, `forms` and `sums`
(sums that are exact in any order), `options` (what the server tells a local step), `costs` (what
sending takes), `protocols` (view, local step, link, and what passes between them), `owners`
and `layers` (whose leaves are whose, and ideas around a core), `algorithm` (servers, phases and the
method), `posteriors`, `seams` (what a part may leave out) and `layering` (a method with one more
layer).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
