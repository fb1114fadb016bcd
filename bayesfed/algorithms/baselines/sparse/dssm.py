"""DSSM (Ji et al., "Dynamic sampling and selective masking for communication-efficient federated learning", 2021).

Selective masking is in the recipe: the `share` of each leaf's changes that is largest in magnitude. Dynamic sampling is the engine's:
``run(..., sampler=decaying(c_0, beta))`` takes ``c_t = c_0 exp(-beta t)`` of the clients in round t.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.quantisers.floats import Float
from bayesfed.compress.quantisers.sparsify import TopK
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def dssm(
    net: nn.Module,
    *,
    share: float = 0.5,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; clients send the largest changes of the model as 16-bit floats, and where they are.

    Parameters
    ----------
    share
        gamma, the share of a leaf's entries that are sent.
    likelihood, steps, batch_size, optimiser, schedule
        As in `fed_avg`.
    codec
        Of the down-link; default 16-bit floats.
    """
    up = Coded(TopK(share, Float(16, entropy=Range())))
    objective = MaximumLikelihood(net, likelihood or Categorical())
    return average_of("dssm", net, objective, steps, batch_size, optimiser, schedule, codec or Cast(16), up)
