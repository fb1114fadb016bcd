"""The pictures of `anycostfl.py`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from parts.anycostfl.runs import Finished

from bayesfed.inspect import save


def curves(found: Mapping[str, Sequence[Finished]], path: Path, *, title: str) -> None:
    """Draw accuracy against energy and against time, means over seeds for as long as all go on,
    Fig. 4; methods without devices are left out.
    """
    left, right = Figure(figsize=(10, 4.2), layout="constrained").subplots(1, 2, sharey=True)
    for number, (case, runs) in enumerate(found.items()):
        columns = [
            [
                statistics.mean(row[place] for row in rows)
                for rows in zip(*(run.rows for run in runs), strict=False)
            ]
            for place in (0, 1, 2)
        ]
        if not columns[1][-1]:
            continue
        for axes, spent, unit in ((left, columns[1], 1e3), (right, columns[2], 60.0)):
            style = "-" if number == len(found) - 1 else ("--", "-.", ":")[number % 3]
            axes.plot(
                [value / unit for value in spent], columns[0], style, linewidth=1.5, label=case
            )
    goal = statistics.mean(run.goal for runs in found.values() for run in runs)
    for axes, what in ((left, "energy, kJ"), (right, "time, minutes")):
        axes.axhline(goal, color="0.4", linewidth=0.8, linestyle=":", label="goal")
        axes.set(xlabel=what)
        axes.grid(alpha=0.3)
    left.set(ylabel="accuracy of the whole model", title=title)
    left.title.set_fontsize(9)
    right.legend(fontsize=8, frameon=False, loc="lower right")
    save(left, path)


def sub_models(
    found: Mapping[str, Sequence[Finished]], alphas: Sequence[float], path: Path, *, title: str
) -> None:
    """Draw the accuracy of sub-models that were not trained further, Fig. 5(d)."""
    axes = Figure(figsize=(6.5, 4.0), layout="constrained").subplots()
    for number, (case, runs) in enumerate(found.items()):
        means = [
            statistics.mean(run.sub_models[place] for run in runs) for place in range(len(alphas))
        ]
        axes.plot(
            alphas,
            means,
            ("-", "--", "-.", ":")[number % 4],
            marker="o",
            markersize=4,
            linewidth=1.3,
            label=case,
        )
    axes.set(xlabel="alpha: share of the network's work", ylabel="accuracy", title=title)
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    save(axes, path)


def sweep(
    found: Mapping[str, Sequence[Finished]], values: Sequence[float], path: Path, *, label: str
) -> None:
    """Draw energy and time to the goal against a variance, Fig. 5(b, c); methods that never come to
    it have no point.
    """
    plots = Figure(figsize=(10, 3.8), layout="constrained").subplots(1, 2)
    for case, runs in found.items():
        for axes, place, unit in ((plots[0], 1, 1e3), (plots[1], 2, 60.0)):
            points = [
                (value, run.costs[place] / unit)
                for value, run in zip(values, runs, strict=True)
                if run.reached
            ]
            axes.plot(
                [value for value, _ in points],
                [spent for _, spent in points],
                marker="o",
                markersize=4,
                linewidth=1.3,
                label=case,
            )
    for axes, what in zip(
        plots, ("energy to the goal, kJ", "time to the goal, minutes"), strict=True
    ):
        axes.set(
            xlabel=label,
            ylabel=what,
            ylim=(0, None),
            xticks=values,
            xticklabels=[f"{value:g}" for value in values],
        )
        axes.grid(alpha=0.3)
    plots[1].legend(fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(plots[0], path)
