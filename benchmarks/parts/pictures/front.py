"""README's first picture: federated posteriors beside Stan's draws, learned supports beside random
ones.
"""

from __future__ import annotations

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from parts.exact.limits import CERTAIN, ERROR
from parts.front.figures import posteriors, supports
from parts.pictures.style import BLUE, GREY, ORANGE, figure, save, tidy

METHODS = {
    "learned": ("learned", BLUE),
    "random, equal bytes": ("random, as many bytes", ORANGE),
    "pruned": ("pruned after dense training", GREY),
}


def draw() -> None:
    """Draw it, light and dark."""
    for path in save(_drawn, "front", twin=True):
        print(path.name)


def _drawn() -> Figure:
    whole = figure(9.4, 4.2)
    left, right = whole.subplots(1, 2)
    errors(left)
    learned(right)
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, fontsize=9)
    return whole


def errors(axes: Axes) -> None:
    """Draw the error of each posterior's worst mean, in the order of the Gaussian's."""
    rows = sorted(posteriors(), key=lambda row: row["laplace"])
    named = {"laplace": ("Gaussian at the mode", GREY), "error": ("federated, exact", BLUE)}
    for key, (name, colour) in named.items():
        for place, row in enumerate(rows):
            sure = key == "laplace" or row["status"] in CERTAIN
            filled = colour if sure else "none"
            axes.plot(row[key], place, "o", color=colour, markerfacecolor=filled, markersize=4.5)
        axes.plot([], [], "o", color=colour, label=name, markersize=4.5)
    told = "federated, says that it is not"
    axes.plot([], [], "o", color=BLUE, markerfacecolor="none", label=told, markersize=4.5)
    axes.axvline(ERROR, color=GREY, linewidth=1, linestyle=":")
    tidy(axes).set(
        xscale="log",
        xlabel="error of the worst mean, reference sds (log)",
        ylabel=f"{len(rows)} posteriors of posteriordb",
        yticks=[],
        ylim=(-1, len(rows)),
    )
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_title("Posteriors over sites", fontsize=10, loc="left", fontweight="bold")


def learned(axes: Axes) -> None:
    """Draw accuracies of supports, means of their seeds, one line a task."""
    found = supports()
    for place, of in enumerate(found.values()):
        means = {m: statistics.fmean(row["accuracy"] for row in of[m]) for m in METHODS if m in of}
        axes.plot([min(means.values()), max(means.values())], [place] * 2, color=GREY, alpha=0.4)
        for method, mean in reversed(means.items()):
            name, colour = METHODS[method]
            label = name if place == 0 else None
            axes.plot(mean, place, "o", color=colour, markersize=6, label=label)
    tidy(axes).set(
        yticks=range(len(found)),
        yticklabels=[*found],
        ylim=(len(found) - 0.5, -0.5),
        xlabel="test accuracy, %",
    )
    title = "Networks with 0.5 to 2 % of their weights"
    axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
