"""The posterior predictive distribution at given inputs, from S draws of the parameters:
``1/S sum_s p(y | x, theta_s)``.

S draws, B rows, C classes. Scores are those of the mixture over draws, which is the prediction, not
means of the draws' scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any, Protocol, runtime_checkable

import pyro.distributions as dist
import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.errors import ArgumentError, DataError, PosteriorError
from bayesfed.inference.evaluation import scoring
from bayesfed.inference.evaluation.detection import (
    adaptive_calibration_error,
    selective,
    uncertainties,
)
from bayesfed.inference.variational.posterior import expected
from bayesfed.keys import Key, forked
from bayesfed.trees import Tree

LEVELS = (0.5, 0.8, 0.95)


class Observing(Protocol):
    """The part of a posterior that predicts."""

    def draw(self, key: Key) -> Tree:
        """Return one draw of every site."""
        ...

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets at one draw, batch ``(B,)``."""
        ...


@runtime_checkable
class Enumerated(Protocol):
    """A posterior of a few points of equal weight, which are taken once each in place of draws."""

    @property
    def members(self) -> Sequence[Tree]:
        """The points."""
        ...


@runtime_checkable
class ObservingDraws(Protocol):
    """A posterior that predicts at many draws together, at less cost than at one after another."""

    def observe_draws(self, draws: Sequence[Tree], inputs: Tensor) -> Sequence[TorchDistribution]:
        """Return the distribution of the targets at every draw, batch ``(B,)``."""
        ...


