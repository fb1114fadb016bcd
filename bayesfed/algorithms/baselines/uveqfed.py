"""UVeQFed (Shlezinger et al., "UVeQFed: universal vector quantization for federated learning", 2021).

Notation: L -> `dimension`; R bits a weight -> `bits`; the dither z is drawn from the key of round and client, which both ends can build.
With `share` below 1 only the largest entries are quantised: the "UVeQFed" that AnycostFL compares with.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.leaf import LeafCodec
from bayesfed.compress.quantisers.lattice import Lattice
from bayesfed.compress.quantisers.sparsify import TopK
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def uveqfed(
    net: nn.Module,
    *,
    bits: float = 3.0,
    dimension: int = 2,
    share: float = 1.0,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; clients send changes of the model as points of a lattice, with subtractive dither.

    Parameters
    ----------
    bits, dimension
        Bits an entry that an ideal code would spend on Gaussian changes, and the lattice's dimension, 1, 2 or 8.
    share
        Share of a leaf's entries that are sent, the largest.
    likelihood, steps, batch_size, optimiser, schedule
        As in `fed_avg`.
    codec
        Of the down-link; default 16-bit floats.
    """
    lattice = Lattice(bits=bits, dimension=dimension)
    values: LeafCodec = lattice if share == 1 else TopK(share, lattice)
    up = Coded(values)
    objective = MaximumLikelihood(net, likelihood or Categorical())
    return average_of("uveqfed", net, objective, steps, batch_size, optimiser, schedule, codec or Cast(16), up)
