"""FedNova (Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated
optimization", 2020).

==================================================  ================================================
paper                                               here
==================================================  ================================================
tau_i, a_i                                          a client's steps, and the weights of their
                                                    gradients in its change
d_i = (x - y_i) / (eta ||a_i||_1), (8)              sent as x + reference / ||a_i||_1 (y_i - x)
tau_eff = sum_i p_i ||a_i||_1                       reference times the mean of the leaf
                                                    ``run/steps``
x - tau_eff sum_i p_i eta d_i, (9)                  `Normalised`
==================================================  ================================================

The reference is the number of steps of the local work. It cancels, and makes clients that take so
many steps send exactly what FedAvg's would.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from bayesfed.algorithms.baselines.drift.plain_sgd import sgd_of
from bayesfed.algorithms.composing import compose, within
from bayesfed.algorithms.registry import recipe
from bayesfed.algorithms.surveys import LARGEST, Limit
from bayesfed.compress import Codec
from bayesfed.data import Dataset
from bayesfed.federated import (
    Algorithm,
    Descent,
    Fit,
    Link,
    LocalOptions,
    Reducer,
    Training,
)
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import MODEL, Around, Info, of
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree, shapes

# Leaf of a payload: the client's steps over the reference.
STEPS = "run/steps"


def accumulated(steps: int, momentum: float) -> float:
    """Return ``||a||_1``: the sum of the weights that gradients have in the change of so many steps
    of SGD with momentum.
    """
    return (
        steps
        if not momentum
        else (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    )


@dataclass(frozen=True)
class NormalisedLocal(Around):
    """Gradient steps, whose change is sent as that of a reference number of steps.

    Parameters
    ----------
    local
        Steps of SGD.
    momentum
        Momentum of these steps.
    """

    local: Descent
    momentum: float = 0.0

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train from the message, and send the normalised model with the number of steps."""
        fit = self.local.fit(message, memory, data, key, options)
        _, steps = self.local.asked(options)
        times = accumulated(steps, self.momentum) / accumulated(self.local.steps, self.momentum)
        # `lerp` with weight 1 returns its end exactly.
        normalised = {
            name: message[name].lerp(leaf, 1 / times) for name, leaf in fit.payload.items()
        }
        return fit._replace(
            payload=of(MODEL, normalised) | {STEPS: torch.tensor(times, device=data.inputs.device)}
        )


@dataclass(frozen=True)
class Normalised:
    """Go from the model along the mean of normalised changes, as far as the clients' mean number of
    steps says.
    """

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next model. A round in which no client has data changes nothing."""
        total = summed(reducer, "value")
        if not total.weight:
            return state, {}
        mean = total.mean()
        times = float(mean[STEPS])
        return {
            name: leaf.lerp(mean[f"{MODEL}/{name}"].to(leaf), times) for name, leaf in state.items()
        }, {"steps": times}


def steps_limits(payload: Tree, rows: float) -> Iterator[Limit]:
    """Yield what a client's number of steps over the reference can be."""
    yield STEPS, payload[STEPS], 0.0, LARGEST


@recipe(cites=("wang2020tackling",))
def fed_nova(
    net: nn.Module,
    *,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, with changes divided by the number of local steps, so that clients
    with more steps do not count for more.

    Clients take unlike numbers of steps where `training` has `epochs`. With equal `steps` it is
    `fed_avg`, bit for bit.

    Parameters
    ----------
    training
        Local work of a round, by `Sgd`, with momentum or without. Default: 50 steps of 64 rows with
        ``Sgd(0.05)``.
    net, likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the optimiser is not `Sgd`.

    References
    ----------
    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization" (2020).
    """
    work = training or Training()
    momentum = sgd_of(work, "fed_nova", momentum=True).momentum
    model = travelling(net, "static", where="fed_nova")
    return compose(
        "fed_nova",
        net,
        NormalisedLocal(work.likelihood_descent(net, likelihood), momentum),
        Normalised(),
        training=work,
        initial=model,
        view=within({**shapes(of(MODEL, model)), STEPS: ()}, steps_limits),
        codec=codec,
        link=link,
    )