@dataclass(frozen=True, eq=False)
class Predictive:
    """What a posterior predicts for some inputs. Everything is computed when it is first asked for,
    and kept.

    Parameters
    ----------
    posterior
        Any object with `draw` and `observe`.
    inputs
        ``(B, ...)``.
    key
        Names the draws: equal keys give equal predictions.
    count
        S, the number of draws of the parameters. Of an `Enumerated` posterior S is the number of
        its members.
    batch_size
        Rows predicted at a time. If rows depend on each other given the parameters, it must be at
        least B.

    Raises
    ------
    ArgumentError
        If there are no inputs, or count or batch_size is below 1.
    """

    posterior: Observing
    inputs: Tensor
    key: Key
    count: int = 100
    batch_size: int = 2000

    def __post_init__(self) -> None:
        if not self.inputs.ndim or not len(self.inputs):
            raise ArgumentError(
                "Predictive", "inputs (B, ...)", tuple(self.inputs.shape), "at least one row"
            )
        if min(self.count, self.batch_size) < 1 or not all(
            isinstance(value, Integral) for value in (self.count, self.batch_size)
        ):
            actual = (self.count, self.batch_size)
            raise ArgumentError(
                "Predictive", "whole draws and batch_size >= 1", actual, "100 draws"
            )

    @cached_property
    def _distributions(self) -> list[list[Any]]:
        """Return the distribution of the targets by draw and batch of rows."""
        if isinstance(self.posterior, ObservingDraws):
            drawn = [
                self.posterior.draw(self.key.child("draw", number)) for number in range(self.count)
            ]
            by_part = [
                self.posterior.observe_draws(drawn, self.inputs[part]) for part in self._parts
            ]
            return [
                self._sound([given[number] for given in by_part]) for number in range(self.count)
            ]
        distributions: list[list[Any]] = []
        members = self.posterior.members if isinstance(self.posterior, Enumerated) else None
        for number in range(self.count if members is None else len(members)):
            draw = (
                self.posterior.draw(self.key.child("draw", number))
                if members is None
                else members[number]
            )
            key = self.key.child("observe", number)
            distributions.append(
                self._sound(
                    [
                        self.posterior.observe(draw, self.inputs[part], key.child(part.start))
                        for part in self._parts
                    ]
                )
            )
        return distributions

    def _sound(self, distributions: list[Any]) -> list[Any]:
        """Return the distributions of all parts if each has one target a row."""
        for part, given in zip(self._parts, distributions, strict=True):
            batch, rows = tuple(given.batch_shape), (len(self.inputs[part]),)
            if batch != rows:
                raise PosteriorError(
                    "Predictive", f"one target a row, batch {rows}", batch, "a plate over rows"
                )
        return distributions

    @property
    def _parts(self) -> list[slice]:
        return [
            slice(start, start + self.batch_size)
            for start in range(0, len(self.inputs), self.batch_size)
        ]

    @property
    def _event(self) -> tuple[int, ...]:
        return tuple(self._distributions[0][0].event_shape)

    @property
    def classes(self) -> bool:
        """Whether each row's target is one class: categorical or Bernoulli."""
        return isinstance(self._distributions[0][0], dist.Categorical | dist.Bernoulli)

    @cached_property
    def probabilities(self) -> Tensor:
        """p(y = c | x_b, theta_s), ``(S, B, C)``; two classes for Bernoulli targets.

        Raises
        ------
        PosteriorError
            If a row's target is not one class.
        """
        if not self.classes:
            actual = f"{type(self._distributions[0][0]).__name__} of shape {self._event}"
            raise PosteriorError(
                "Predictive.probabilities", "categorical or Bernoulli targets", actual, "mean"
            )
        return self._stacked(expected)

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the predictive distribution, ``(B, ...)``; for classes their probabilities,
        ``(B, C)``.

        Raises
        ------
        PosteriorError
            If the distribution of the targets has no mean that Pyro knows.
        """
        try:
            return self.probabilities.mean(0) if self.classes else self._stacked(expected).mean(0)
        except NotImplementedError as problem:
            actual = type(self._distributions[0][0]).__name__
            raise PosteriorError(
                "Predictive.mean", "a distribution with a mean", actual, "draws(key)"
            ) from problem

    def draws(self, key: Key) -> Tensor:
        """Return draws of the targets from the predictive distribution, one per draw of the
        parameters, ``(S, B, ...)``.
        """
        rows = []
        for number, batches in enumerate(self._distributions):
            with forked(key.child("respond", number)):
                rows.append(torch.cat([given.sample() for given in batches]))
        return torch.stack(rows)

    def log_likelihood(self, targets: Tensor) -> Tensor:
        """Return log p(y_b | x_b, theta_s), ``(S, B)`` in nats.

        Raises
        ------
        DataError
            If the targets have another shape than the predictions, or a value that the model cannot
            draw.
        """
        shape = (len(self.inputs), *self._event)
        if tuple(targets.shape) != shape:
            raise DataError(
                "Predictive, targets", f"shape {shape}", tuple(targets.shape), "one target a row"
            )
        if self.classes:
            self._labels(targets)
        coin = isinstance(self._distributions[0][0], dist.Bernoulli)
        values = (
            targets.to(torch.get_default_dtype())
            if coin and not targets.is_floating_point()
            else targets
        )
        try:
            rows = [
                [
                    given.log_prob(values[part])
                    for part, given in zip(self._parts, batches, strict=True)
                ]
                for batches in self._distributions
            ]
        except ValueError as problem:
            actual = str(problem).splitlines()[0]
            raise DataError(
                "Predictive, targets", "values the model can draw", actual, "draws(key)"
            ) from problem
        return torch.stack([torch.cat(row) for row in rows])

    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return the scores of the mixture over draws, means over rows.

        For classes: nll, brier, ece, adaptive_ece, accuracy, the uncertainties entropy and
        mutual_information in nats, and of answering the most certain rows only, aurc and the
        coverage_at_risk of 5 %. For other targets: nll, rmse of the mean, and coverage_50, _80 and
        _95 of the central intervals, which need at least 3, 9 and 39 draws.

        Raises
        ------
        DataError
            If the targets do not fit.
        PosteriorError
            If a row has several classes: these have only `log_likelihood`.
        """
        return self.scores_of(targets, {"all": slice(None)})["all"]

    def scores_of(
        self, targets: Tensor, groups: Mapping[str, slice]
    ) -> dict[str, dict[str, float]]:
        """Return the `scores` of groups of rows, by name, all from the same draws."""
        return scores_together([(self, targets)], groups)

    @property
    def uncertainties(self) -> dict[str, Tensor]:
        """Uncertainties of each row, ``(B,)``: ``max_probability``, ``entropy`` and
        ``mutual_information``.
        """
        return uncertainties(self.probabilities)

    def _labels(self, targets: Tensor) -> None:
        classes = self.probabilities.shape[-1]
        if not bool(((targets >= 0) & (targets < classes) & (targets == targets.long())).all()):
            actual = f"{float(targets.min()):g} to {float(targets.max()):g}"
            raise DataError(
                "Predictive, targets", f"whole labels 0 to {classes - 1}", actual, "targets.long()"
            )

    def _stacked(self, of: Any) -> Tensor:
        return torch.stack(
            [torch.cat([of(given) for given in batches]) for batches in self._distributions]
        )


