"""Reliability diagrams: whether classes with predicted probability 0.8 are right in 80 % of the
rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from bayesfed.errors import ArgumentError
from bayesfed.inference.evaluation.scoring import CalibrationBins
from bayesfed.inspect.figures import finished, given_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
