"""Optimisers of local work, as values, and schedules: functions from the number of the round to a
factor on the learning rate. The torch optimiser is built anew for each client and round.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, checked_class, number, whole
from bayesfed.errors.roles import Role


def uncompiled(kind: Any) -> Any:
    """Return a torch optimiser without the marks for torch's compiler, which is imported for them:
    seconds of every process that trains.
    """
    bare = {name: inspect.unwrap(getattr(kind, name)) for name in ("add_param_group", "step")}
    return type(kind.__name__, (kind,), {**bare, "step": torch.no_grad()(bare["step"])})


SGD, ADAM, ADAMW = map(uncompiled, (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW))
POSITIVE, SHARE = number("(0, inf)", "1e-3"), number("(0, 1]", "0.1")


BETAS = Role(
    lambda value: (
        isinstance(value, tuple | list) and len(value) == 2 and all(0 <= one < 1 for one in value)
    ),
    "two numbers in [0, 1)",
    "(0.9, 0.999)",
)


def clipped(
    made: torch.optim.Optimizer, leaves: list[Tensor], norm: float
) -> torch.optim.Optimizer:
    """Return an optimiser that scales larger gradients down to a norm before every step."""

    def clip(*_: object) -> None:
        nn.utils.clip_grad_norm_(leaves, norm)

    if norm < math.inf:
        made.register_step_pre_hook(clip)
    return made


class Optimiser(Protocol):
    """A torch optimiser as a value."""

    @property
    def learning_rate(self) -> float:
        """Step size before any schedule."""

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return the torch optimiser of these leaves, with the learning rate of this round."""


@checked_class(
    {},
    learning_rate=POSITIVE,
    momentum=number("[0, 1)", "0.9"),
    weight_decay=number("[0, inf)", "1e-4"),
    clip=number("(0, inf]", "1.0"),
)
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
    clip
        As in `Adam`.

    Raises
    ------
    ArgumentError
        If the learning rate is not positive and finite.
    """

    learning_rate: float = 0.05
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float = math.inf

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return `torch.optim.SGD`."""
        decay = self.weight_decay
        # All leaves in one call, which is the same steps; decayed gradients are copies, of one leaf
        # at a time.
        made = SGD(
            leaves,
            learning_rate,
            self.momentum,
            weight_decay=decay,
            foreach=None if decay else True,
        )
        return clipped(made, leaves, self.clip)


@checked_class(
    {},
    learning_rate=POSITIVE,
    betas=BETAS,
    weight_decay=number("[0, inf)", "0.01"),
    clip=number("(0, inf]", "1.0"),
)
@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba, 2015). Its moments start from zero in every round.

    Parameters
    ----------
    learning_rate
        Step size before any schedule.
    betas
        Decay rates of the running means of gradients and of their squares.
    weight_decay
        Share of the weights that a step of rate 1 takes off, apart from the gradient (AdamW,
        Loshchilov and Hutter, 2019). Tensors of one dimension, biases and norms, do not decay.
    clip
        Largest norm of the gradient of all leaves together; a larger one is scaled down to it.

    Raises
    ------
    ArgumentError
        If the learning rate or `clip` is not positive, a beta is outside [0, 1), or the decay is
        negative.
    """

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    clip: float = math.inf

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return torch's `Adam`, fused, or `AdamW` where weights decay."""
        if not self.weight_decay:
            return clipped(ADAM(leaves, learning_rate, self.betas, fused=True), leaves, self.clip)
        decay = self.weight_decay
        groups = [
            {"params": [leaf for leaf in leaves if leaf.ndim < 2], "weight_decay": 0.0},
            {"params": [leaf for leaf in leaves if leaf.ndim > 1], "weight_decay": decay},
        ]
        made = ADAMW(groups, learning_rate, self.betas, fused=True)
        return clipped(made, leaves, self.clip)


@checked_class({}, learning_rate=SHARE)
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

    def build(self, leaves: list[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """Return the optimiser of the other parameters, its learning rate scaled by the same
        schedule.
        """
        return self.others.build(
            leaves, self.others.learning_rate * learning_rate / self.learning_rate
        )


@checked_class(
    {},
    learning_rate=SHARE,
    curvature_rate=SHARE,
    momentum=number("[0, 1)", "0.9"),
    clip=number("(0, inf]", "0.01"),
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


Schedule = Callable[[int], float]
"""``round -> factor on the learning rate``."""


def constant(round: int) -> float:
    """Return 1: the learning rate stays the same."""
    return 1.0


@checked(floor=number("(0, 1]", "cosine(0.1, 40)"), rounds=whole(1, "cosine(0.1, 40)"))
def cosine(floor: float, rounds: int) -> Schedule:
    """Return half a cosine from 1 in the first round to `floor` in the last (Loshchilov and Hutter,
    2017, without restarts).

    Parameters
    ----------
    floor
        Factor in the last round and after it, in (0, 1].
    rounds
        Number of rounds.

    Raises
    ------
    ArgumentError
        If `floor` is not in (0, 1], or `rounds` is below 1.
    """
    last = max(1, rounds - 1)
    return lambda round: floor + (1 - floor) * (1 + math.cos(math.pi * min(round, last) / last)) / 2


@checked(scale=number("(0, inf]", "20"))
def inverse(scale: float) -> Schedule:
    """Return the schedule ``1 / (1 + round / scale)``, whose sum diverges and whose sum of squares
    converges (D-Turbo-VBI (25)).

    Parameters
    ----------
    scale
        Number of the round at which the factor is 1/2.

    Raises
    ------
    ArgumentError
        If `scale` is not above 0.
    """
    return lambda round: 1 / (1 + round / scale)