def scores_together(
    parts: Sequence[tuple[Predictive, Tensor]], groups: Mapping[str, slice]
) -> dict[str, dict[str, float]]:
    """Return scores of groups of rows by name, for rows of several predictive distributions one
    after another.

    Parameters
    ----------
    parts
        Predictive distributions and their targets, of equal numbers of draws.
    groups
        Rows of each group, counted over all parts.

    Raises
    ------
    DataError, PosteriorError
        As `Predictive.scores`.
    """
    first, likely = (
        parts[0][0],
        torch.cat([part.log_likelihood(targets) for part, targets in parts], 1),
    )
    targets = torch.cat([targets for _, targets in parts])
    if first.classes:
        labels, given = targets.long(), torch.cat([part.probabilities for part, _ in parts], 1)
        return {
            name: {
                "nll": float(scoring.nll(likely[:, rows])),
                **_of_classes(given[:, rows], labels[rows]),
            }
            for name, rows in groups.items()
        }
    base = getattr(first._distributions[0][0], "base_dist", None)
    if isinstance(base, dist.Categorical | dist.Bernoulli):
        raise PosteriorError(
            "Predictive.scores", "one class a row", first._event, "log_likelihood(targets)"
        )
    drawn, mean = (
        torch.cat([part.draws(part.key.child("coverage")) for part, _ in parts], 1),
        torch.cat([part.mean for part, _ in parts]),
    )
    drawn = drawn if drawn.is_floating_point() else drawn.to(mean.dtype)
    return {
        name: {
            "nll": float(scoring.nll(likely[:, rows])),
            **_of_values(drawn[:, rows], mean[rows], targets[rows]),
        }
        for name, rows in groups.items()
    }


def _of_classes(probabilities: Tensor, targets: Tensor) -> dict[str, float]:
    mean = probabilities.mean(0)
    return {
        "brier": float(scoring.brier(mean, targets)),
        "ece": float(scoring.expected_calibration_error(mean, targets)),
        "adaptive_ece": float(adaptive_calibration_error(mean, targets)),
        "accuracy": float((mean.argmax(1) == targets).double().mean()),
        "entropy": float(scoring.predictive_entropy(probabilities).mean()),
        "mutual_information": float(scoring.mutual_information(probabilities).mean()),
        **selective(1 - mean.amax(1), mean.argmax(1) != targets),
    }


def _of_values(drawn: Tensor, mean: Tensor, targets: Tensor) -> dict[str, float]:
    scores = {"rmse": math.sqrt(float((mean - targets).square().mean()))}
    levels = [level for level in LEVELS if level <= (len(drawn) - 1) / (len(drawn) + 1) + 1e-9]
    if levels:
        shares = scoring.coverage(drawn.flatten(1), targets.to(drawn.dtype).flatten(), levels)
        scores |= {
            f"coverage_{round(100 * level)}": float(share)
            for level, share in zip(levels, shares, strict=True)
        }
    return scores
