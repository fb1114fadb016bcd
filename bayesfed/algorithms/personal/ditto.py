"""Ditto (Li, Hu, Beirami and Smith, "Ditto: Fair and robust federated learning through
personalization", 2021).

Notation: w -> the server's state; v_k -> a client's memory, ``own/NAME``; lambda -> `strength`.
Each client minimises ``h_k(v; w) = F_k(v) + lambda / 2 ||v - w||^2``, (Ditto), beside the shared
problem, which is that of FedAvg. A step on h_k is a gradient step on F_k and then the exact step on
the penalty.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from bayesfed.algorithms.baselines.drift.plain_sgd import sgd_of
from bayesfed.algorithms.composing import compose
from bayesfed.algorithms.registry import recipe
from bayesfed.compress import Codec
from bayesfed.federated import (
    Algorithm,
    Descent,
    Fit,
    Layer,
    Link,
    LocalOptions,
    Model,
    Personal,
    Sent,
    Training,
    Visit,
    layered,
)
from bayesfed.federated.core import MODEL, owned
from bayesfed.models import Likelihood
from bayesfed.trees import Tree, to


@dataclass(frozen=True, kw_only=True)
class OwnModel(Layer):
    """Steps on a model of the client's own that is drawn to the shared one, beside those on the
    shared problem.

    Parameters
    ----------
    steps
        Steps of plain SGD on the client's loss.
    strength
        lambda.
    """

    owner: str = "own"
    steps: Descent
    strength: float

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Take the steps; the client's own model begins as the message and stays in its memory."""
        message, options = visit.message, visit.options
        begun = to(visit.memory, visit.data.inputs.device) or message

        def after_step(trained: Tree, rate: float, left: int) -> None:
            # The proximal step of the penalty, which is stable at any strength.
            for name, leaf in trained.items():
                leaf.lerp_(message[name], rate * self.strength / (1 + rate * self.strength))

        told = LocalOptions(rate_factor=options.rate_factor, steps=options.steps)
        after = after_step if self.strength else None
        own = self.steps.train(begun, visit.data, visit.key.child("own"), told, after).payload
        return Sent(fit, memory=own)


@recipe(cites=("li2021ditto",))
def ditto(
    net: nn.Module,
    *,
    strength: float,
    likelihood: Likelihood | None = None,
    training: Training | None = None,
    codec: Codec | None = None,
    link: Link | None = None,
) -> Algorithm:
    """Train as `fed_avg` does; beside it each client trains a model of its own, with a quadratic
    penalty on its distance to the shared one.

    The shared model is that of `fed_avg`, bit for bit.

    Parameters
    ----------
    strength
        lambda of ``lambda / 2 ||v - w||^2`` beside a mean loss. With 0 clients' own models are
        trained without each other.
    training
        Local work of a round, on the shared model and as much again on the client's own, by `Sgd`
        without momentum. Default: 50 steps of 64 rows with ``Sgd(0.05)``.
    net, likelihood, codec, link
        As in `fed_avg`.

    Raises
    ------
    ArgumentError
        If the strength is negative, or the optimiser is not `Sgd` without momentum.

    References
    ----------
    Li et al., "Ditto: Fair and Robust Federated Learning Through Personalization" (2021).
    """
    work = training or Training()
    sgd_of(work, "ditto")
    descent = work.likelihood_descent(net, likelihood)

    def shared(state: Tree, memory: Tree) -> Personal:
        return Personal(Model(net, state))

    made = compose("ditto", net, descent, training=work, codec=codec, link=link, personal=shared)
    made = layered(made, OwnModel(steps=descent, strength=strength), where="ditto", inside=True)

    def personal(state: Tree, memory: Tree) -> Personal:
        return Personal(Model(net, owned(memory, "own") or owned(state, MODEL)))

    return replace(made, personal=personal)
