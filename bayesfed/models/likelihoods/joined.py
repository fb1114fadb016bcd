"""Likelihoods made of others: rows that have weights, several outcomes, labels by place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import SCALE, checked_class, one_of
from bayesfed.errors.plurals import plural
from bayesfed.models.likelihoods.classes import Categorical, labels_instead
from bayesfed.models.likelihoods.rows import Likelihood, RowLikelihood, Scored, expected, outcomes


@checked_class({}, temperature=SCALE)
@dataclass(frozen=True)
class Weighted(RowLikelihood):
    """Rows with a weight, the last column of targets, which multiplies their log likelihood.

    Parameters
    ----------
    likelihood
        Likelihood of the columns before; labels of classes are one column.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the temperature is not positive, or the likelihood has one of its own.
    DataError
        From `check`, if a weight is negative, or the other columns do not fit the likelihood.
    """

    likelihood: Likelihood
    temperature: float | None = None

    def __post_init__(self) -> None:
        _without_temperature("Weighted", [self.likelihood])

    @property
    def known(self) -> bool:
        """The weight is."""
        return True

    def given(self, output: Tensor, known: Tensor | float = 1.0) -> Any:
        """Return the distribution of each row's target."""
        return self.likelihood.distribution(output)

    def at(self, output: Tensor, targets: Tensor) -> tuple[Any, Tensor]:
        """Return the distribution of outcomes, and the outcomes without weights."""
        made = self.likelihood.distribution(output)
        return outcomes(made, _typed(made, targets[:, :-1]))

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log likelihood of each row, times its weight."""
        made = self.likelihood.distribution(output)
        return targets[:, -1] * self.likelihood.pointwise(output, _typed(made, targets[:, :-1]))

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless the last column is a weight from 0 and the others fit."""
        if targets.ndim != 2 or targets.shape[1] < 2 or not (targets[:, -1] >= 0).all():
            expected = "targets (B, K + 1), the last column a weight from 0"
            hint = "torch.cat([targets.reshape(len(targets), -1), torch.ones(len(targets), 1)], 1)"
            raise DataError("Weighted", expected, f"{tuple(targets.shape)}", hint)
        _check(self.likelihood, output, targets[:, :-1])


