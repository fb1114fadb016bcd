"""What federating any Pyro model and guide takes.

In this order: `program` (a model and guide run at given parameters); `families` (exponential
families in natural parameters); `layout` and `reading` (what the guide's parameters mean);
`tilted` (a client's objective); `natural` and `antithetic` (better steps); `fusion` (the rules);
`traced` and `posterior` (the result).
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
