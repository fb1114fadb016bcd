"""SCAFFOLD (Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated learning",
2020), with option II.

==============================================  ====================================================
paper                                           here
==============================================  ====================================================
x, c                                            the server's state: the model, and ``control/NAME``
c_i                                             a client's memory, ``control/NAME``
y <- y - eta_l (g_i(y) - c_i + c)               an SGD step, then the correction in `AfterStep`
c_i+ = c_i - c + (x - y) / (K eta_l)            option II, with the sum of the rates of the steps
                                                for K eta_l
Delta y, Delta c                                one payload: the model y, and c + c_i+ - c_i as
                                                ``control/NAME``
|S| / N                                         `participation`
==============================================  ====================================================

Both halves of the payload are proposals for the next state, so the server takes their mean. Clients
are weighed by their rows, where the paper weighs them alike: the control variates then average to
zero in the same weights as the gradients of the objective.
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
from bayesfed.errors.checks import number
from bayesfed.federated import (
    Algorithm,
    Average,
    Descent,
    Fit,
    Link,
    LocalOptions,
    Reducer,
    Training,
)
from bayesfed.federated.core import MODEL, Around, Info, of, owned
from bayesfed.federated.core.owners import owner_of
from bayesfed.federated.training.batch_norm import travelling
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree, to, zeros_like, zip_map

# Owner of control variates in states, messages, payloads and memories.
CONTROL = "control"


@dataclass(frozen=True)
class ControlledLocal(Around):
    """Gradient steps, each followed by a step against the client's drift.

    Parameters
    ----------
    local
        Steps of plain SGD.
    strength
        Factor on the correction.
    """

    local: Descent
    strength: float = 1.0

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Train from the model, and propose the next control variate. A client without rows changes
        neither.
        """
        model, shared = owned(message, MODEL), owned(message, CONTROL)
        own = to(owned(memory, CONTROL), data.inputs.device) or zeros_like(shared)
        drift = zip_map(torch.sub, shared, own)
        passed = 0.0

        def after_step(trained: Tree, rate: float, left: int) -> None:
            nonlocal passed
            passed += rate
            if self.strength:
                for name, leaf in trained.items():
                    leaf.sub_(drift[name], alpha=rate * self.strength)

        fit = self.local.train(model, data, key, options, after_step)
        if not passed:
            payload = of(MODEL, fit.payload) | of(CONTROL, shared)
            return fit._replace(payload=payload, memory=memory)
        # The mean gradient of the steps is what the model moved by, less the corrections that were
        # applied.
        after = {
            name: (model[name] - fit.payload[name]) / passed - self.strength * leaf
            for name, leaf in drift.items()
        }
        proposed = {name: shared[name] + (leaf - own[name]) for name, leaf in after.items()}
        return fit._replace(
            payload=of(MODEL, fit.payload) | of(CONTROL, proposed), memory=of(CONTROL, after)
        )


@dataclass(frozen=True)
class Controlled:
    """Average models; move the server's control variate by the share of clients that took part.

    Parameters
    ----------
    participation
        Share of all clients that take part in a round.
    rate
        eta_g, the rate of the server's step.
    """

    participation: float = 1.0
    rate: float = 1.0

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next model and the next control variate."""
        mean, info = Average().step(state, reducer, round)
        # `lerp` with weight 1 returns its end exactly.
        return {
            name: leaf.lerp(
                mean[name], self.participation if owner_of(name) == CONTROL else self.rate
            )
            for name, leaf in state.items()
        }, info


@recipe(
    cites=("karimireddy2020scaffold",),
    strength=number("[0, 1]", "1.0"),
    server_rate=number("(0, inf)", "1.0"),
)
def scaffold(
    net: nn.Module,
    *,
    participation: float = 1.0,
    strength: float = 1.0,
    server_rate: float = 1.0,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does, with control variates that remove what is particular to a client
    from its gradients.

    Messages are twice as long in both directions, and a client keeps one model in its memory.

    Parameters
    ----------
    participation
        Share of all clients that take part in a round: that of the sampler,
        ``fraction(participation)``.
    strength
        Factor on the correction of a local step. With 0 the model is that of `fed_avg`, bit for
        bit.
    server_rate
        eta_g, the rate of the server's step.
    training
        Local work of a round, by `Sgd` without momentum. Default: 50 steps of 64 rows with
        ``Sgd(0.05)``.
    net, likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or the optimiser is not `Sgd` without momentum.

    References
    ----------
    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (2020).
    """
    work = training or Training()
    sgd_of(work, "scaffold")
    model = travelling(net, "static", where="scaffold")
    return compose(
        "scaffold",
        net,
        ControlledLocal(work.likelihood_descent(net, likelihood), strength),
        Controlled(participation, server_rate),
        training=work,
        initial=of(MODEL, model) | of(CONTROL, zeros_like(model)),
        codec=codec,
        link=link,
        owner="",
    )
