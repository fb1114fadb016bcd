"""`evaluate_clients`: after every round, clients score the model on rows that they hold out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from bayesfed.algorithms.surveys import LARGEST, Limit, survey
from bayesfed.algorithms.wrappers.secure_sums.sums import Gather
from bayesfed.compress import Cast
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated import (
    Algorithm,
    Fit,
    Keep,
    Kind,
    Layer,
    LocalOptions,
    Reducer,
    Visit,
    layered,
    score,
)
from bayesfed.federated.core import Info
from bayesfed.federated.core.seams import gathered
from bayesfed.federated.engine.metrics import Named
from bayesfed.federated.training.held_out_scores import EVERY, split_held
from bayesfed.federated.training.likelihoods import trained_with
from bayesfed.keys import Key
from bayesfed.trees import Tree


@checked()
def evaluate_clients(algorithm: Algorithm, *, metric: Named = "accuracy") -> Algorithm:
    """Let the clients of a round score the model that it ends with on every tenth of their rows,
    which they do not train on, ``bf.algorithms.evaluate_clients(bf.fed_avg(net))``.

    Rows stay where they are: the state goes to these clients once more, and each sends its score
    and the number of rows that it is a mean over. The figures of the server are ``own_SCORE``, the
    mean over clients, ``worst_SCORE``, that over the tenth of the clients for which it is worst,
    and ``own_SCORE_by_rows``, the mean over rows; `early_stop` and `keep_best` take them by these
    names. The figure ``own_SCORE`` of a client is its own. Clients with fewer than ten rows have
    none. Where a method has personal models, clients score their own.

    Parameters
    ----------
    algorithm
        Method without noise for privacy and without secure sums, whose promise the scores would
        break.
    metric
        Score: "accuracy", "nll", "mse", "rmse" or "mae", as of `evaluate`.

    Raises
    ------
    ArgumentError
        If the method has noise for privacy or secure sums, or ends by itself.
    """
    where = f"evaluate_clients, {algorithm.name!r}"
    if algorithm.finished or any(type(phase.link) is Gather for phase in algorithm.phases):
        expected = "a method with a model after each round, without secure sums"
        hint = "callbacks=[evaluate(test)] of rows that the server has"
        raise ArgumentError(where, expected, "another", hint)
    made = layered(algorithm, HoldingOut("held out"), where=where, one_phase=False)
    scoring = survey(
        "clients' scores",
        Scoring(algorithm, metric),
        EnteredScores(metric),
        {"score": (2,)},
        partial(limits, metric),
        made.initial,
        up=Cast(64),
    )
    return replace(made, phases=(*made.phases, replace(scoring, reducer=Keep)))


@dataclass(frozen=True)
class HoldingOut(Layer):
    """Clients train without every tenth row."""

    def receive(self, visit: Visit) -> Visit:
        """Leave out the rows."""
        return replace(visit, data=split_held(visit.data)[0])


@dataclass(frozen=True)
class Scoring:
    """Score the model on the rows that a client holds out.

    Parameters
    ----------
    algorithm
        The method, from which the model is made.
    metric
        The score.
    """

    algorithm: Algorithm
    metric: Named
    kind: Kind = "moments"

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send the score and the number of rows ``(2,)``, zeros without rows; keep the memory."""
        rows, found = split_held(data)[1], 0.0
        if len(rows):
            own = self.algorithm.personal
            model = own(message, memory).model if own else self.algorithm.predictor(message)
            likelihood = trained_with(self.algorithm, rows.targets)
            found = score(model, rows, self.metric, likelihood=likelihood)
        sent = torch.tensor([found, len(rows)], dtype=torch.float64)
        return Fit({"score": sent}, memory, {f"own_{self.metric}": found} if len(rows) else {})


def limits(metric: Named, payload: Tree, rows: float) -> Iterator[Limit]:
    """Yield what a score of so many rows can be: one in ten is held out."""
    found, count = payload["score"].unbind()
    yield "held-out rows", count, 0.0, rows // EVERY
    yield metric, found, 0.0, 1.0 if metric == "accuracy" else LARGEST**2


@dataclass(frozen=True)
class EnteredScores:
    """Enter the means of clients' scores.

    Parameters
    ----------
    metric
        The score.
    """

    metric: Named

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state as it is, and the figures."""
        kept = gathered(reducer, Keep) or Keep()
        sent = (one.total["score"].tolist() for one in kept.updates.values())
        pairs = sorted((pair for pair in sent if pair[1]), reverse=self.metric != "accuracy")
        if not pairs:
            return state, {}
        values, rows = zip(*pairs, strict=True)
        name, mean = self.metric, statistics.fmean
        worst = mean(values[: math.ceil(len(values) / 10)])
        by_rows = {f"own_{name}_by_rows": mean(values, rows), f"worst_{name}": worst}
        return state, {f"own_{name}": mean(values)} | by_rows
