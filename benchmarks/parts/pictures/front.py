"""README's first picture: federated posteriors beside Stan's draws, learned supports beside random
ones.
"""

from __future__ import annotations

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from parts.front.figures import posteriors, supports
from parts.pictures.style import BLUE, GREY, ORANGE, figure, save, tidy

NEAR = 0.05
METHODS = {"pruned": ("magnitude pruning", GREY), "random, equal bytes": ("random", ORANGE)}
METHODS["learned"] = ("learned", BLUE)


def draw() -> None:
    """Draw it, light and dark."""
    for path in save(_drawn, "front", twin=True):
        print(path.name)


def _drawn() -> Figure:
    whole = figure(9.2, 3.8)
    left, right = whole.subplots(1, 2, width_ratios=[1, 1])
    errors(left)
    learned(right)
    return whole


def errors(axes: Axes) -> None:
    """Draw the error of each posterior's worst mean, in the order of the Gaussian's."""
    rows = sorted(posteriors(), key=lambda row: row["laplace"])
    places = range(len(rows))
    axes.plot([row["laplace"] for row in rows], places, "o", color=GREY, markersize=4)
    axes.plot([row["error"] for row in rows], places, "o", color=BLUE, markersize=5)
    axes.axvline(NEAR, color=GREY, linewidth=1, linestyle=":")
    tidy(axes).set(
        xscale="log",
        xlabel="error of the worst mean, sds of Stan's draws (log)",
        ylabel=f"{len(rows)} posteriors of posteriordb",
        yticks=[],
        ylim=(-1, len(rows) + 2),
    )
    axes.xaxis.set_major_formatter("{x:g}")
    top = len(rows) + 0.6
    axes.text(rows[0]["error"], top, "federated", color=BLUE, fontweight="bold", fontsize=9)
    axes.text(0.12, top, "Gaussian at the mode", color=GREY, fontsize=9)
    title = "A posterior over sites is that of pooled rows"
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")


def learned(axes: Axes) -> None:
    """Draw accuracies of supports, means of their seeds, one line a task."""
    found = supports()
    for place, (case, of) in enumerate(reversed(found.items())):
        means = {m: statistics.fmean(row["accuracy"] for row in of[m]) for m in METHODS if m in of}
        axes.plot([min(means.values()), max(means.values())], [place] * 2, color=GREY, alpha=0.4)
        for method, mean in means.items():
            name, colour = METHODS[method]
            axes.plot(mean, place, "o", color=colour, markersize=6)
            if place == len(found) - 1:
                weight = "bold" if method == "learned" else "normal"
                at = mean, place + 0.32
                axes.text(*at, name, color=colour, fontsize=9, ha="center", fontweight=weight)
    tidy(axes).set(
        yticks=range(len(found)),
        yticklabels=[*reversed(found)],
        ylim=(-0.5, len(found) - 0.2),
        xlabel="test accuracy, %, equal megabytes for learned and random",
    )
    title = "At 0.5 to 2 % of the weights, supports are learned"
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
