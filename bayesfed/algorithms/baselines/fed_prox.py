"""FedProx (Li et al., "Federated optimization in heterogeneous networks", 2020).

Notation: mu -> `strength`; h_k(w; w^t) = F_k(w) + mu/2 ||w - w^t||^2, equation (2), is the negative ELBO per row of a point
posterior under the prior N(w^t, 1/(n_k mu)). With mu = 0 it is FedAvg, bit for bit.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.compress.codecs import Codec
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood, Proximal
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def fed_prox(
    net: nn.Module,
    *,
    strength: float,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, held to the broadcast model by a quadratic of the given strength.

    Parameters
    ----------
    strength
        mu, of ``mu / 2 ||w - w_t||^2`` beside a mean loss; 0 is `fed_avg`, bit for bit.
    likelihood, steps, batch_size, optimiser, schedule, codec
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative.
    """
    if not strength >= 0:
        raise ArgumentError(complain("fed_prox", expected="strength >= 0", actual=strength, hint="0.01"))
    objective = Proximal(MaximumLikelihood(net, likelihood or Categorical()), strength)
    return average_of("fed_prox", net, objective, steps, batch_size, optimiser, schedule, codec)
