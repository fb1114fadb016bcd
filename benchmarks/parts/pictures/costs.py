"""What an accuracy costs in bytes, and what a posterior is worth when images are corrupted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from parts.front.figures import curves, readings
from parts.pictures.style import BLUE, GREEN, GREY, ORANGE, figure, line, save, tidy

# Name in the picture, colour, place of the name, by file name of the method.
LINES = {
    "FedPAQ": ("FedPAQ,\n16 bits", GREY, (110, 81.5)),
    "STC": ("STC", ORANGE, (25, 86.5)),
    "random_support": ("same messages,\nrandom support", GREEN, (0.28, 87.6)),
    "D-Turbo-VBI_changes": ("D-Turbo-VBI", BLUE, (1.25, 82.0)),
}
POSTERIORS = {
    "fed_avg": ("FedAvg", GREY, (5.08, 4.45)),
    "fed_avg.temperature": ("FedAvg +\ntemperature", ORANGE, (5.08, 3.36)),
    "d_turbo_vbi": ("D-Turbo-VBI", BLUE, (5.08, 2.55)),
    "prior.temperature": ("Gaussian prior +\ntemperature", GREEN, (5.08, 2.0)),
}


def draw() -> None:
    """Draw it."""
    for path in save(_drawn, "costs"):
        print(path.name)


def _drawn() -> Figure:
    whole = figure(9.2, 3.7)
    left, right = whole.subplots(1, 2, width_ratios=[1.08, 1])
    costs(left, curves())
    worth(right)
    return whole


def costs(axes: Axes, found: Mapping[str, Sequence[Sequence[float]]]) -> None:
    """Draw accuracy against megabytes."""
    for method, (name, colour, at) in LINES.items():
        if method in found:
            points = [
                (up + down, 100 * accuracy)
                for up, down, accuracy, _ in found[method]
                if accuracy >= 0.6
            ]
            line(
                axes,
                points,
                name,
                colour,
                at,
                bold=name == "D-Turbo-VBI",
                dashed=method == "random_support",
            )
    tidy(axes).set(
        xscale="log",
        xlim=(0.25, 1100),
        ylim=(75, 88.7),
        xlabel="megabytes of all messages, down and up (log)",
        ylabel="test accuracy, %",
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title("What an accuracy costs", fontsize=10, loc="left", fontweight="bold")


def worth(axes: Axes) -> None:
    """Draw NLL against the severity of corruption, the mean of five kinds."""
    found = readings()
    for method, (name, colour, at) in POSTERIORS.items():
        levels = zip(
            *[kind for one in found[method] for kind in one["corrupted"].values()], strict=True
        )
        means = [
            statistics.fmean(one["nll"] for one in found[method]),
            *map(statistics.fmean, levels),
        ]
        line(axes, list(enumerate(means)), name, colour, at, bold=name == "D-Turbo-VBI")
    tidy(axes).set(
        xlim=(0, 7.2),
        ylim=(0, 4.6),
        xticks=range(6),
        xlabel="severity of corruption",
        ylabel="test NLL, nats a row",
    )
    axes.set_title("What a posterior is worth", fontsize=10, loc="left", fontweight="bold")
