"""Magnitude pruning on the clients, averaged as FedAvg does: "Baseline 3" of FedRLR.

Notation: s -> ``ceil(share * n)`` entries of each weight matrix of n; FedRLR takes one SGD step, then keeps the s largest. Compression is the
link's.
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
from bayesfed.inference.objectives.proximal_operators import LargestShare
from bayesfed.models.modules import Predicate, weight_matrices
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def fed_prune(
    net: nn.Module,
    *,
    share: float = 1 / 32,
    once: bool = True,
    where: Predicate = weight_matrices,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; before it answers, a client sets all but the largest weights to zero.

    The server averages: its model has the union of the clients' supports. That is nearly one support: a weight at zero has one round's steps to
    outgrow the smallest that was kept, so what training began with decides most of it, the more the fewer the steps.

    Parameters
    ----------
    share
        Of each matrix's weights that is kept; FedRLR prints 0.03125.
    once
        False prunes after every local step and not only after the last; a weight then has one step to return.
    where
        ``(parameter name, owning module) -> bool``: what is pruned; default the weights of layers, not the biases.
    likelihood, steps, batch_size, optimiser, schedule, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the share is not above 0 and at most 1, or `where` chooses nothing or what is frozen: the weights under adapters.
    """
    penalised, objective = penalise(net, LargestShare(share), where, caller="fed_prune"), MaximumLikelihood(net, likelihood or Categorical())
    return average_of(
        "fed_prune", net, objective, steps, batch_size, optimiser, schedule, codec,
        link=link, local=lambda descent: ProximalDescent(descent, penalised, once), server=ProximalAverage(penalised),
    )  # fmt: skip
