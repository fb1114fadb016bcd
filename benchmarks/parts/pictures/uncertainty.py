"""What posteriors are worth by the number of training rows: NLL of corrupted images, and detection
of images of no class.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from parts.front.figures import corrupted, readings
from parts.front.record import Run
from parts.pictures.style import BLUE, GREEN, GREY, ORANGE, figure, line, save, tidy

ROWS = (600, 2000, 54000)
# Name in the picture, colour, height of the name, by method; the names are beside the last points.
ROBUST = {
    "fed_avg": ("FedAvg", GREY, 2.82),
    "ensemble": ("five networks,\n5 times the bytes", ORANGE, 2.42),
    "prior.laplace": ("Gaussian prior\n+ Laplace", GREEN, 1.78),
    "d_turbo_vbi": ("D-Turbo-VBI,\n.06 to .08 of the bytes", BLUE, 1.3),
}
DETECTED = {
    ("fed_avg", "feature_density"): ("FedAvg,\ndistances of features", BLUE, 0.965),
    ("fed_avg", "max_logit"): ("FedAvg,\nlargest logit", GREY, 0.885),
    ("prior.laplace", "mutual_information"): ("prior + Laplace,\nmutual information", GREEN, 0.64),
    ("fed_avg", "entropy"): ("FedAvg, entropy", ORANGE, 0.42),
}


def draw() -> None:
    """Draw it."""
    for path in save(_drawn, "how_sure"):
        print(path.name)


def _drawn() -> Figure:
    whole = figure(9.6, 3.7)
    left, right = whole.subplots(1, 2)
    found = {rows: readings(rows) for rows in ROWS}
    for method, (name, colour, height) in ROBUST.items():
        _line(left, found, method, corrupted, name, colour, height)
    for (method, score), (name, colour, height) in DETECTED.items():
        _line(right, found, method, partial(_auroc, score=score), name, colour, height)
    left.set(ylim=(0.9, 3.0), ylabel="test NLL, nats a row")
    right.set(ylim=(0.3, 1.0), ylabel="mean AUROC, images of no class")
    for axes, title in ((left, "Corrupted images"), (right, "Images of no class")):
        tidy(axes).set(
            xscale="log", xlim=(500, 2_500_000), xticks=ROWS, xlabel="training rows of all clients"
        )
        axes.set_xticklabels([f"{rows:,}" for rows in ROWS])
        axes.minorticks_off()
        axes.set_title(title, fontsize=10, loc="left", fontweight="bold")
    return whole


def _line(
    axes: Axes,
    found: Mapping[int, Mapping[str, Sequence[Run]]],
    method: str,
    score: Callable[[Run], float],
    name: str,
    colour: str,
    height: float,
) -> None:
    """Draw a score by the number of rows, the mean of all seeds."""
    points = [
        (float(rows), statistics.fmean(map(score, runs[method]))) for rows, runs in found.items()
    ]
    line(axes, points, name, colour, (66_000, height), bold=colour == BLUE)


def _auroc(one: Run, score: str) -> float:
    return statistics.fmean(kind[score] for kind in one["auroc"].values())
