"""Magnitude pruning on the clients, averaged as FedAvg does: "Baseline 3" of FedRLR.

Notation: s -> ``ceil(share * n)`` entries of each weight matrix of n; FedRLR takes one SGD step,
then keeps the s largest. Compression is the link's.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.baselines.sparse.proximal_descent import (
    ProximalAverage,
    ProximalDescent,
    penalise,
)
from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.inference import MaximumLikelihood
from bayesfed.inference.objectives.proximal_operators import LargestShare
from bayesfed.models import Categorical, Likelihood, weight_matrices
from bayesfed.models.modules import Predicate


@recipe(cites=("han2015learning", "xue2023riemannian"))
def fed_prune(
    net: nn.Module,
    *,
    share: float = 1 / 32,
    once: bool = True,
    where: Predicate = weight_matrices,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does. Before it answers, a client sets all but the largest weights to
    zero.

    The server averages, so its model has the union of the clients' supports. These are nearly
    equal: a weight at zero has the steps of one round to outgrow the smallest weight that was kept,
    so the initial values decide most of the support, the more so the fewer steps there are.

    Parameters
    ----------
    share
        Share of each matrix's weights that is kept. FedRLR prints 0.03125.
    once
        Prune only after the last local step. False prunes after every step, so that a weight has
        one step to return.
    where
        ``(parameter name, owning module) -> bool`` chooses what is pruned. Default: the weights of
        layers, not the biases.
    likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the share is not above 0 and at most 1, or `where` chooses nothing or frozen parameters,
        such as the weights under adapters.
    """
    penalised, work = (
        penalise(net, LargestShare(share), where, caller="fed_prune"),
        training or Training(),
    )
    objective = MaximumLikelihood(net, likelihood or Categorical())
    local = ProximalDescent(work.descent(objective, net), penalised, once)
    return compose(
        "fed_prune", net, local, ProximalAverage(penalised), training=work, codec=codec, link=link
    )
