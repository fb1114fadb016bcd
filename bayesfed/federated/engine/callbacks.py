"""Callbacks: functions of a `RoundReport`. A callback that returns True stops the run."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, shown, whole
from bayesfed.errors.roles import Role
from bayesfed.federated.core import MODEL, Predictor, Weighing
from bayesfed.federated.engine.reports import RoundReport
from bayesfed.keys import Key

Callback = Callable[[RoundReport], bool | None]
"""Called after every round; True ends the run. `run` enters one that is a context manager before
the first round, and leaves it at the end.
"""
Metric = Callable[[Tensor, Tensor], Tensor]
"""``(outputs, targets) -> one figure per row``, ``(B,)``."""
OFTEN = whole(1, "5")


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 for every row whose largest output is that of the label, else 0, ``(B,)``.

    Raises
    ------
    ArgumentError
        If targets are numbers and no labels.
    """
    if targets.is_floating_point():
        hint = "metric=lambda outputs, targets: (outputs[:, 0] - targets).square()"
        raise ArgumentError("accuracy", "class labels", shown(targets), hint)
    return (outputs.argmax(dim=1) == targets).float()


def score(
    model: Predictor, data: Dataset, metric: Metric = accuracy, *, batch_size: int = 2000
) -> float:
    """Return the mean of a metric over a data set.

    Parameters
    ----------
    model
        Model to score.
    data
        At least one row.
    metric
        ``(outputs, targets) -> one figure per row``. Default: `accuracy`.
    batch_size
        Number of rows per call of the model.

    Raises
    ------
    ArgumentError
        If there are no rows.
    """
    if not len(data):
        raise ArgumentError("score", "data to score on", "an empty set", "a test set")
    total = 0.0
    for start in range(0, len(data), batch_size):
        part = data[slice(start, start + batch_size)]
        total += float(metric(model(part.inputs), part.targets).sum())
    return total / len(data)


@checked(every=OFTEN)
def evaluate(
    data: Dataset, *, metric: Metric = accuracy, name: str = "accuracy", every: int = 1
) -> Callback:
    """Return a callback that scores the transmitted model and enters the result in the report's
    metrics.

    Parameters
    ----------
    data
        Rows to score on.
    metric
        ``(outputs, targets) -> one figure per row``. Default: `accuracy`.
    name
        Name of the entry.
    every
        Number of rounds between two scores.

    Raises
    ------
    ArgumentError
        If `every` is below 1; during a run, if there are no rows.
    """

    def callback(report: RoundReport) -> None:
        if report.snapshot.round % every == 0:
            report.metrics[name] = score(report.model, data, metric)

    return callback


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
        if report.snapshot.round % every == 0:
            made = report.algorithm.posterior
            posterior = made(report.state) if made else None
            if not isinstance(posterior, Weighing):
                expected, actual = "a posterior with log_weights", type(posterior).__name__
                raise ArgumentError("evidence", expected, actual, "federated_svi")
            weights = posterior.log_weights(data, Key(seed, "evidence"), draws=draws)
            report.metrics["elbo"] = float(weights.mean())

    return callback


@checked(patience=OFTEN)
def early_stop(name: str, *, patience: int, larger_is_better: bool = True) -> Callback:
    """Return a callback that stops the run when a metric has not improved for `patience` scored
    rounds.

    It must come after the callback that enters the metric. A resumed run also counts the rounds in
    the history of its snapshot.

    Parameters
    ----------
    name
        Name of the metric.
    patience
        Number of scored rounds without improvement.
    larger_is_better
        Whether larger values are improvements.

    Raises
    ------
    ArgumentError
        If `patience` is below 1.
    """
    best, since, seen = -math.inf, 0, False

    def callback(report: RoundReport) -> bool:
        nonlocal best, since, seen
        earlier = () if seen else report.snapshot.history
        for metrics in [*(record.metrics for record in earlier), report.metrics]:
            if name in metrics:
                value = metrics[name] if larger_is_better else -metrics[name]
                best, since = (value, 0) if value > best else (best, since + 1)
        seen = True
        return since >= patience

    return callback


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
            raise ArgumentError(
                "keep", f"one of {sorted(report.state)}", repr(leaf), "a leaf of the state"
            )
        if report.round == 0 or report.snapshot.round % every == 0:
            frames[report.round] = report.state[name].clone()

    return callback


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

    # In a file or a log each update would be a line.
    bar = tqdm(
        total=total,
        desc=label,
        unit="round",
        disable=not (sys.stderr.isatty() or "ipykernel" in sys.modules),
    )

    def callback(report: RoundReport) -> None:
        figures = {name: f"{value:.4g}" for name, value in report.metrics.items()}
        if "density" in report.server:
            figures["density"] = f"{report.server['density']:.3f}"
        bar.set_postfix(figures, refresh=False)
        bar.update(report.snapshot.round - bar.n)
        if bar.n >= total or report.algorithm.ended(report.state):
            bar.close()

    return callback
