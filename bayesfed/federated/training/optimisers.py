"""Optimisers of local work, as values. The torch optimiser is built anew for each client
and round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError


class Optimiser(Protocol):
    """A torch optimiser as a value."""

    @property
    def learning_rate(self) -> float:
        """Step size before any schedule."""
        ...

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return the torch optimiser of these leaves, with the learning rate of this round."""
        ...


def _rate(name: str, value: float) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 < value < float("inf")
    ):
        raise ArgumentError(f"{name}.learning_rate", "a positive number", repr(value), "1e-3")


@dataclass(frozen=True)
class Sgd:
    """Stochastic gradient descent with optional momentum and weight decay, as `torch.optim.SGD`.
    Momentum starts from zero in every round.

    Parameters
    ----------
    learning_rate
        Step size before any schedule.
    momentum
        Factor on the previous step in the next one, in [0, 1).
    weight_decay
        Factor on the weights, which are added to the gradient.

    Raises
    ------
    ArgumentError
        If the learning rate is not positive and finite.
    """

    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _rate("Sgd", self.learning_rate)

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return `torch.optim.SGD`."""
        return torch.optim.SGD(
            leaves, learning_rate, momentum=self.momentum, weight_decay=self.weight_decay
        )


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015). Its moments start from zero in every round.

    Parameters
    ----------
    learning_rate
        Step size before any schedule.

    Raises
    ------
    ArgumentError
        If the learning rate is not positive and finite.
    """

    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        _rate("Adam", self.learning_rate)

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return torch's `Adam`, fused."""
        return torch.optim.Adam(leaves, learning_rate, fused=True)


@dataclass(frozen=True)
class NaturalGradient:
    """Natural-gradient steps for independent Gaussians (`bayesfed.inference.variational.natural`),
    and another optimiser for other parameters.

    Parameters
    ----------
    learning_rate
        Share of the way to the target of a step, in (0, 1]. At 0.1 the earlier value is forgotten
        in about ten steps.
    others
        Optimiser of the parameters that do not belong to independent Gaussians.

    Raises
    ------
    ArgumentError
        If the learning rate is not in (0, 1].
    """

    learning_rate: float = 0.1
    others: Optimiser = Adam(1e-2)

    def __post_init__(self) -> None:
        if not 0 < self.learning_rate <= 1:
            raise ArgumentError(
                "NaturalGradient.learning_rate",
                "a number in (0, 1]",
                self.learning_rate,
                "NaturalGradient(0.1)",
            )

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimiser of the other parameters, its learning rate scaled by the same
        schedule.
        """
        return self.others.build(
            leaves, self.others.learning_rate * learning_rate / self.learning_rate
        )


@dataclass(frozen=True)
class Ivon:
    """IVON (`bayesfed.inference.variational.ivon`): natural-gradient steps on a network's means and
    sds, for `federated_svi` of a `bayesian` network.

    Parameters
    ----------
    learning_rate
        Step size of means, in units of a Newton step by coordinate.
    curvature_rate
        Share of the way of the precisions in a step: the sds' own rate.
    momentum
        Decay rate of the gradients' running mean, which starts from zero in every round.
    clip
        Largest step of a mean over `learning_rate`, in units of the weights.
    noise
        Whether weights are drawn. False: gradients are taken at the means (FedLap-Cov), and
        precisions at the end of the round, from squared gradients of single rows with drawn labels
        (generalised Gauss-Newton).

    Raises
    ------
    ArgumentError
        If a rate is not in (0, 1], the momentum not in [0, 1), or the clip not positive.
    """

    learning_rate: float = 0.1
    curvature_rate: float = 2e-3
    momentum: float = 0.9
    clip: float = 0.01
    noise: bool = True

    def __post_init__(self) -> None:
        if not (
            0 < self.learning_rate <= 1
            and 0 < self.curvature_rate <= 1
            and 0 <= self.momentum < 1
            and self.clip > 0
        ):
            actual = (self.learning_rate, self.curvature_rate, self.momentum, self.clip)
            raise ArgumentError(
                "Ivon", "rates in (0, 1], momentum in [0, 1), clip > 0", actual, "Ivon(0.1)"
            )

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Refuse: these are no steps on leaves.

        Raises
        ------
        ArgumentError
            Always.
        """
        raise ArgumentError(
            "Ivon",
            "federated_svi of bayesian(net) with Gaussian priors",
            "another method or model",
            "Adam(1e-3)",
        )
