"""Sparse training by the l1 norm, averaged as FedAvg does: "Baseline 2" of FedRLR.

Notation: lambda -> `strength`; one step is ``w <- prox_{eta lambda ||.||_1}(w - eta g)``, the soft threshold at eta lambda, with eta -> the
optimiser and the schedule. That is Prox-SGD (Yang et al., "ProxSGD: training structured neural networks under regularization and constraints",
2020) without its momentum and with its step towards the threshold taken whole; FedRLR takes one a round. Compression is the link's.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.algorithms.baselines.sparse.proximal_descent import ProximalAverage, ProximalDescent, penalise
from bayesfed.compress.codecs import Codec
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.training.optimisers import Optimiser
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.inference.objectives.proximal_operators import SoftThreshold
from bayesfed.models.modules import Predicate, weight_matrices
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def fed_l1(
    net: nn.Module,
    *,
    strength: float = 0.02,
    where: Predicate = weight_matrices,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; every step moves the weights towards zero and stops those there that the loss does not hold up.

    The server averages: its model has the union of the clients' supports.

    Parameters
    ----------
    strength
        lambda, of a mean loss; FedRLR prints 0.02.
    where
        ``(parameter name, owning module) -> bool``: what is thresholded; default the weights of layers, not the biases.
    likelihood, steps, batch_size, optimiser, schedule, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative or not finite, or `where` chooses nothing or what is frozen: the weights under adapters.
    """
    penalised, objective = penalise(net, SoftThreshold(strength), where, caller="fed_l1"), MaximumLikelihood(net, likelihood or Categorical())
    return average_of(
        "fed_l1", net, objective, steps, batch_size, optimiser, schedule, codec,
        link=link, local=lambda descent: ProximalDescent(descent, penalised), server=ProximalAverage(penalised),
    )  # fmt: skip
