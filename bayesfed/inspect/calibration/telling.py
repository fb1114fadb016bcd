"""How well uncertainty tells: rows that differ from those trained on (histograms, NLL by severity
of a corruption), and the errors that are left if only the most certain rows are answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.evaluation.detection import detection, risk_coverage
from bayesfed.inspect.figures import finished, given_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_outside(
    inside: Tensor,
    outside: Mapping[str, Tensor],
    *,
    label: str = "uncertainty",
    bins: int = 40,
    axes: Axes | None = None,
) -> Axes:
    """Plot histograms of the uncertainty of the data's own rows, filled, and of other rows, with
    the AUROC between them in the legend.

    Parameters
    ----------
    inside
        ``(B,)``: uncertainties of rows of the data's distribution.
    outside
        By name: uncertainties of other rows.
    label
        Name of the uncertainty.
    bins
        Number of bins, the same for all rows.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If there are no other rows, or a value is not finite.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not outside:
        raise ArgumentError("plot_outside", "other rows", "none", "out_of_distribution(test, key)")
    areas = {name: detection(inside, values)["auroc"] for name, values in outside.items()}
    axes = given_or_new(axes, width=5.6, height=4.2)
    together = np.concatenate([values.cpu().numpy() for values in (inside, *outside.values())])
    edges: list[float] = np.linspace(together.min(), together.max(), bins + 1).tolist()
    axes.hist(inside.cpu().numpy(), edges, density=True, color="0.75", label="own rows")
    for name, values in outside.items():
        axes.hist(
            values.cpu().numpy(),
            edges,
            density=True,
            histtype="step",
            linewidth=1.5,
            label=f"{name}: AUROC {areas[name]:.2f}",
        )
    return finished(axes, xlabel=label, ylabel="density of rows")


def plot_severity(
    scores: Mapping[str, Sequence[float]],
    *,
    clean: Mapping[str, float] | None = None,
    label: str = "NLL",
    axes: Axes | None = None,
) -> Axes:
    """Plot a score against the severity of a corruption, one line for each method; severity 0 is
    that of clean rows.

    Parameters
    ----------
    scores
        By method: the scores at severities 1, 2, ...
    clean
        By method: the score of clean rows. Default: not drawn.
    label
        Name of the score.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If there are no scores.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not scores or not all(scores.values()):
        raise ArgumentError(
            "plot_severity", "scores by severity", dict(scores), "{'FedAvg': [0.6, 0.8, 1.1]}"
        )
    axes = given_or_new(axes, width=5.6, height=4.2)
    for name, values in scores.items():
        first = [clean[name]] if clean and name in clean else []
        axes.plot(
            range(1 - len(first), len(values) + 1),
            [*first, *values],
            marker="o",
            markersize=4,
            label=name,
        )
    return finished(
        axes,
        xlabel="severity",
        ylabel=label,
        xticks=range(0 if clean else 1, max(map(len, scores.values())) + 1),
    )


def plot_risk_coverage(
    methods: Mapping[str, tuple[Tensor, Tensor]],
    *,
    risk: float | None = 0.05,
    axes: Axes | None = None,
) -> Axes:
    """Plot the share of errors among the rows answered against the share of rows answered, one line
    for each method.

    Parameters
    ----------
    methods
        By name: uncertainties ``(B,)``, and whether each row is wrong ``(B,)``.
    risk
        A risk to mark by a line, or None.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If there are no methods.
    DataError
        If uncertainties and errors differ in shape.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not methods:
        raise ArgumentError(
            "plot_risk_coverage", "at least one method", "none", "{'entropy': (entropy, wrong)}"
        )
    axes = given_or_new(axes, width=5.6, height=4.2)
    for name, (uncertainty, wrong) in methods.items():
        coverage, risks = risk_coverage(uncertainty, wrong)
        axes.plot(
            coverage.cpu().numpy(),
            risks.cpu().numpy(),
            label=f"{name}: area {float(risks.mean()):.3f}",
            linewidth=1.5,
        )
    if risk is not None:
        axes.axhline(risk, color="0.5", linewidth=1, linestyle="--")
    return finished(
        axes,
        xlabel="coverage: share of rows answered",
        ylabel="risk: share of errors among them",
        xlim=(0, 1),
        ylim=(0, None),
    )
