"""FedPAQ (Reisizadeh et al., "FedPAQ: a communication-efficient federated learning method with periodic averaging and quantization", 2020).

Notation: tau local updates -> `steps`; r of n sampled clients -> the engine's sampler, ``fraction(r / n)``; Q(x_{k,tau} - x_k) -> changes
of the model, stochastically rounded to `bits` bits an entry, sign included.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.quantisers.qsgd import FedPaqQuantiser
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def fed_paq(
    net: nn.Module,
    *,
    bits: int = 16,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; clients send changes of the model by an unbiased quantiser.

    Parameters
    ----------
    bits
        Of a quantised entry, 2 to 24: ``2^(bits - 1) - 1`` levels each side of zero, scaled by the leaf's largest entry. What is sent is
        the entropy-coded levels, which cost less.
    likelihood, steps, batch_size, optimiser, schedule
        As in `fed_avg`.
    codec
        Of the down-link; default 16-bit floats.
    """
    up = Coded(FedPaqQuantiser(2 ** (bits - 1) - 1, norm="max"))
    objective = MaximumLikelihood(net, likelihood or Categorical())
    return average_of("fed_paq", net, objective, steps, batch_size, optimiser, schedule, codec or Cast(16), up)
