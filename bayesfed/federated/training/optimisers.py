"""Optimisers of local work, as values: built anew for each client and round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, complain


class Optimiser(Protocol):
    """A torch optimiser as a value."""

    @property
    def learning_rate(self) -> float:
        """Step size before any schedule."""
        ...

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimiser over these leaves."""
        ...


def _rate(name: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise ArgumentError(complain(f"{name}.learning_rate", expected="a positive number", actual=value, hint="1e-3"))


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with optional momentum and weight decay, as `torch.optim.SGD`; momentum begins anew every round.

    Parameters
    ----------
    learning_rate
        Of a step, before the method's schedule.
    momentum
        Share of the last step that the next one keeps, in [0, 1).
    weight_decay
        What is added to the gradient, times the weight.

    Raises
    ------
    ArgumentError
        If the rate is not positive.
    """

    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _rate("Sgd", self.learning_rate)

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return `torch.optim.SGD`."""
        return torch.optim.SGD(leaves, learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015), its moments fresh every round.

    Parameters
    ----------
    learning_rate
        Of a step, before the method's schedule.

    Raises
    ------
    ArgumentError
        If the rate is not positive.
    """

    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        _rate("Adam", self.learning_rate)

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return torch's fused `Adam`."""
        return torch.optim.Adam(leaves, learning_rate, fused=True)


@dataclass(frozen=True)
class NaturalGradient:
    """Natural-gradient steps for independent Gaussians (`bayesfed.inference.variational.natural`), another optimiser for the rest.

    Parameters
    ----------
    learning_rate
        How far a step goes to where the gradient points, at most 1: 0.1 forgets what was there in ten steps.
    others
        For parameters that are not of independent Gaussians.

    Raises
    ------
    ArgumentError
        If the rate is not above 0 and at most 1.
    """

    learning_rate: float = 0.1
    others: Optimiser = Adam(1e-2)

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise ArgumentError(
                complain("NaturalGradient.learning_rate", expected="a number in (0, 1]", actual=self.learning_rate, hint="NaturalGradient(0.1)")
            )

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimiser of the rest, its rate shrunk by the same schedule."""
        return self.others.build(leaves, self.others.learning_rate * learning_rate / self.learning_rate)
