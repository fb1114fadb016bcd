"""FeDMiD (Yuan, Zaheer and Reddi, "Federated composite optimization", 2021) with the nuclear norm: "Baseline 1" of FedRLR.

Notation: psi, the penalty, ``lambda ||Theta||_*`` of FedRLR (1) with lambda -> `strength`; K local steps -> `steps`; client rate eta_c -> the
optimiser and the schedule; server rate eta_s = 1; mirror map h = ||.||^2 / 2, so that ``grad (h + eta psi)^*`` is ``prox_{eta psi}``: singular
values shrink by eta lambda. Clients take ``w <- prox_{eta_c psi}(w - eta_c g)``, the server ``w <- prox_{eta_s eta_c K psi}(mean w_k)``.
"""

from __future__ import annotations

from torch import nn

from bayesfed.algorithms.baselines.fed_avg import average_of
from bayesfed.algorithms.baselines.sparse.proximal_descent import ProximalAverage, ProximalDescent, penalise
from bayesfed.compress.codecs import Codec
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.training.optimisers import Optimiser, Sgd
from bayesfed.federated.training.schedules import Schedule, constant
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.inference.objectives.proximal_operators import SingularThreshold
from bayesfed.models.modules import Predicate, weight_matrices
from bayesfed.models.priors.likelihoods import Categorical, Likelihood


def fed_mid(
    net: nn.Module,
    *,
    strength: float = 0.0005,
    average: bool = True,
    where: Predicate = weight_matrices,
    likelihood: Likelihood | None = None,
    steps: int = 50,
    batch_size: int = 64,
    optimiser: Optimiser | None = None,
    schedule: Schedule = constant,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; every step, and the server on the average, shrinks the singular values of every weight matrix.

    Clients and server together shrink by twice the strength: with one local step of one client the model converges to the minimum of the loss
    plus ``2 lambda ||.||_*``, exactly; with `average` False to that of the stated problem, but the average of several clients is then of full rank.

    Parameters
    ----------
    strength
        lambda; FedRLR prints 0.0005.
    average
        Whether the server shrinks the average.
    where
        ``(parameter name, owning module) -> bool``: what is shrunk; default the weights of layers, not the biases.
    likelihood, steps, batch_size, optimiser, schedule, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative or not finite, or `where` chooses nothing or what is frozen: the weights under adapters.
    """
    penalised, chosen = penalise(net, SingularThreshold(strength), where, caller="fed_mid"), optimiser or Sgd()

    def rate(round: int) -> float:
        return steps * chosen.learning_rate * schedule(round)

    objective = MaximumLikelihood(net, likelihood or Categorical())
    return average_of(
        "fed_mid", net, objective, steps, batch_size, chosen, schedule, codec,
        link=link, local=lambda descent: ProximalDescent(descent, penalised), server=ProximalAverage(penalised, rate if average else None),
    )  # fmt: skip
