"""Accuracy by round of FedAvg, of tangents over three links and of the paper's factors: runs of
`fedrlr.py --only fig8`, mean and range of seeds.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from parts.front.record import runs
from parts.pictures.style import BLUE, GREY, RED, figure, save, tidy

# Cases as the settings name them: what the picture says, its colour, where. Three lines coincide
# and have one name.
LINES = {
    "FedAvg": ("FedAvg, digital, 269,322 numbers a client", GREY, 87.5),
    "tangents, digital": (
        (
            "rank 4, three lines that coincide: noiseless digital,\nphase correction (GBMA), "
            "channel inversion"
        ),
        BLUE,
        62.5,
    ),
    "tangents, GBMA": ("", BLUE, 0.0),
    "tangents, CI": ("", BLUE, 0.0),
    "factors, local work": ("the paper's precoded factors over GBMA", RED, 42.0),
}


def draw() -> None:
    """Draw it."""
    for path in save(_drawn, "fedrlr_curves"):
        print(path.name)


def _drawn() -> Figure:
    found: dict[str, list[list[float]]] = {}
    for _, run in runs("fedrlr"):
        found.setdefault(run["case"], []).append([100 * row[1] for row in run["rounds"]])
    whole = figure(7.4, 3.8)
    axes = tidy(whole.subplots())
    for case, (name, colour, height) in LINES.items():
        values = np.array(found[case])
        at = np.arange(1, values.shape[1] + 1)
        axes.plot(at, values.mean(0), color=colour, linewidth=1.6)
        axes.fill_between(at, values.min(0), values.max(0), color=colour, alpha=0.15, linewidth=0)
        axes.text(12, height, name, color=colour, fontsize=9, ha="right", va="center")
    axes.set(xlabel="round", ylabel="test accuracy, %", ylim=(5, 92), xticks=range(1, 13))
    return whole
