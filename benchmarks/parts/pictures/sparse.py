"""Where a learned support earns its keep: Fashion-MNIST by density, and tasks in which few inputs
matter by bytes.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure
from parts.pictures.style import BLUE, GREY, ORANGE, figure, save, tidy
from parts.sparse.weights import EQUAL, LEARNED, Row, cases, recorded

METHODS = {LEARNED: BLUE, EQUAL: ORANGE, "pruned": GREY}
BY_BYTES = {"noise digits 2 %": "digits among noise inputs, 2 %", "planted 2 %": "planted, 2 %"}


def draw() -> None:
    """Draw accuracy against density, and against megabytes."""
    for path in save(_drawn, "sparse"):
        print(path.name)


def _drawn() -> Figure:
    whole = figure(8.4, 3.4)
    rows = [row for name in cases() if name.startswith("Fashion") for row in recorded(name)]
    *before, left, right = whole.subplots(1, len(BY_BYTES) + bool(rows))
    for method, colour in METHODS.items():
        wide = 2.4 if method == LEARNED else 1.5
        for axes in before:
            if points := _by_density([row for row in rows if row.method == method]):
                axes.plot(*zip(*points, strict=True), ".-", color=colour, linewidth=wide)
        for axes, name in zip((left, right), BY_BYTES, strict=True):
            for row in recorded(name):
                if row.method == method != "pruned":
                    label = method if row.seed == 0 else None
                    axes.plot(
                        *zip(*row.curve, strict=True), color=colour, linewidth=wide, label=label
                    )
    for axes in before:
        tidy(axes).set(xscale="log", xlabel="weights, % (log)", title="Fashion-MNIST")
        axes.set_xticks(sorted({100 * cases()[row.case]["density"] for row in rows}))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("")
    for axes, title in zip((left, right), BY_BYTES.values(), strict=True):
        tidy(axes).set(xlabel="megabytes, down and up", title=title, xlim=(0, None), ylim=(0, 100))
    whole.axes[0].set_ylabel("test accuracy, %")
    right.legend(loc="lower right", fontsize=9)
    return whole


def _by_density(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return density in percent and the mean accuracy of the seeds."""
    found: dict[float, list[float]] = {}
    for row in rows:
        found.setdefault(100 * cases()[row.case]["density"], []).append(row.accuracy)
    return [(share, statistics.fmean(found[share])) for share in sorted(found)]
