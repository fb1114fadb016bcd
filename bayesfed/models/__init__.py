"""Networks and what is believed about their weights: reference networks, likelihoods, priors,
low-rank layers, adapters, costs, smaller copies.

Lowest first: `modules`; `nets`, `random_fields` and `likelihoods`; `priors`, `low_rank`,
`compaction` and `costs`; `adapters` and `elastic`. Each imports only from those before it, never
from its neighbours.
"""

from bayesfed.errors.names import attached

__getattr__, __dir__, __all__ = attached(__name__, __file__)
