"""What a method predicts, scored: after every round (`scoring`), and after the last one what an
experiment asks for by `scores = [...]` (`further_scores`). Of a posterior its predictive
distribution is scored, of a network what its likelihood makes of it.

================  ==================================================================================
name              what is entered
================  ==================================================================================
``calibration``   ``adaptive_ece``, ``brier``
``selective``     ``aurc``, and ``coverage_at_risk``: the share of rows that can be answered with 5
                  % errors
``detection``     ``auroc_KIND`` and ``fpr95_KIND`` of test images against flipped, inverted,
                  shuffled and random ones, their mean; KIND is max_logit,
                  entropy, max_probability, and mutual_information where there is a posterior
``conformal``     ``conformal_coverage`` and ``conformal_size`` of sets of 90 %, their threshold
                  from the rows of `own_rows`
================  ==================================================================================
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import torch

from bayesfed.data import Dataset, concatenated, out_of_distribution
from bayesfed.errors import ArgumentError
from bayesfed.federated import Algorithm, Callback, RoundReport
from bayesfed.inference.evaluation.conformal import (
    conformal_scores,
    histogram,
    prediction_sets,
    threshold,
)
from bayesfed.inference.evaluation.detection import detection, uncertainties
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inspect.personal import Point
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree

Further = Literal["calibration", "selective", "detection", "conformal"]
OF_PREDICTIVE: Mapping[str, tuple[str, ...]] = {
    "calibration": ("adaptive_ece", "brier"),
    "selective": ("aurc", "coverage_at_risk"),
}
LEVEL = 0.9


def predictive(
    algorithm: Algorithm,
    state: Tree,
    data: Dataset,
    likelihood: Likelihood,
    *,
    draws: int,
    seed: int,
) -> Predictive | None:
    """Return what a method predicts for the rows of a set; None where its network gives numbers
    that are not finite.
    """
    key = Key(seed, "scores")
    if algorithm.posterior is not None:
        return Predictive(algorithm.posterior(state), data.inputs, key, draws)
    model = algorithm.predictor(state)
    if not torch.isfinite(model(data.inputs[:2000])).all():
        return None
    return Predictive(Point(model, likelihood), data.inputs, key, 1)


def scoring(data: Dataset, likelihood: Likelihood, *, draws: int, seed: int) -> Callback:
    """Enter ``nll`` in nats a row, and ``ece`` of classes or ``rmse`` of numbers, in the report's
    metrics; NaN where a network has diverged.
    """

    def callback(report: RoundReport) -> None:
        if not report.due():
            report.awaited.add("nll")
            return
        found = predictive(report.algorithm, report.state, data, likelihood, draws=draws, seed=seed)
        diverged = ("nll", "rmse" if data.targets.is_floating_point() else "ece")
        scores = found.scores(data.targets) if found else dict.fromkeys(diverged, math.nan)
        kept = ("nll", "ece", "rmse")
        report.metrics.update({name: scores[name] for name in kept if name in scores})

    return callback


def check_further(names: Collection[Further], test: Dataset, own: Mapping[str, Dataset]) -> None:
    """Check that these scores can be computed.

    Raises
    ------
    ArgumentError, DataError
        If targets are numbers, "conformal" has no held-out rows, or rows of "detection" are no
        images.
    """
    if names and test.targets.is_floating_point():
        raise ArgumentError("scores", "targets that are classes", "numbers", "no scores")
    if "conformal" in names and not any(map(len, own.values())):
        raise ArgumentError(
            "scores, 'conformal'", "rows that clients hold out", "none", "own_rows = 0.25"
        )
    if "detection" in names:
        out_of_distribution(test[:1], Key(0, "outside"))


def further_scores(
    names: Collection[Further],
    own: Mapping[str, Dataset],
    test: Dataset,
    likelihood: Likelihood,
    *,
    last: int,
    draws: int,
    seed: int,
) -> Callback:
    """Return a callback that enters scores in the report of the last round; none where the network
    has diverged.

    Parameters
    ----------
    names
        Names of the scores.
    own, test
        Rows that clients held out, and rows to score.
    likelihood
        Likelihood of point predictions.
    last, draws, seed
        Number of the last round, if the method does not end before; number of posterior draws, and
        what names them.
    """

    def callback(report: RoundReport) -> None:
        if not names or not (report.round == last or report.algorithm.ended(report.state)):
            return
        algorithm, state = report.algorithm, report.state

        def predicted(data: Dataset) -> Predictive | None:
            return predictive(algorithm, state, data, likelihood, draws=draws, seed=seed)

        if (inside := predicted(test)) is None:
            return
        scores = inside.scores(test.targets)
        entered = {name: scores[name] for group in names for name in OF_PREDICTIVE.get(group, ())}
        if "detection" in names:
            outside = out_of_distribution(test, Key(0, "outside")).values()
            others = [predicted(Dataset(rows, test.targets)) for rows in outside]
            entered |= _detection(inside, [one for one in others if one], algorithm, state)
        if "conformal" in names:
            rows = concatenated([part for part in own.values() if len(part)])
            if (held := predicted(rows)) is not None:
                known = histogram(held.mean, rows.targets)
                sets = prediction_sets(inside.mean, threshold(known, LEVEL))
                found = conformal_scores(sets, test.targets)
                entered["conformal_coverage"] = found["coverage"]
                entered["conformal_size"] = found["set_size"]
        report.metrics.update(entered)

    return callback


def _detection(
    inside: Predictive, outside: Sequence[Predictive], algorithm: Algorithm, state: Tree
) -> dict[str, float]:
    """Return mean AUROC and FPR95 over kinds of outsiders, by kind of uncertainty."""
    model = algorithm.predictor(state)
    own, *theirs = (
        uncertainties(one.probabilities, model(one.inputs)) for one in (inside, *outside)
    )
    if algorithm.posterior is None:
        own.pop("mutual_information")
    each = {kind: [detection(own[kind], other[kind]) for other in theirs] for kind in own if theirs}
    return {
        f"{score}_{kind}": statistics.fmean(one[score] for one in found)
        for kind, found in each.items()
        for score in ("auroc", "fpr95")
    }
