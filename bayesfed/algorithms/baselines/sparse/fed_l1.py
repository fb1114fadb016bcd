"""Sparse training by the l1 norm, averaged as FedAvg does: "Baseline 2" of FedRLR.

Notation: lambda -> `strength`; one step is ``w <- prox_{eta lambda ||.||_1}(w - eta g)``, the soft
threshold at eta lambda, with eta -> the optimiser and the schedule. This is Prox-SGD (Yang et al.,
"ProxSGD: training structured neural networks under regularization and constraints", 2020) without
its momentum and with its step towards the threshold taken whole; FedRLR takes one a round.
Compression is the link's.
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
from bayesfed.inference.objectives.proximal_operators import SoftThreshold
from bayesfed.models import Categorical, Likelihood, weight_matrices
from bayesfed.models.modules import Predicate


@recipe(cites=("yang2020proxsgd", "xue2023riemannian"))
def fed_l1(
    net: nn.Module,
    *,
    strength: float = 0.02,
    where: Predicate = weight_matrices,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, with a soft threshold after every step, which sets weights to zero
    that the loss does not need.

    The server averages, so its model has the union of the clients' supports.

    Parameters
    ----------
    strength
        Strength lambda beside a mean loss. FedRLR prints 0.02.
    where
        ``(parameter name, owning module) -> bool`` chooses what is thresholded. Default: the
        weights of layers, not the biases.
    likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative or not finite, or `where` chooses nothing or frozen parameters,
        such as the weights under adapters.
    """
    penalised, work = (
        penalise(net, SoftThreshold(strength), where, caller="fed_l1"),
        training or Training(),
    )
    objective = MaximumLikelihood(net, likelihood or Categorical())
    local = ProximalDescent(work.descent(objective, net), penalised)
    return compose(
        "fed_l1", net, local, ProximalAverage(penalised), training=work, codec=codec, link=link
    )
