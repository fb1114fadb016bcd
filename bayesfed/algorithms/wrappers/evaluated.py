"""`evaluate_clients`: after every round, clients score the model on rows that they hold out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from bayesfed.algorithms.surveys import LARGEST, Asked, Bounded, Limit
from bayesfed.algorithms.wrappers.secure_sums.sums import Gather
from bayesfed.compress import Cast
from bayesfed.compress.codecs import exact
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.federated import (
    Algorithm,
    Assignment,
    Digital,
    Fit,
    Keep,
    Layer,
    LocalOptions,
    Phase,
    Profile,
    Reducer,
    Sum,
    Visit,
    layered,
    score,
)
from bayesfed.federated.core import Info
from bayesfed.federated.core.seams import gathered, total_of
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.engine.metrics import Named
from bayesfed.federated.training.held_out_scores import EVERY, split_held
from bayesfed.federated.training.likelihoods import trained_with
from bayesfed.keys import Key
from bayesfed.trees import Tree


@checked()
def evaluate_clients(
    algorithm: Algorithm, *, metric: Named = "accuracy", worst: bool = True
) -> Algorithm:
    """Let the clients of a round score the model that it ends with on every tenth of their rows,
    which they do not train on, ``bf.algorithms.evaluate_clients(bf.fed_avg(net))``.

    Rows stay where they are: the state goes to these clients once more, and each sends its score
    and the share of all rows that it is a mean over. Figures of the server are ``own_SCORE``, the
    mean over clients, ``worst_SCORE``, that over the tenth of the clients for which it is worst,
    and ``own_SCORE_by_rows``, the mean over rows; `early_stop` and `keep_best` take them by these
    names. The figure ``own_SCORE`` of a client is its own. Clients with fewer than ten rows have
    none. Where a method has personal models, clients score their own.

    Parameters
    ----------
    algorithm
        Method without noise for privacy, whose promise the scores would break.
    metric
        Score: "accuracy", "nll", "mse", "rmse" or "mae", as of `evaluate`.
    worst
        Whether to have ``worst_SCORE``, for which the server sees every client's score. Without it
        sums are enough, and `secure` takes the method: a score is then at most its `largest`.

    Raises
    ------
    ArgumentError
        If the method has noise for privacy or secure sums, or ends by itself.
    """
    where = f"evaluate_clients, {algorithm.name!r}"
    if algorithm.finished:
        hint = "callbacks=[evaluate(test)] of rows that the server has"
        raise ArgumentError(where, "a method with a model after each round", "another", hint)
    if any(type(phase.link) is Gather for phase in algorithm.phases):
        hint = "secure(evaluate_clients(algorithm, worst=False), ...)"
        raise ArgumentError(where, "a method without secure sums", "one with them", hint)
    made = layered(algorithm, HoldingOut("held out"), where=where, one_phase=False)
    down = exact(made.initial)

    @with_settings(down=down, metric=metric)
    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        pool = float(profile.pool or profile.samples or 1)
        view = Bounded({"score": (4,)}, float(profile.samples), partial(limits, metric, pool))
        options = LocalOptions(share=profile.samples / pool)
        return Assignment(view, 1.0, down, Cast(64), options)

    scoring = Phase(
        "clients' scores",
        assign,
        Scoring(algorithm, metric),
        EnteredScores(metric),
        Digital(max_norm=1e20),
        Keep if worst else Sum,
        owner="",
    )
    return replace(made, phases=(*made.phases, scoring))


@dataclass(frozen=True)
class HoldingOut(Layer):
    """Clients train without every tenth row."""

    def receive(self, visit: Visit) -> Visit:
        """Leave out the rows."""
        return replace(visit, data=split_held(visit.data)[0])


@dataclass(frozen=True)
class Scoring(Asked):
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

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Send ``(4,)``: the score, 1, and both times the rows' share of all; zeros without rows.
        Keep the memory.
        """
        rows, found = split_held(data)[1], 0.0
        if len(rows):
            own = self.algorithm.personal
            model = own(message, memory).model if own else self.algorithm.predictor(message)
            likelihood = trained_with(self.algorithm, rows.targets)
            found = score(model, rows, self.metric, likelihood=likelihood)
        one = torch.tensor([found, float(bool(len(rows)))], dtype=torch.float64)
        sent = torch.cat([one, one * (options.share * len(rows) / max(1, len(data)))])
        return Fit({"score": sent}, memory, {f"own_{self.metric}": found} if len(rows) else {})


def limits(metric: Named, pool: float, payload: Tree, rows: float) -> Iterator[Limit]:
    """Yield what a score of so many rows of all can be: one in ten is held out."""
    found = payload["score"]
    most = torch.tensor([1.0, rows // EVERY / pool], dtype=torch.float64)
    yield "held-out rows", found[1::2], 0.0, most
    yield metric, found[::2], 0.0, most * (1.0 if metric == "accuracy" else LARGEST**2)


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
        kept, summed, name = gathered(reducer, Keep), total_of(reducer), self.metric
        single = [one.total["score"] for one in kept.updates.values()] if kept else []
        parts = single or ([summed.total["score"]] if summed else [])
        total = torch.stack(parts).sum(0) if parts else torch.zeros(4)
        if not total[3] > 0:
            return state, {}
        own, by_rows = (total[::2] / total[1::2]).tolist()
        figures = {f"own_{name}": own, f"own_{name}_by_rows": by_rows}
        values = sorted((float(one[0]) for one in single if one[1]), reverse=name != "accuracy")
        if values:
            figures[f"worst_{name}"] = statistics.fmean(values[: math.ceil(len(values) / 10)])
        return state, figures
