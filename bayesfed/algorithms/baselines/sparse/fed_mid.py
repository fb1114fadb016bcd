"""FeDMiD (Yuan, Zaheer and Reddi, "Federated composite optimization", 2021) with the nuclear norm:
"Baseline 1" of FedRLR.

Notation: psi, the penalty, ``lambda ||Theta||_*`` of FedRLR (1) with lambda -> `strength`; K local
steps -> `steps`; client rate eta_c -> the optimiser and the schedule; server rate eta_s = 1; mirror
map h = ||.||^2 / 2, so that ``grad (h + eta psi)^*`` is ``prox_{eta psi}``: singular values shrink
by eta lambda. Clients take ``w <- prox_{eta_c psi}(w - eta_c g)``, the server
``w <- prox_{eta_s eta_c K psi}(mean w_k)``.
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
from bayesfed.inference import MaximumLikelihood
from bayesfed.inference.objectives.proximal_operators import SingularThreshold
from bayesfed.models import Categorical, Likelihood, weight_matrices
from bayesfed.models.modules import Predicate


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
    step and in the server's average.

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
    likelihood, training, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative or not finite, `where` chooses nothing or frozen parameters,
        such as the weights under adapters, or local work is given in epochs, for which the server's
        rate is not defined.
    """
    penalised, work = (
        penalise(net, SingularThreshold(strength), where, caller="fed_mid"),
        training or Training(),
    )
    if work.epochs is not None:
        raise ArgumentError(
            "fed_mid, training",
            "local work in steps",
            f"epochs={work.epochs}",
            "Training(steps=50)",
        )
    objective = MaximumLikelihood(net, likelihood or Categorical())
    descent = work.descent(objective, net)

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
