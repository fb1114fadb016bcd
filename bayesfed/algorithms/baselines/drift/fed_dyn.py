"""FedDyn (Acar et al., "Federated learning based on dynamic regularization", 2021).

==============================================================  ====================================
paper, Algorithm 1                                              here
==============================================================  ====================================
theta, h / alpha                                                the server's state: the model, and
                                                                ``lag/NAME``
grad L_k(theta_k), the linear term of (1)                       a client's memory, ``slope/NAME``
L_k(w) - <slope, w> + alpha / 2 ||w - theta||^2                 a step on L_k, then the exact step
                                                                on the rest; alpha -> `strength`
slope <- slope - alpha (theta_k - theta)                        `DynamicLocal`
h <- h - alpha / m sum_S (theta_k - theta)                      lag <- lag - |S| / m (mean - theta),
                                                                `participation`
theta <- mean - h / alpha                                       theta <- mean - lag
==============================================================  ====================================

Clients are weighed by their rows, where the paper weighs them alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from bayesfed.algorithms.baselines.drift.plain_sgd import sgd_of
from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.federated import (
    Algorithm,
    Average,
    Descent,
    Fit,
    Link,
    LocalOptions,
    Reducer,
    Training,
    Whole,
)
from bayesfed.federated.aggregation.servers import PublishesModel
from bayesfed.federated.core import MODEL, Around, Info, of, owned
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree, shapes, to, zeros_like, zip_map

# Owners of the server's h / alpha in its state, and of the linear term in a client's memory.
LAG, SLOPE = "lag", "slope"


@dataclass(frozen=True)
class DynamicLocal(Around):
    """Minimise a client's regularised loss, and keep the slope that makes its minimum that of all
    clients.

    Parameters
    ----------
    local
        Steps of plain SGD on the client's loss.
    strength
        alpha.
    """

    local: Descent
    strength: float

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train from the message, and update the slope. A client without rows changes nothing."""
        if not len(data) or not self.strength:
            return self.local.fit(message, memory, data, key, options)._replace(memory=memory)
        slope = to(owned(memory, SLOPE), data.inputs.device) or zeros_like(message)
        pull = {name: leaf + self.strength * message[name] for name, leaf in slope.items()}

        def after_step(trained: Tree, rate: float, left: int) -> None:
            # The proximal step of the linear and the quadratic term, which is stable at any
            # strength.
            for name, leaf in trained.items():
                leaf.add_(pull[name], alpha=rate).div_(1 + rate * self.strength)

        fit = self.local.train(message, data, key, options, after_step)
        after = {
            name: leaf - self.strength * (fit.payload[name] - message[name])
            for name, leaf in slope.items()
        }
        return fit._replace(memory=of(SLOPE, after))


@dataclass(frozen=True)
class Dynamic(PublishesModel):
    """Average models, and go on by the sum of all earlier averages' changes.

    Parameters
    ----------
    strength
        alpha. With 0 the mean is the next model.
    participation
        Share of all clients that take part in a round.
    """

    strength: float
    participation: float = 1.0

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next model and the next lag. A round in which no client has data changes
        nothing.
        """
        model, lag = owned(state, MODEL), owned(state, LAG)
        mean, info = Average().step(model, reducer, round)
        if not self.strength or mean is model:
            return state | of(MODEL, mean), info
        lag = {
            name: lag[name] - self.participation * (mean[name] - leaf)
            for name, leaf in model.items()
        }
        moved = zip_map(torch.sub, mean, lag)
        return of(MODEL, moved) | of(LAG, lag), info


@recipe(cites=("acar2021federated",))
def fed_dyn(
    net: nn.Module,
    *,
    strength: float,
    participation: float = 1.0,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, with a regulariser at each client that changes until the clients'
    minima agree.

    Messages are as long as those of `fed_avg`; a client keeps one model in its memory.

    Parameters
    ----------
    strength
        alpha of the paper, beside a mean loss; 0.01 to 0.1 there. With 0 the model is that of
        `fed_avg`, bit for bit.
    participation
        Share of all clients that take part in a round: that of the sampler,
        ``fraction(participation)``.
    training
        Local work of a round, by `Sgd` without momentum. Default: 50 steps of 64 rows with
        ``Sgd(0.05)``.
    net, likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative, `participation` is no share, or the optimiser is not `Sgd`
        without momentum.

    References
    ----------
    Acar et al., "Federated Learning Based on Dynamic Regularization" (2021).
    """
    work, model = training or Training(), travelling(net, "static", where="fed_dyn")
    sgd_of(work, "fed_dyn")
    return compose(
        "fed_dyn",
        net,
        DynamicLocal(work.likelihood_descent(net, likelihood), strength),
        Dynamic(strength, participation),
        training=work,
        initial=of(MODEL, model) | of(LAG, zeros_like(model)),
        view=Whole(shapes(model)),
        codec=codec,
        link=link,
        owner="",
    )
