"""Callbacks: functions of a `RoundReport`. A callback that returns True stops the run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import check, checked, one_of, whole
from bayesfed.errors.roles import Role
from bayesfed.federated.core import MODEL, Weighing
from bayesfed.federated.engine.metrics import METRIC, Metric, accuracy, score
from bayesfed.federated.engine.reports import Record, RoundReport, Snapshot, Watch
from bayesfed.federated.training.likelihoods import trained_with
from bayesfed.keys import Key

Callback = Callable[[RoundReport], bool | None]
"""Called after every round; True ends the run. `run` enters one that is a context manager before
the first round, and leaves it at the end.
"""
OFTEN = whole(1, "5")


@dataclass(frozen=True)
class Evaluation:
    """A callback that scores the transmitted model; made by `evaluate`, where its arguments are
    described.
    """

    data: Dataset
    metric: Metric
    name: str
    every: int

    def __call__(self, report: RoundReport) -> None:
        """Enter the score if it is due."""
        if report.due(self.every):
            trained = trained_with(report.algorithm, self.data.targets)
            found = score(report.model, self.data, self.metric, likelihood=trained)
            report.metrics[self.name] = found
        else:
            report.awaited.add(self.name)


@checked(metric=METRIC, every=OFTEN)
def evaluate(
    data: Dataset, *, metric: Metric = accuracy, name: str | None = None, every: int = 1
) -> Evaluation:
    """Return a callback that scores the transmitted model and enters the result in the report's
    metrics.

    Parameters
    ----------
    data
        Rows to score on.
    metric
        ``(outputs, targets) -> one figure per row``, ``(B,)``; an object with the methods reset,
        update and compute, as those of torchmetrics, of which a copy is used; or "accuracy", "nll",
        "mse", "rmse", "mae". Default: `accuracy`.
    name
        Name of the entry. Default: that of the metric, or of the class of an object or lambda.
    every
        Number of rounds between two scores.

    Raises
    ------
    ArgumentError
        If `every` is below 1; during a run, if there are no rows, or the metric gives anything but
        one figure a row, or does not suit the targets.
    """
    named: Any = metric if hasattr(metric, "__name__") else type(metric)
    own = metric if isinstance(metric, str) else named.__name__.strip("<>")
    return Evaluation(data, metric, name or own, every)


def elbo(report: RoundReport) -> None:
    """Enter the evidence lower bound in nats: the clients' expected log likelihood during training,
    minus the server's KL divergence.

    This is an estimate at temperature 1: each client's likelihood term is its mean over the batches
    of the round.
    """
    if "kl" in report.server and all(
        {"nll", "samples"} <= info.keys() for info in report.clients.values()
    ):
        data = sum(info["nll"] * info["samples"] for info in report.clients.values())
        report.metrics["elbo"] = -(data + report.server["kl"])


@checked(data=Role(lambda data: len(data) > 0, "rows", "train"), draws=whole(1, "32"), every=OFTEN)
def evidence(data: Dataset, *, draws: int = 32, every: int = 1, seed: int = 0) -> Callback:
    """Return a callback that enters ``elbo``, the lower bound on log p(data) in nats.

    The posterior of the method must have importance weights (`federated_svi`, without local
    latents). All rounds use the same base draws, so that changes of the figure come from the
    posterior and not from the draws.

    Parameters
    ----------
    data
        All rows that are fitted, or rows that were held out.
    draws
        Number of draws from the posterior.
    every
        Number of rounds between two entries.
    seed
        Seed of the draws.

    Raises
    ------
    ArgumentError
        If there are no rows, or `draws` or `every` is below 1; during a run, if the posterior has
        no importance weights.
    """

    def callback(report: RoundReport) -> None:
        if not report.due(every):
            report.awaited.add("elbo")
            return
        made = report.algorithm.posterior
        posterior = made(report.state) if made else None
        if not isinstance(posterior, Weighing):
            expected, actual = "a posterior with log_weights", type(posterior).__name__
            raise ArgumentError("evidence", expected, actual, "federated_svi")
        weights = posterior.log_weights(data, Key(seed, "evidence"), draws=draws)
        report.metrics["elbo"] = float(weights.mean())

    return callback


@dataclass
class EarlyStop:
    """A callback that stops a run, and keeps the best round; made by `early_stop` and `keep_best`,
    where its arguments are described.
    """

    name: str
    patience: float
    larger_is_better: bool
    snapshot: Snapshot | None = field(default=None, repr=False)
    _watch: Watch = field(default_factory=Watch, repr=False)

    def __call__(self, report: RoundReport) -> bool:
        """Return whether the figure has not improved for so many entries of this run."""
        earlier: Sequence[Record] = ()
        if self._watch.begins(report):
            earlier, self._best, self._since = report.snapshot.history, -math.inf, 0
            self.snapshot = None
        known = set(report.awaited)
        for record in (*earlier, report):
            figures = {**record.server, **record.metrics}
            known |= figures.keys()
            if self.name in figures:
                value = figures[self.name] * (1 if self.larger_is_better else -1)
                self._since += 1
                if value > self._best:
                    self._best, self._since = value, 0
                    self.snapshot = report.snapshot if record is report else None
        if self.name not in known and not self._since and self._best == -math.inf:
            hint = f"evaluate(test, name={self.name!r}) before it, or one of these names"
            where = "early_stop" if self.patience < math.inf else "keep_best"
            raise ArgumentError(where, f"one of {sorted(known)}", repr(self.name), hint)
        return self._since >= self.patience


@checked(patience=OFTEN)
def early_stop(name: str, *, patience: int, larger_is_better: bool = True) -> EarlyStop:
    """Return a callback that stops the run when a metric has not improved for `patience` scored
    rounds.

    It must come after the callback that enters the metric. Its state begins with each run; a
    resumed run also counts the rounds in the history of its snapshot.

    Parameters
    ----------
    name
        Name of the metric, or of a figure of the server.
    patience
        Number of scored rounds without improvement.
    larger_is_better
        Whether larger values are improvements.

    Raises
    ------
    ArgumentError
        If `patience` is below 1; after the first round, if nothing of that name was entered, or is
        entered by an `evaluate` before it in other rounds.
    """
    return EarlyStop(name, patience, larger_is_better)


@checked()
def keep_best(name: str, *, larger_is_better: bool = True) -> EarlyStop:
    """Return a callback that keeps the snapshot of the round with the best metric, in its attribute
    ``snapshot``: ``dataclasses.replace(result, snapshot=best.snapshot)`` is the result with the
    model and the posterior of that round.

    It must come after the callback that enters the metric. Its memory begins with each run; where a
    round before a run was resumed is better, there is no snapshot.

    Parameters
    ----------
    name, larger_is_better
        As in `early_stop`.

    Raises
    ------
    ArgumentError
        After the first round, as `early_stop`.
    """
    return EarlyStop(name, math.inf, larger_is_better)


@checked()
def keep(leaf: str, frames: dict[int, Tensor], *, every: int = 1) -> Callback:
    """Return a callback that copies one leaf of the state into `frames`, by round.

    ``keep("prior_log_odds/1.weight", frames)`` follows the message v_{h -> s} of a layer.

    Parameters
    ----------
    leaf
        Name of the leaf: of the model, or with its owner, ``"averaged/count"``.
    frames
        Dictionary to fill.
    every
        Number of rounds between two copies. The first round is always copied.

    Raises
    ------
    ArgumentError
        During a run, if the state has no such leaf.
    """

    def callback(report: RoundReport) -> None:
        name = leaf if leaf in report.state else f"{MODEL}/{leaf}"
        if name not in report.state:
            check("keep", leaf, one_of(sorted(report.state), "a leaf of the state"))
        if report.round == 0 or report.snapshot.round % every == 0:
            frames[report.round] = report.state[name].clone()

    return callback


@checked()
def progress(total: int, *, label: str = "rounds") -> Callback:
    """Return a callback that draws a progress bar with the latest metrics and density, if standard
    error is a terminal or in a notebook.

    Parameters
    ----------
    total
        Number of rounds.
    label
        Text before the bar.
    """
    from tqdm import tqdm

    def made() -> tqdm[Any]:
        # In a file or a log each update would be a line.
        hidden = not (sys.stderr.isatty() or "ipykernel" in sys.modules)
        return tqdm(total=total, desc=label, unit="round", disable=hidden)

    bar, watch = made(), Watch()

    def callback(report: RoundReport) -> None:
        nonlocal bar
        if watch.begins(report) and bar.n:
            bar.close()
            bar = made()
        figures = {name: f"{value:.4g}" for name, value in report.metrics.items()}
        if "density" in report.server:
            figures["density"] = f"{report.server['density']:.3f}"
        bar.set_postfix(figures, refresh=False)
        bar.update(report.snapshot.round - bar.n)
        if bar.n >= total or report.algorithm.ended(report.state):
            bar.close()

    return callback