@checked_class({}, temperature=SCALE)
@dataclass(frozen=True)
class Several(RowLikelihood):
    """Several outcomes of a row, independent given the outputs that each has of its own.

    Parameters
    ----------
    likelihoods
        One for each outcome. Targets are their columns, in this order; labels of classes are one.
    outputs
        Number of outputs of the network that each takes.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the temperature is not positive, a likelihood has one of its own, or there are not as
        many numbers of outputs as likelihoods.
    DataError
        From `check`, if columns do not fit their likelihood.
    """

    likelihoods: tuple[Likelihood, ...]
    outputs: tuple[int, ...]
    temperature: float | None = None

    def __post_init__(self) -> None:
        _without_temperature("Several", self.likelihoods)
        if len(self.outputs) != len(self.likelihoods) or min(self.outputs, default=0) < 1:
            expected = f"{len(self.likelihoods)} numbers from 1, one for each likelihood"
            hint = f"outputs=(1,) * {len(self.likelihoods)}"
            raise ArgumentError("Several, outputs", expected, self.outputs, hint)

    @property
    def width(self) -> int | None:
        """All of them."""
        return sum(self.outputs)

    def given(self, output: Tensor, known: Tensor | float = 1.0) -> Any:
        """Return the distribution of each row's targets, their columns one after another."""
        return Joined(self.likelihoods, output.split(self.outputs, 1))

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless outputs and targets have the columns of all likelihoods, and
        each fits.
        """
        if output.ndim != 2 or output.shape[1] != self.width:
            expected, hint = (
                f"outputs (B, {self.width})",
                f"a last layer with {plural(self.width or 0, 'output')}",
            )
            raise DataError("Several", expected, tuple(output.shape), hint)
        made = self.given(output)
        if targets.shape != (len(output), *made.event_shape):
            sizes = [f"{type(one).__name__} {cut.stop - cut.start}" for one, _, cut in made.parts]
            expected = f"targets (B, {made.event_shape[0]}): {', '.join(sizes)}"
            hint = "torch.cat of the columns of all outcomes, labels as one"
            raise DataError("Several", expected, tuple(targets.shape), hint)
        made.check(targets)


@checked_class({}, axis=one_of((-1, 1)), temperature=SCALE)
@dataclass(frozen=True)
class Labels(RowLikelihood):
    """Classes of the places of a row, of tokens ``(B, T)`` or pixels ``(B, H, W)``. The log
    likelihood of a row is the sum of those of its labels; scores are means over labels.

    Parameters
    ----------
    likelihood
        Likelihood of a label.
    ignored
        Label of places that do not count.
    axis
        Axis of the outputs with the classes: -1 for ``(B, T, C)``, 1 for ``(B, C, H, W)``.
    temperature
        As in `Categorical`.

    Raises
    ------
    ArgumentError
        If the axis is another, the temperature is not positive, or the likelihood has one of its
        own.
    DataError
        From `check`, if targets are not whole labels of all places below C, or ignored.
    """

    likelihood: Categorical = Categorical()
    ignored: int = -100
    axis: int = -1
    temperature: float | None = None

    def __post_init__(self) -> None:
        _without_temperature("Labels", [self.likelihood])

    def distribution(self, output: Tensor) -> dist.TorchDistribution:
        """Return the distribution of each row's labels; draws have one where none counts, too."""
        places = self.likelihood.distribution(output.movedim(self.axis, -1))
        return Scored(self, output, places.to_event(output.ndim - 2), known=False)

    def at(self, output: Tensor, targets: Tensor) -> tuple[Any, Tensor]:
        """Return the distribution of the labels that count, and these."""
        return self.likelihood.at(*self.counted(output, targets))

    def counts(self, targets: Tensor) -> Tensor:
        """Return which labels count."""
        return targets != self.ignored

    def counted(self, output: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs ``(L, C)`` and labels ``(L,)`` of the places that count; `DataError` if
        shapes do not fit.
        """
        counts = self.counts(targets)
        return self._last(output, targets)[counts], targets[counts]

    def pointwise(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the log likelihood of each row's labels."""
        logits, counts = output.movedim(self.axis, -1), self.counts(targets)
        labels = targets.where(counts, 0).flatten()
        each = self.likelihood.pointwise(logits.flatten(0, -2), labels)
        return torch.where(counts, each.reshape(targets.shape), 0.0).reshape(len(output), -1).sum(1)

    def check(self, output: Tensor, targets: Tensor) -> None:
        """Raise `DataError` unless the targets are labels of all places, or ignored."""
        logits = self._last(output, targets)
        labels = targets[self.counts(targets)]
        if labels.numel() and int(labels.min()) < 0:
            odd = int(labels.min())
            raise DataError("Labels", f"labels from 0, or {self.ignored}", odd, f"ignored={odd}")
        # A view: all logits of all rows may not fit into memory.
        first = logits[:1].reshape(-1, logits.shape[-1])[:1]
        self.likelihood.check(first.expand(len(labels), -1), labels)

    def _last(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return outputs with the classes in the last axis, one for each label."""
        logits = output.movedim(self.axis, -1)
        if logits.shape[:-1] != targets.shape or targets.is_floating_point():
            expected = f"outputs with classes in axis {self.axis}, and whole labels of all places"
            actual = f"{tuple(output.shape)} and {tuple(targets.shape)} of {targets.dtype}"
            raise DataError("Labels", expected, actual, labels_instead(output, targets))
        return logits


class Joined(dist.TorchDistribution):
    """The distribution of several outcomes, their columns one after another.

    Parameters
    ----------
    likelihoods, outputs
        One of each for each outcome.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.independent(constraints.real, 1)

    def __init__(self, likelihoods: Sequence[Likelihood], outputs: Sequence[Tensor]) -> None:
        self.made = [one.distribution(part) for one, part in zip(likelihoods, outputs, strict=True)]
        ends = [0, *accumulate(one.event_shape.numel() for one in self.made)]
        cuts = [slice(*ends[place : place + 2]) for place in range(len(self.made))]
        self.parts = list(zip(likelihoods, outputs, cuts, strict=True))
        super().__init__(outputs[0].shape[:1], torch.Size([ends[-1]]), validate_args=False)

    @property
    def mean(self) -> Tensor:
        """The means of all outcomes, of classes their probabilities, one after another."""
        return torch.cat(
            [expected(made).reshape(len(self.parts[0][1]), -1) for made in self.made], 1
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the sum of the log likelihoods of each row's outcomes."""
        if dist.is_validation_enabled():
            self.check(value)
        each = [
            one.pointwise(part, _typed(one.distribution(part), value[:, cut]))
            for one, part, cut in self.parts
        ]
        return torch.stack(each).sum(0)

    def check(self, targets: Tensor) -> None:
        """Raise `DataError` unless each likelihood has such targets."""
        for one, part, cut in self.parts:
            _check(one, part.detach(), targets[:, cut])

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw all outcomes."""
        drawn = [made.sample(torch.Size(sample_shape)) for made in self.made]
        like = self.parts[0][1]
        shape = (*sample_shape, *self.batch_shape, -1)
        return torch.cat([one.to(like.dtype).reshape(shape) for one in drawn], -1)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Joined:
        """Return itself: a row has one distribution."""
        return self


def _typed(made: Any, columns: Tensor) -> Tensor:
    """Return columns of numbers as the targets of a distribution: labels are one, whole."""
    if made.event_shape:
        return columns
    return columns[:, 0].long() if made.support.is_discrete else columns[:, 0]


def _check(likelihood: Likelihood, output: Tensor, columns: Tensor) -> None:
    made = likelihood.distribution(output)
    if not made.event_shape and not (columns == columns.round()).all():
        name = type(likelihood).__name__
        raise DataError(name, "whole labels", columns[:3].tolist(), "another likelihood")
    likelihood.check(output, _typed(made, columns))


def _without_temperature(where: str, likelihoods: Sequence[Likelihood]) -> None:
    for one in likelihoods:
        if one.temperature is not None:
            expected, hint = "one temperature, of the whole", f"{where}(..., temperature=1.0)"
            raise ArgumentError(where, expected, f"{one.temperature} of a part", hint)
