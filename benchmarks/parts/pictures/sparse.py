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
    left, *others = whole.subplots(1, 1 + len(BY_BYTES), width_ratios=[1.3, 1, 1])
    rows = [row for name in cases() if name.startswith("Fashion") for row in recorded(name)]
    for method, colour in METHODS.items():
        wide = 2.4 if method == LEARNED else 1.5
        points = _by_density([row for row in rows if row.method == method])
        left.plot(*zip(*points, strict=True), ".-", color=colour, linewidth=wide, label=method)
        for axes, name in zip(others, BY_BYTES, strict=True):
            for row in recorded(name):
                if row.method == method and method != "pruned":
                    axes.plot(*zip(*row.curve, strict=True), color=colour, linewidth=wide)
    tidy(left).set(
        xscale="log", xlabel="weights, % (log)", ylabel="test accuracy, %", title="Fashion-MNIST"
    )
    left.set_xticks(sorted({100 * cases()[row.case]["density"] for row in rows}))
    left.xaxis.set_major_formatter("{x:g}")
    left.xaxis.set_minor_formatter("")
    left.legend(loc="lower right", fontsize=9)
    for axes, title in zip(others, BY_BYTES.values(), strict=True):
        tidy(axes).set(xlabel="megabytes, down and up", title=title, xlim=(0, None), ylim=(0, 100))
    return whole


def _by_density(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return density in percent and the mean accuracy of the seeds."""
    found: dict[float, list[float]] = {}
    for row in rows:
        found.setdefault(100 * cases()[row.case]["density"], []).append(row.accuracy)
    return [(share, statistics.fmean(found[share])) for share in sorted(found)]
