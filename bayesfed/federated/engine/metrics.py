"""What a model's outputs are scored by: a function of rows, an object that adds batches up, as
those of torchmetrics do, or a name.

==============  ====================================================================================
name            score
==============  ====================================================================================
``accuracy``    share of the rows whose largest output is that of the label
``nll``         mean negative log likelihood of labels, in nats
``mse``         mean squared error of numbers
``rmse``        its square root, in units of the targets
``mae``         mean absolute error, in units of the targets
==============  ====================================================================================
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, shown
from bayesfed.errors.roles import Role, role_of
from bayesfed.models import Categorical, Labels, Likelihood
from bayesfed.models.likelihoods.classes import are_probabilities


class Added(Protocol):
    """A metric that adds batches up, such as those of torchmetrics. A copy of it is used."""

    def reset(self) -> Any:
        """Forget all batches."""

    def update(self, outputs: Tensor, targets: Tensor) -> Any:
        """Add a batch."""

    def compute(self) -> Any:
        """Return the figure of all batches."""


Named = Literal["accuracy", "nll", "mse", "rmse", "mae"]
Metric = Callable[[Tensor, Tensor], Tensor] | Added | Named
"""``(outputs, targets) -> one figure per row``, ``(B,)``; or what `Added` and `Named` say."""
METRIC = Role(
    role_of(Metric).fits,
    f"a function of outputs and targets, an object of torchmetrics, or one of {get_args(Named)}",
    "'mse'",
)
HINT = f"reduction='none', an object of torchmetrics, or one of {', '.join(get_args(Named))}"


@checked()
def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 for every row whose largest output is that of the label, else 0, ``(B,)``.

    Raises
    ------
    ArgumentError
        If targets are numbers and no labels, or outputs are not one for each class.
    """
    _check_labels("accuracy", outputs, targets)
    return (outputs.argmax(dim=1) == targets).float()


@checked(metric=METRIC)
def score(
    model: Callable[[Tensor], Tensor],
    data: Dataset,
    metric: Metric = accuracy,
    *,
    batch_size: int = 2000,
    likelihood: Likelihood | None = None,
) -> float:
    """Return the mean of a metric over a data set.

    Parameters
    ----------
    model
        Model to score.
    data
        At least one row.
    metric
        ``(outputs, targets) -> one figure per row``, ``(B,)``; an object with the methods reset,
        update and compute, as those of torchmetrics; or "accuracy", "nll", "mse", "rmse", "mae".
        Default: `accuracy`.
    batch_size
        Number of rows per call of the model.
    likelihood
        That of the model. Of `Labels`, "accuracy" and "nll" are means over labels that count.

    Raises
    ------
    ArgumentError
        If there are no rows, or the metric gives anything but one figure a row, or does not suit
        the targets.
    """
    if not len(data):
        raise ArgumentError("score", "data to score on", "an empty set", "a test set")
    added: Any = copy.deepcopy(metric) if role_of(Added).fits(metric) else None
    if added:
        added.reset()
    by_row: Any = NAMED[metric] if isinstance(metric, str) else metric
    by_label = likelihood if by_row in (accuracy, _surprise) else None
    total, rows = 0.0, 0
    for start in range(0, len(data), batch_size):
        part = data[slice(start, start + batch_size)]
        outputs, targets = model(part.inputs), part.targets
        if added:
            added.update(outputs, targets)
            continue
        if isinstance(by_label, Labels):
            outputs, targets = by_label.counted(outputs, targets)
        total += _sum(by_row(outputs, targets), len(targets))
        rows += len(targets)
    if added:
        return _sum(added.compute(), 1)
    if not rows:
        raise ArgumentError("score", "labels that count", "ignored ones alone", "a test set")
    return math.sqrt(total / rows) if metric == "rmse" else total / rows


def _sum(figures: object, rows: int) -> float:
    """Return the sum of a figure for each row."""
    found = torch.as_tensor(figures) if isinstance(figures, Tensor | int | float) else None
    if found is None or found.numel() != rows or (rows > 1 and len(found) != rows):
        expected = f"one figure per row ({rows},)" if rows > 1 else "one figure"
        actual = shown(figures) if found is None else f"shape {tuple(found.shape)}"
        raise ArgumentError("metric", expected, actual, HINT)
    return float(found.detach().sum())


def _check_labels(where: str, outputs: Tensor, targets: Tensor) -> None:
    if targets.is_floating_point():
        raise ArgumentError(where, "class labels", shown(targets), "metric='mse'")
    if outputs.ndim != 2 or targets.shape != outputs.shape[:1]:
        actual = f"outputs {tuple(outputs.shape)}, targets {tuple(targets.shape)}"
        hint = "a metric of your own: (outputs, targets) -> one figure per row"
        raise ArgumentError(where, "outputs (B, C) and labels (B,)", actual, hint)


def _surprise(outputs: Tensor, targets: Tensor) -> Tensor:
    if targets.is_floating_point():
        hint = "metric=lambda outputs, targets: -Normal(sd=1.0).pointwise(outputs, targets)"
        raise ArgumentError("metric 'nll'", "class labels", shown(targets), hint)
    _check_labels("metric 'nll'", outputs, targets)
    logits = outputs.log() if are_probabilities(outputs) else outputs
    return -Categorical().pointwise(logits, targets)


def _errors(outputs: Tensor, targets: Tensor, power: int) -> Tensor:
    # Axes of one do not count: a network of one output has (B, 1), its targets may be (B,).
    sizes = [[size for size in one.shape[1:] if size > 1] for one in (outputs, targets)]
    if sizes[0] != sizes[1] or len(outputs) != len(targets):
        actual = f"outputs {tuple(outputs.shape)}, targets {tuple(targets.shape)}"
        raise ArgumentError("metric", "outputs like the targets", actual, "metric='accuracy'")
    away = outputs.reshape(len(targets), -1) - targets.reshape(len(targets), -1)
    return away.abs().pow(power).mean(1)


NAMED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": accuracy,
    "nll": _surprise,
    "mse": partial(_errors, power=2),
    "rmse": partial(_errors, power=2),
    "mae": partial(_errors, power=1),
}
