"""Where a learned support earns its keep: Fashion-MNIST by density, and tasks in which few inputs
matter by bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure
from parts.pictures.style import BLUE, GREY, ORANGE, RED, figure, save, tidy
from parts.sparse.weights import EQUAL, FLAT, LEARNED, PRUNED, Row, cases, recorded

METHODS = {LEARNED: BLUE, EQUAL: ORANGE, FLAT: RED, PRUNED: GREY}
BY_BYTES = {
    "noise digits 2 %": "digits among noise, 2 %",
    "planted 2 %": "planted, 2 %",
    "Fashion-MNIST 1 %": "Fashion-MNIST, 1 %",
}


def draw() -> None:
    """Draw accuracy against density, and against megabytes."""
    for path in save(_drawn, "sparse"):
        print(path.name)


def _drawn() -> Figure:
    rows = {name: recorded(name) for name in cases()}
    pictures = [row for name in rows if name.startswith("Fashion") for row in rows[name]]
    # One density alone is no curve.
    pictures = pictures if len(_by_density(pictures)) > 1 else []
    compared = [name for name in BY_BYTES if any(row.method == EQUAL for row in rows[name])]
    whole = figure(8.4, 3.4)
    panels = whole.subplots(1, len(compared) + bool(pictures), squeeze=False)[0]
    for axes, name in zip(panels, compared, strict=False):
        for row in rows[name]:
            if row.method in (LEARNED, EQUAL):
                axes.plot(*zip(*row.curve, strict=True), color=METHODS[row.method])
        tidy(axes).set(xlabel="megabytes, down and up", title=BY_BYTES[name], xlim=(0, None))
    for axes in panels[len(compared) :]:
        for method, colour in METHODS.items():
            if points := _by_density([row for row in pictures if row.method == method]):
                axes.plot(*zip(*points, strict=True), ".-", color=colour)
        tidy(axes).set(xscale="log", xlabel="weights, % (log)", title="Fashion-MNIST")
        axes.set_xticks(sorted({100 * cases()[row.case]["density"] for row in pictures}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    for method, colour in [*METHODS.items()][: 4 if pictures else 2]:
        panels[0].plot([], [], color=colour, label=method)
    panels[0].set_ylabel("test accuracy, %")
    whole.legend(loc="outside lower center", ncols=4, fontsize=9)
    return whole


def _by_density(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return density in percent and the mean accuracy of the seeds."""
    found: dict[float, list[float]] = {}
    for row in rows:
        found.setdefault(100 * cases()[row.case]["density"], []).append(row.accuracy)
    return [(share, statistics.fmean(found[share])) for share in sorted(found)]
