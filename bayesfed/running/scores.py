"""What a method predicts, scored after every round: of a posterior its predictive distribution, of
a network what its likelihood makes of it.
"""

from __future__ import annotations

import math

import torch

from bayesfed.data.dataset import Dataset
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.engine.callbacks import Callback
from bayesfed.federated.engine.reports import RoundReport
from bayesfed.inference.evaluation.predictive import Predictive
from bayesfed.inspect.personal import Point
from bayesfed.keys import Key
from bayesfed.models.priors.likelihoods import Likelihood
from bayesfed.trees import Tree

KEPT = ("nll", "ece", "rmse")


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
    if not bool(torch.isfinite(model(data.inputs[:2000])).all()):
        return None
    return Predictive(Point(model, likelihood), data.inputs, key, 1)


def scoring(data: Dataset, likelihood: Likelihood, *, draws: int, seed: int) -> Callback:
    """Enter ``nll`` in nats a row, and ``ece`` of classes or ``rmse`` of numbers, in the report's
    metrics; NaN where a network has diverged.
    """

    def callback(report: RoundReport) -> None:
        found = predictive(report.algorithm, report.state, data, likelihood, draws=draws, seed=seed)
        scores = (
            found.scores(data.targets)
            if found
            else dict.fromkeys(
                ("nll", "rmse" if data.targets.is_floating_point() else "ece"), math.nan
            )
        )
        report.metrics.update({name: scores[name] for name in KEPT if name in scores})

    return callback
