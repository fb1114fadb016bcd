"""Optimisers of the server, as values: FedAvgM, FedAdagrad, FedAdam and FedYogi.

The change that a round of averaging would make is taken as a negative gradient, and the server
steps along it.

===========================  ==================================================================
Reddi et al. (2021), Alg. 2  here
===========================  ==================================================================
x_t                          the model before the round
Delta_t                      the averaged model minus x_t
m_t, v_t                     leaves of the state with the prefixes of `MOMENTUM` and `VARIANCE`
eta, beta_1, beta_2, tau     `learning_rate`, `beta1`, `beta2`, `tau`
===========================  ==================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bayesfed.errors.checks import checked_class, number
from bayesfed.trees import Tree, under

# Prefixes of the moments.
MOMENTUM, VARIANCE = "m/", "v/"
POSITIVE, DECAY = number("(0, inf)", "0.01"), number("[0, 1)", "0.9")


class ServerOptimiser(Protocol):
    """An optimiser of the server as a value. Its moments are leaves of the server's state, so they
    are saved and resumed with it.
    """

    def initial(self, model: Tree) -> Tree:
        """Return the moments before round 0."""

    def step(self, model: Tree, averaged: Tree, moments: Tree) -> tuple[Tree, Tree]:
        """Return the next model and the next moments.

        Parameters
        ----------
        model
            Model before the round.
        averaged
            Model that plain averaging would make of the round.
        moments
            Moments after the round before.
        """


@checked_class({}, learning_rate=POSITIVE, momentum=DECAY)
@dataclass(frozen=True)
class FedAvgM:
    """Server momentum: ``m <- momentum m + Delta``, ``x <- x + learning_rate m`` (Hsu, Qi and
    Brown, 2019).

    With momentum 0 and rate 1 it is plain averaging, bit for bit.

    Parameters
    ----------
    learning_rate
        Rate of the server's step.
    momentum
        Factor on the previous step, in [0, 1).

    Raises
    ------
    ArgumentError
        If a number is outside its domain.

    References
    ----------
    Hsu, Qi and Brown, "Measuring the effects of non-identical data distribution for federated
    visual classification" (2019), section 4.3.
    """

    learning_rate: float = 1.0
    momentum: float = 0.9
    momentum_alone: ClassVar[bool] = True

    def initial(self, model: Tree) -> Tree:
        """Return zeros, or nothing without momentum."""
        moved = model if self.momentum else {}
        return {MOMENTUM + name: torch.zeros_like(leaf) for name, leaf in moved.items()}

    def step(self, model: Tree, averaged: Tree, moments: Tree) -> tuple[Tree, Tree]:
        """Return the next model and the next momentum."""
        # `lerp` with weight 1 returns its end exactly, so that plain averaging is a special case
        # without rounding.
        stepped = {
            name: leaf.lerp(averaged[name], self.learning_rate) for name, leaf in model.items()
        }
        if not self.momentum:
            return stepped, {}
        kept = {name: self.momentum * leaf for name, leaf in under(moments, MOMENTUM).items()}
        stepped = {name: leaf + self.learning_rate * kept[name] for name, leaf in stepped.items()}
        return stepped, {
            MOMENTUM + name: leaf + (averaged[name] - model[name]) for name, leaf in kept.items()
        }


@checked_class({}, learning_rate=POSITIVE, beta1=DECAY, beta2=DECAY, tau=POSITIVE)
@dataclass(frozen=True)
class Adaptive(ABC):
    """The parts that FedAdagrad, FedAdam and FedYogi share:
    ``x <- x + learning_rate m / (sqrt(v) + tau)``.

    Parameters
    ----------
    learning_rate
        eta, about the largest change of an entry in a round.
    beta1
        Factor on the previous first moment, in [0, 1).
    beta2
        Factor on the previous second moment, in [0, 1). `FedAdagrad` does not use it.
    tau
        Degree of adaptivity: changes far below it are not scaled up. The second moment begins at
        ``tau ** 2``.

    Raises
    ------
    ArgumentError
        If a number is outside its domain.
    """

    learning_rate: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def initial(self, model: Tree) -> Tree:
        """Return zero first moments, and second moments of ``tau ** 2``."""
        first = {MOMENTUM + name: torch.zeros_like(leaf) for name, leaf in model.items()}
        return first | {
            VARIANCE + name: torch.full_like(leaf, self.tau**2) for name, leaf in model.items()
        }

    def step(self, model: Tree, averaged: Tree, moments: Tree) -> tuple[Tree, Tree]:
        """Return the next model and the next moments (Reddi et al., 2021, Algorithm 2)."""
        first, second = under(moments, MOMENTUM), under(moments, VARIANCE)
        change = {name: averaged[name] - leaf for name, leaf in model.items()}
        m = {
            name: self.beta1 * first[name] + (1 - self.beta1) * leaf
            for name, leaf in change.items()
        }
        v = {name: self._second(second[name], leaf.square()) for name, leaf in change.items()}
        stepped = {
            name: leaf + self.learning_rate * m[name] / (v[name].sqrt() + self.tau)
            for name, leaf in model.items()
        }
        return stepped, {MOMENTUM + name: leaf for name, leaf in m.items()} | {
            VARIANCE + name: leaf for name, leaf in v.items()
        }

    @abstractmethod
    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the next second moment."""


class FedAdagrad(Adaptive):
    """Adagrad on the server: ``v <- v + Delta^2``, and the step of `FedAdam`.

    Parameters
    ----------
    learning_rate, beta1, beta2, tau
        As in `FedAdam`; `beta2` is not used.

    References
    ----------
    Reddi et al., "Adaptive federated optimization" (2021), Algorithm 2.
    """

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


class FedAdam(Adaptive):
    """Adam on the server: ``m <- beta1 m + (1 - beta1) Delta``,
    ``v <- beta2 v + (1 - beta2) Delta^2``, ``x <- x + learning_rate m / (sqrt(v) + tau)``, where
    Delta is the mean change of a round.

    Parameters
    ----------
    learning_rate
        eta, about the largest change of an entry in a round.
    beta1, beta2
        Factors on the previous first and second moment, in [0, 1).
    tau
        Degree of adaptivity: changes far below it are not scaled up. The second moment begins at
        ``tau ** 2``.

    Raises
    ------
    ArgumentError
        If a number is outside its domain.

    References
    ----------
    Reddi et al., "Adaptive federated optimization" (2021), Algorithm 2.
    """

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


class FedYogi(Adaptive):
    """Yogi on the server: ``v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)``, and the step of
    `FedAdam`.

    Parameters
    ----------
    learning_rate, beta1, beta2, tau
        As in `FedAdam`.

    References
    ----------
    Reddi et al., "Adaptive federated optimization" (2021), Algorithm 2.
    """

    def _second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * (v - square).sign()
