"""Pictures of uncertainty: whether classes with predicted probability 0.8 are right in 80 % of the
rows; how well uncertainty tells rows that differ from those trained on (histograms, NLL by severity
of a corruption); and the errors that are left if only the most certain rows are answered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.inference.evaluation.detection import detection, risk_coverage
from bayesfed.inference.evaluation.scoring import CalibrationBins
from bayesfed.inspect.figures import finished, given_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked()
def plot_reliability(
    bins: CalibrationBins | Mapping[str, CalibrationBins], *, axes: Axes | None = None
) -> Axes:
    """Plot accuracy against confidence, one line for each method, with the number of rows in each
    bin above (Guo et al. 2017, figure 1).

    A method is overconfident below the diagonal and underconfident above it. Dots are at the mean
    confidence of their bin; their bars are 95 % intervals of the accuracy.

    Parameters
    ----------
    bins
        Bins from `calibration_bins`, or those of several methods by name.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If there are no bins.
    MissingExtraError
        If Matplotlib is not installed.
    """
    named = {"": bins} if isinstance(bins, CalibrationBins) else dict(bins)
    if not named:
        raise ArgumentError(
            "plot_reliability", "at least one method's bins", "none", "calibration_bins(...)"
        )
    axes = given_or_new(axes, width=4.8, height=5.6)
    above = axes.inset_axes((0.0, 1.05, 1.0, 0.2), sharex=axes)
    axes.plot([0, 1], [0, 1], color="0.5", linewidth=1, linestyle="--", label="calibrated")
    for number, (name, binned) in enumerate(named.items()):
        count, confidence, accuracy = _drawn(binned)
        colour = f"C{number}"
        above.stairs(
            count, binned.edges.cpu().numpy(), color=colour, fill=len(named) == 1, linewidth=1.5
        )
        count, confidence, accuracy = (
            values[count > 0] for values in (count, confidence, accuracy)
        )
        # The interval of Agresti and Coull, whose length is not 0 if all rows or none are right.
        share = (accuracy * count + 2) / (count + 4)
        half = 2 * np.sqrt(share * (1 - share) / (count + 4))
        ends = np.stack(
            [
                accuracy - np.clip(share - half, 0, accuracy),
                np.clip(share + half, accuracy, 1) - accuracy,
            ]
        )
        label = (
            f"{name}: ECE {float(binned.error):.3f}" if name else f"ECE {float(binned.error):.3f}"
        )
        axes.errorbar(
            confidence,
            accuracy,
            ends,
            label=label,
            color=colour,
            marker="o",
            markersize=4,
            elinewidth=0.8,
            clip_on=False,
        )
    finished(
        axes,
        xlabel="confidence: probability of the likeliest class",
        ylabel="accuracy",
        xlim=(0, 1),
        ylim=(0, 1),
        aspect="equal",
    )
    above.set(ylabel="rows", ylim=(0, None))
    above.tick_params(labelbottom=False)
    above.grid(alpha=0.3)
    return axes


def _drawn(bins: CalibrationBins) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return count, confidence and accuracy ``(bins,)``, with confidences of exactly 1 in the last
    bin.
    """
    count = bins.count.cpu().double()
    sums = torch.stack(
        [
            count,
            *(
                values.cpu().double().nan_to_num(0.0) * count
                for values in (bins.confidence, bins.accuracy)
            ),
        ]
    )
    merged = torch.cat([sums[:, :-2], sums[:, -2:].sum(1, keepdim=True)], dim=1)
    rows, confidence, accuracy = (
        values.numpy() for values in (merged[0], *(merged[1:] / merged[0]))
    )
    return rows, confidence, accuracy


@checked()
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


@checked()
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


@checked()
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
