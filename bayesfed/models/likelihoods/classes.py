"""Likelihoods of classes: without an order, and with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.nn import functional

from bayesfed.errors import DataError
from bayesfed.errors.checks import SCALE, checked_class, number
from bayesfed.errors.plurals import plural
from bayesfed.models.likelihoods.rows import RowLikelihood, Scored, observed

# Least distance of cumulative logits.
TINY = 1e-30


@checked_class({}, temperature=SCALE, smoothing=number("[0, 1)", "0.1"))
@dataclass(frozen=True)
class Categorical:
    """The likelihood of class labels ``0 .. C-1``, given logits ``(B, C)`` of a network.

    Parameters
    ----------
    temperature
        Divisor of the log likelihood. 1 is Bayes' rule; below 1 the data count more (a cold
        posterior; Wenzel et al., 2020). Default None: 1, unless the method chooses one, as
        `d_turbo_vbi` does.
    weights
        A weight of each class, which its rows' log likelihoods are multiplied by; C of them. A mean
        divides by the number of rows, not by their weights. Predictions know no weights.
    smoothing
        Share of a label that is spread over all classes.

    Raises
    ------
    ArgumentError
        If the temperature is not positive, or the smoothing is outside [0, 1).
    DataError
        From `check`, if targets are not integers ``(B,)`` below C, or weights are not C numbers
        from 0.
    """

    # Axis of the outputs with the classes.
    axis: ClassVar[int] = 1

    temperature: float | None = field(default=None, kw_only=True)
    weights: tuple[float, ...] | None = None
    smoothing: float = 0.0

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        if self.plain:
            return functional.cross_entropy(output, targets)
        return -self.pointwise(output, targets).mean()

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log probability of each row's class, weighted and smoothed."""
        weights = None if self.weights is None else output.new_tensor(self.weights)
        return -functional.cross_entropy(
            output, targets, weights, reduction="none", label_smoothing=self.smoothing
        )

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the categorical distribution of each row's class."""
        return dist.Categorical(logits=output)

    def at(self, output: Tensor, targets: Tensor) -> tuple[Any, Tensor]:
        """Return the distribution of the labels, and the labels."""
        return self.distribution(output), targets

    def counts(self, targets: Tensor) -> Tensor:
        """Return which labels count: all."""
        return torch.ones_like(targets, dtype=torch.bool)

    def observe(self, output: Tensor, targets: Tensor | None, scale: float) -> Tensor:
        """Sample or observe the site ``y``."""
        given = self.distribution(output)
        if not self.plain:
            given = Scored(self, output, given, known=False)
        return observed(self, given, targets, scale)

    @property
    def plain(self) -> bool:
        """Whether there are neither weights nor smoothing."""
        return self.weights is None and not self.smoothing

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless outputs are ``(B, C)`` and labels integers below C."""
        if are_probabilities(output[:2]):
            actual = "probabilities: rows without negatives, each with a sum of 1"
            hint = "the network without its last softmax"
            raise DataError("Categorical", "logits (B, C)", actual, hint)
        if output.ndim != 2 or targets.shape != output.shape[:1] or targets.is_floating_point():
            raise DataError(
                "Categorical",
                "logits (B, C) and integer labels (B,)",
                f"{tuple(output.shape)} and {tuple(targets.shape)} of {targets.dtype}",
                labels_instead(output, targets),
            )
        if self.weights is not None and (
            len(self.weights) != output.shape[1] or min(self.weights) < 0
        ):
            count = output.shape[1]
            expected, hint = f"{count} numbers from 0", f"weights=(1.0,) * {count}"
            raise DataError("Categorical, weights", expected, self.weights, hint)
        least, most = map(int, targets.aminmax()) if targets.numel() else (0, 0)
        if not 0 <= least <= most < output.shape[1]:
            outputs = f"a last layer with {plural(most + 1, 'output')}"
            raise DataError(
                "Categorical labels",
                f"0 to {output.shape[1] - 1}, the network's outputs",
                f"{least} to {most}",
                "labels.unique(return_inverse=True)[1]" if least < 0 else outputs,
            )


@checked_class({}, temperature=SCALE)
@dataclass(frozen=True)
class Ordinal(RowLikelihood):
    """Ordered classes ``0 .. C-1`` from outputs ``(B, C - 1)``.

    They are the logit of P(y <= 0), and what it rises by to each next class, by a softplus.

    Parameters
    ----------
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the temperature is not positive.
    DataError
        From `check`, if targets are not whole numbers ``(B,)`` from 0 to C - 1.
    """

    temperature: float | None = field(default=None, kw_only=True)
    words: ClassVar[str] = "classes from 0, one more than there are outputs"

    @staticmethod
    def made(eta: Tensor, more: Mapping[str, Any], known: Any) -> Any:
        """Return the classes of a predictor and of the shares that classes have where it is 0."""
        return cumulative(cutpoints(more["shares"]) - eta[..., None])

    def given(self, output: Tensor, known: Tensor | float = 1.0) -> Any:
        """Return the distribution of each row's class."""
        rises = torch.cat([output[:, :1], functional.softplus(output[:, 1:])], 1)
        return cumulative(rises.cumsum(1))


def cutpoints(shares: Tensor) -> Tensor:
    """Return the cutpoints of an ordinal response, ``(..., C - 1)``, of its classes' shares where
    the predictor is 0.
    """
    return shares.cumsum(-1)[..., :-1].logit()


def cumulative(below: Tensor) -> dist.Categorical:
    """Return the classes with ``P(y <= c) = sigmoid(below_c)``, ``(..., C - 1)``."""
    # sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)): also far from 0.
    gaps = below.diff(dim=-1).clamp_min(TINY)
    parts = (
        functional.pad(functional.logsigmoid(below), (0, 1)),
        functional.pad(functional.logsigmoid(-below), (1, 0)),
        functional.pad((-torch.expm1(-gaps)).log(), (1, 1)),
    )
    return dist.Categorical(logits=torch.stack(parts).sum(0))


def are_probabilities(output: Tensor) -> bool:
    """Return whether outputs ``(B, C)`` are the probabilities of several classes."""
    if output.ndim != 2 or not len(output) or output.shape[1] < 2:
        return False
    off = (output.double().sum(1) - 1).abs().max() + output.clamp(max=0).abs().max()
    # Rounding of a softmax in half precision, too.
    return float(off) < (1e-2 if output.element_size() < 4 else 1e-5)


def labels_instead(output: Tensor, targets: Tensor) -> str:
    """Return what to make of targets that are no labels ``(B,)``."""
    if output.ndim == targets.ndim + 1 > 2:
        axis = -1 if output.shape[:-1] == targets.shape else 1
        whole = f"likelihood=bayesfed.models.Labels(axis={axis})"
        return "targets.long()" if targets.is_floating_point() else whole
    if output.ndim != 2:
        return "a network with one row of outputs for each row of inputs"
    fractions = targets.is_floating_point() and not (targets == targets.round()).all()
    if fractions or (targets.is_floating_point() and output.shape[1] == 1):
        return "likelihood=Normal() for numbers"
    if targets.ndim == 2 and targets.shape[1] == 1:
        return "targets[:, 0]" if not targets.is_floating_point() else "targets[:, 0].long()"
    if (
        targets.ndim == 2
        and targets.shape[1] > 1
        and (((targets == 0) | (targets == 1)).all() and (targets.sum(1) == 1).all())
    ):
        return "targets.argmax(1), since they are one-hot"
    return "targets.long()" if targets.shape == output.shape[:1] else "one label a row, (B,)"
