"""`SummedGradients`: the rule whose clients send gradients, and whose server takes the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from bayesfed.errors import PosteriorError
from bayesfed.errors.checks import POSITIVE, checked_class
from bayesfed.inference.variational.fusion.rule import (
    VALUE,
    Fused,
    FusionKind,
    Start,
    WeightedSum,
    valued,
)
from bayesfed.trees import Tree, under, without

MOMENTS, FIRST, SECOND, COUNT = "adam/", "adam/first/", "adam/second/", "adam/steps"


@checked_class({}, learning_rate=POSITIVE)
@dataclass(frozen=True)
class SummedGradients:
    """FedSVI: clients send gradients of their terms of the ELBO at the server's parameters, and the
    server takes one step of Adam on the sum.

    In unconstrained parameters, for any guide. The sum is an unbiased gradient of the ELBO of all
    rows with the prior counted once, so there is no drift; local steps average draws and batches.

    Parameters
    ----------
    learning_rate
        Learning rate of the server's Adam (Kingma and Ba, 2015), whose moments are part of the
        state: ``adam/first/NAME``, ``adam/second/NAME`` and ``adam/steps``.

    Raises
    ------
    ArgumentError
        If the learning rate is not positive.
    PosteriorError
        From `check`, if the guide has no parameters to share.
    """

    kind: ClassVar[FusionKind] = "gradient"
    adds: ClassVar[bool] = True

    learning_rate: float = 0.01

    def check(self, fused: Fused) -> None:
        """Refuse a guide without shared parameters; serve any other."""
        if not fused.layout.shared:
            raise PosteriorError(
                "SummedGradients", "a guide with shared parameters", "none", "AutoNormal, stay=()"
            )

    def initial(self, fused: Fused) -> Tree:
        """Return the parameters themselves and moments of zero."""
        parameters = valued(fused.first)
        zeros = {
            f"{prefix}{name}": torch.zeros_like(leaf)
            for prefix in (FIRST, SECOND)
            for name, leaf in parameters.items()
        }
        return {**parameters, **zeros, COUNT: torch.zeros(())}

    def publish(self, state: Tree) -> Tree:
        """Publish the parameters without the moments."""
        return without(state, MOMENTS)

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Stay at the server's parameters."""
        return Start(under(state, VALUE), share)

    def finish(
        self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused
    ) -> tuple[Tree, Tree]:
        """Send the gradients."""
        return valued(parameters), {}

    def step(self, state: Tree, answers: WeightedSum, rate: float, fused: Fused) -> Tree:
        """Take one step of Adam on the sum, its learning rate times `rate`."""
        gradients, steps = answers.total, state[COUNT] + 1
        before, squares = under(state, FIRST), under(state, SECOND)
        first = {name: torch.lerp(leaf, before[name], 0.9) for name, leaf in gradients.items()}
        second = {
            name: torch.lerp(leaf.square(), squares[name], 0.999)
            for name, leaf in gradients.items()
        }
        size = self.learning_rate * rate * torch.sqrt(1 - 0.999**steps) / (1 - 0.9**steps)
        moved = {
            name: state[name] - size * first[name] / (second[name].sqrt() + 1e-8)
            for name in gradients
        }
        moments = {f"{FIRST}{name}": leaf for name, leaf in first.items()} | {
            f"{SECOND}{name}": leaf for name, leaf in second.items()
        }
        return {**moved, **moments, COUNT: steps}

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the parameters in the state."""
        return under(state, VALUE)
