"""The posterior predictive distribution at given inputs, from S draws of the parameters:
``1/S sum_s p(y | x, theta_s)``.

S draws, B rows, C classes. Scores are those of the mixture over draws, which is the prediction, not
means of the draws' scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyro.distributions as dist
import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, DataError, PosteriorError
from bayesfed.errors.checks import ITSELF, check, checked, checked_class, whole
from bayesfed.errors.plurals import plural
from bayesfed.inference.evaluation import scoring
from bayesfed.inference.evaluation.detection import scores_of_classes, uncertainties
from bayesfed.inference.evaluation.predicting import Observing, distributions
from bayesfed.inference.evaluation.responses import (
    LEAST,
    OfRows,
    of_labels,
    of_numbers,
    of_times,
)
from bayesfed.keys import Key, forked
from bayesfed.models.likelihoods.joined import Joined
from bayesfed.models.likelihoods.rows import Scored, expected, outcomes
from bayesfed.models.likelihoods.survival import Censored
from bayesfed.trees import is_finite


@checked_class(count=ITSELF, batch_size=whole(1, "2000"))
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
        If there are no inputs, an input is not finite, or count or batch_size is below 1.
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
        if not is_finite(self.inputs):
            finite = torch.isfinite(self.inputs).reshape(len(self.inputs), -1).all(1)
            bad = (~finite).nonzero()[:, 0]
            raise ArgumentError(
                "Predictive, inputs",
                "finite values",
                f"NaN or Inf in {plural(len(bad), 'row')}, first {int(bad[0])}",
                "dropping or imputing those rows",
            )
        check("Predictive, draws", self.count, whole(1, "100"))

    @cached_property
    def _distributions(self) -> list[list[Any]]:
        """Return the distribution of the targets by draw and batch of rows."""
        return distributions(self.posterior, self.inputs, self.key, self.count, self.batch_size)

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
            raise PosteriorError(
                "Predictive.probabilities",
                "categorical or Bernoulli targets",
                f"{type(self._distributions[0][0]).__name__} of shape {self._event}",
                "mean",
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
            raise PosteriorError(
                "Predictive.mean",
                "a distribution with a mean",
                type(self._distributions[0][0]).__name__,
                "draws(key)",
            ) from problem

    @checked(each=whole(1, "1"))
    def draws(self, key: Key, each: int = 1) -> Tensor:
        """Return draws of the targets from the predictive distribution, so many per draw of the
        parameters, ``(S each, B, ...)``.
        """
        rows = []
        for number, batches in enumerate(self._distributions):
            with forked(key.child("respond", number)):
                rows.append(torch.cat([given.sample((each,)) for given in batches], 1))
        return torch.cat(rows)

    def at(self, targets: Tensor) -> tuple[Predictive, Tensor]:
        """Return what is predicted for the outcomes where targets say more, such as an exposure or
        a weight, and the outcomes.
        """
        self._check(targets)
        parts = targets.split(self._sizes)
        found = [
            [outcomes(given, part) for given, part in zip(batches, parts, strict=True)]
            for batches in self._distributions
        ]
        made = replace(self)
        made.__dict__["_distributions"] = [[given for given, _ in row] for row in found]
        return made, torch.cat([outcome for _, outcome in found[0]])

    @checked()
    def log_likelihood(self, targets: Tensor) -> Tensor:
        """Return log p(y_b | x_b, theta_s), ``(S, B)`` in nats.

        Raises
        ------
        DataError
            If the targets have another shape than the predictions, or a value that the model cannot
            draw.
        """
        self._check(targets)
        values, classes = targets, self.probabilities.shape[-1] if self.classes else 0
        if (
            classes
            and not ((targets >= 0) & (targets < classes) & (targets == targets.long())).all()
        ):
            raise DataError(
                "Predictive, targets",
                f"whole labels 0 to {classes - 1}",
                f"{float(targets.min()):g} to {float(targets.max()):g}",
                "the labels of the classes that were fitted",
            )
        made = self._distributions[0][0]
        base = made.base_dist if isinstance(made, dist.Independent) else made
        if not isinstance(base, dist.Categorical) and not values.is_floating_point():
            values = targets.to(torch.get_default_dtype())
        try:
            parts = values.split(self._sizes)
            rows = [
                [given.log_prob(part) for given, part in zip(batches, parts, strict=True)]
                for batches in self._distributions
            ]
        except ValueError as problem:
            raise DataError(
                "Predictive, targets",
                "values the model can draw",
                str(problem).splitlines()[0],
                "draws(key)",
            ) from problem
        return torch.stack([torch.cat(row) for row in rows])

    @checked()
    def scores(self, targets: Tensor) -> dict[str, float]:
        """Return the scores of the mixture over draws, means over rows.

        For classes: nll, brier, ece, adaptive_ece, accuracy, the uncertainties entropy and
        mutual_information in nats, and of answering the most certain rows only, aurc and the
        coverage_at_risk of 5 %. For several labels a row: nll, and brier and accuracy of a label.
        For numbers: nll, rmse of the mean, crps, and coverage_50, _80 and _95 of the central
        intervals, which need at least 3, 9 and 39 draws. For counts the same, their coverage by
        `randomised_pit`; for times that may be censored nll and such a coverage; for `Several`
        outcomes nll. Of `Labels` every label that counts is a row. Weights of rows and classes
        are for training: scores count each row once.

        Raises
        ------
        DataError
            If the targets do not fit.
        PosteriorError
            If a row has several targets of more than two classes: these have only
            `log_likelihood`.
        """
        return scores_together([(self, targets)], {"all": slice(None)})["all"]

    @property
    def _sizes(self) -> list[int]:
        return [given.batch_shape[0] for given in self._distributions[0]]

    def _check(self, targets: Tensor) -> None:
        shape = (sum(self._sizes), *self._event)
        if targets.shape != shape:
            found = tuple(targets.shape)
            raise DataError("Predictive, targets", f"shape {shape}", found, "one target a row")

    @property
    def uncertainties(self) -> dict[str, Tensor]:
        """Uncertainties of each row, ``(B,)``: ``max_probability``, ``entropy`` and
        ``mutual_information``.
        """
        return uncertainties(self.probabilities)

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
    kind = parts[0][0]._distributions[0][0]
    if isinstance(kind, Scored) and not kind.known:
        # Of rows of labels every label that counts is a row.
        given = torch.cat([targets for _, targets in parts])
        counts = kind.likelihood.counts(given)
        ends = [0, *counts.reshape(len(given), -1).sum(1).cumsum(0).tolist()]
        rows = {name: one.indices(len(given)) for name, one in groups.items()}
        groups = {name: slice(ends[first], ends[end]) for name, (first, end, _) in rows.items()}
    parts = [part.at(targets) for part, targets in parts]
    first, targets = parts[0][0], torch.cat([targets for _, targets in parts])
    likely = torch.cat([part.log_likelihood(targets) for part, targets in parts], 1)
    of_rows = _scorer([part for part, _ in parts], first._distributions[0][0], targets)
    return {
        name: {"nll": float(scoring.nll(likely[:, rows]))} | of_rows(rows)
        for name, rows in groups.items()
    }


def _scorer(parts: Sequence[Predictive], kind: Any, targets: Tensor) -> OfRows:
    """Return what scores some rows, beside their nll, by the kind of their distribution."""
    first, base = parts[0], kind.base_dist if isinstance(kind, dist.Independent) else kind
    if first.classes:
        labels, given = targets.long(), torch.cat([part.probabilities for part in parts], 1)
        return lambda rows: scores_of_classes(given[:, rows], labels[rows])
    if isinstance(base, dist.Categorical):
        raise PosteriorError(
            "Predictive.scores", "one class a row", first._event, "log_likelihood(targets)"
        )
    if isinstance(kind, Joined):
        return lambda rows: {}
    if isinstance(base, dist.Bernoulli):
        return of_labels(torch.cat([part.mean for part in parts])[..., 1], targets)
    drawn = torch.cat([part.draws(part.key.child("coverage")) for part in parts], 1)
    each = -(-LEAST // len(drawn))
    many = torch.cat([part.draws(part.key.child("crps"), each) for part in parts], 1)
    mean, key = torch.cat([part.mean for part in parts]), first.key.child("pit")
    if isinstance(kind, Censored):
        return of_times(many[..., 0], targets, key)
    drawn, many, targets = (one.to(mean.dtype) for one in (drawn, many, targets))
    return of_numbers(drawn, many, mean, targets, key)
