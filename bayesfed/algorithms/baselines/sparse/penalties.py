"""Three penalties without a gradient, averaged as FedAvg does: the baselines of FedRLR.

==============  ====================================================================================
recipe          what it is
==============  ====================================================================================
`fed_mid`       FeDMiD (Yuan, Zaheer and Reddi, "Federated composite optimization", 2021) with the
                nuclear norm: clients take ``w <- prox_{eta_c psi}(w - eta_c g)``, the server
                ``w <- prox_{eta_s eta_c K psi}(mean w_k)``
`fed_l1`        the l1 norm: one step is ``w <- prox_{eta lambda ||.||_1}(w - eta g)``, the soft
                threshold at eta lambda; Prox-SGD (Yang et al., "ProxSGD: training structured neural
                networks under regularization and constraints", 2020) without its momentum and with
                its step towards the threshold taken whole; FedRLR takes one a round
`fed_prune`     magnitude pruning to ``ceil(share * n)`` entries of each weight matrix of n; FedRLR
                takes one SGD step, then keeps the s largest
==============  ====================================================================================

Notation of FeDMiD: psi, the penalty, ``lambda ||Theta||_*`` of FedRLR (1) with lambda ->
`strength`; K local steps -> `steps`; client rate eta_c -> the optimiser and the schedule; server
rate eta_s = 1; mirror map h = ||.||^2 / 2, so that ``grad (h + eta psi)^*`` is ``prox_{eta psi}``:
singular values shrink by eta lambda. Compression is the link's.
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
from bayesfed.errors import ArgumentError
from bayesfed.federated import Algorithm, Link, Training
from bayesfed.federated.core.settings import with_settings
from bayesfed.inference.objectives.proximal_operators import (
    LargestShare,
    SingularThreshold,
    SoftThreshold,
)
from bayesfed.models import Likelihood, weight_matrices
from bayesfed.models.modules import Predicate


@recipe(cites=("yang2020proxsgd", "xue2023riemannian"))
def fed_l1(
    net: nn.Module,
    *,
    strength: float = 0.002,
    where: Predicate = weight_matrices,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, with a soft threshold after every step, which sets weights to zero
    that the loss does not need: "Baseline 2" of FedRLR.

    The server averages, so its model has the union of the clients' supports.

    Parameters
    ----------
    strength
        Strength lambda beside a mean loss. FedRLR prints 0.02 for one step a round; with the 50
        steps of the default work that empties networks of several hidden layers.
    where
        ``(parameter name, owning module) -> bool`` chooses what is thresholded. Default: the
        weights of layers, not the biases.
    net, likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative or not finite, or `where` chooses nothing or frozen parameters,
        such as the weights under adapters.

    References
    ----------
    Yang et al., "ProxSGD: Training Structured Neural Networks under Regularization and Constraints"
    (2020); Xue and Lau, "Riemannian Low-Rank Model Compression for Federated Learning With
    Over-the-Air Aggregation" (2023).
    """
    penalised = penalise(net, SoftThreshold(strength), where, caller="fed_l1")
    work = training or Training()
    local = ProximalDescent(work.likelihood_descent(net, likelihood), penalised)
    return compose(
        "fed_l1", net, local, ProximalAverage(penalised), training=work, codec=codec, link=link
    )


@recipe(cites=("yuan2021federated", "xue2023riemannian"))
def fed_mid(
    net: nn.Module,
    *,
    strength: float = 0.0005,
    average: bool = True,
    where: Predicate = weight_matrices,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, and shrink the singular values of every weight matrix after every
    step and in the server's average: "Baseline 1" of FedRLR.

    Clients and server together shrink by twice the strength: with one local step of one client, the
    model converges exactly to the minimum of the loss plus ``2 lambda ||.||_*``. With `average`
    False it converges to that of the stated problem, but the average of several clients then has
    full rank.

    Parameters
    ----------
    strength
        Strength lambda. FedRLR prints 0.0005.
    average
        Whether the server shrinks the average.
    where
        ``(parameter name, owning module) -> bool`` chooses what is shrunk. Default: the weights of
        layers, not the biases.
    net, likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative or not finite, `where` chooses nothing or frozen parameters,
        such as the weights under adapters, or local work is given in epochs, for which the server's
        rate is not defined.

    References
    ----------
    Yuan, Zaheer and Reddi, "Federated Composite Optimization" (2021); Xue and Lau, "Riemannian
    Low-Rank Model Compression for Federated Learning With Over-the-Air Aggregation" (2023).
    """
    penalised = penalise(net, SingularThreshold(strength), where, caller="fed_mid")
    work = training or Training()
    if work.epochs is not None:
        raise ArgumentError(
            "fed_mid, training",
            "local work in steps",
            f"epochs={work.epochs}",
            "Training(steps=50)",
        )
    descent = work.likelihood_descent(net, likelihood)

    @with_settings(descent=descent, work=work)
    def rate(round: int) -> float:
        return work.steps * descent.optimiser.learning_rate * work.schedule(round)

    server = ProximalAverage(penalised, rate if average else None)
    return compose(
        "fed_mid",
        net,
        ProximalDescent(descent, penalised),
        server,
        training=work,
        codec=codec,
        link=link,
    )


@recipe(cites=("han2015learning", "xue2023riemannian"))
def fed_prune(
    net: nn.Module,
    *,
    share: float = 0.5,
    once: bool = True,
    where: Predicate = weight_matrices,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does. Before it answers, a client sets all but the largest weights to
    zero: "Baseline 3" of FedRLR.

    The server averages, so its model has the union of the clients' supports. These are nearly
    equal: a weight at zero has the steps of one round to outgrow the smallest weight that was kept,
    so the initial values decide most of the support, the more so the fewer steps there are.

    Parameters
    ----------
    share
        Share of each matrix's weights that is kept, from the first round on: what a small share
        leaves of the initial values does not learn in ten rounds. FedRLR prints 0.03125.
    once
        Prune only after the last local step. False prunes after every step, so that a weight has
        one step to return.
    where
        ``(parameter name, owning module) -> bool`` chooses what is pruned. Default: the weights of
        layers, not the biases.
    net, likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the share is not above 0 and at most 1, or `where` chooses nothing or frozen parameters,
        such as the weights under adapters.

    References
    ----------
    Han et al., "Learning Both Weights and Connections for Efficient Neural Network" (2015); Xue and
    Lau, "Riemannian Low-Rank Model Compression for Federated Learning With Over-the-Air
    Aggregation" (2023).
    """
    penalised = penalise(net, LargestShare(share), where, caller="fed_prune")
    work = training or Training()
    local = ProximalDescent(work.likelihood_descent(net, likelihood), penalised, once)
    return compose(
        "fed_prune", net, local, ProximalAverage(penalised), training=work, codec=codec, link=link
    )
