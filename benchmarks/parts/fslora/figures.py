"""The pictures of `fslora.py`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure
from parts.fslora.runs import Finished

from bayesfed.inspect import save

Groups = Mapping[str, Sequence[Finished]]
_LINES = ("-", "--", "-.", ":")


def by_round(found: Groups, path: Path, *, title: str) -> None:
    """Draw mean accuracy against rounds, Fig. 2, a band of one sd over seeds."""
    _curves(found, path, title=title, column=0, label="round")


def by_traffic(found: Groups, path: Path, *, title: str) -> None:
    """Draw mean accuracy against megabytes up of a client, Fig. 7."""
    _curves(found, path, title=title, column=1, label="MB up of a client")


def bars(found: Groups, path: Path, *, title: str, label: str) -> None:
    """Draw the last accuracy of each group, Fig. 4, with one sd over seeds."""
    axes = Figure(figsize=(5.2, 3.6), layout="constrained").subplots()
    values = [[100 * run.last() for run in runs] for runs in found.values()]
    means = [statistics.mean(each) for each in values]
    axes.errorbar(
        range(len(found)),
        means,
        [statistics.stdev(each) if len(each) > 1 else 0.0 for each in values],
        marker="o",
        capsize=3,
    )
    axes.set_xticks(range(len(found)), list(found))
    # Less than two points is drawn as the little it is.
    (low, high), middle = axes.get_ylim(), statistics.mean(axes.get_ylim())
    axes.set_ylim(min(low, middle - 1), max(high, middle + 1))
    axes.set(xlabel=label, ylabel="accuracy, %", title=title)
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    save(axes, path)


def _curves(found: Groups, path: Path, *, title: str, column: int, label: str) -> None:
    axes = Figure(figsize=(6.8, 4.2), layout="constrained").subplots()
    for number, (case, runs) in enumerate(found.items()):
        spent = [
            statistics.mean(row[column] for row in rows)
            for rows in zip(*(run.rows for run in runs), strict=True)
        ]
        accuracies = [
            [100 * statistics.mean(row[3:]) for row in rows]
            for rows in zip(*(run.rows for run in runs), strict=True)
        ]
        means = [statistics.mean(each) for each in accuracies]
        (line,) = axes.plot(spent, means, _LINES[number % 4], linewidth=1.6, label=case)
        if len(runs) > 1:
            sds = [statistics.stdev(each) for each in accuracies]
            low, high = (
                [mean + sign * sd for mean, sd in zip(means, sds, strict=True)] for sign in (-1, 1)
            )
            axes.fill_between(spent, low, high, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xlabel=label, ylabel="accuracy, %, mean over domains", title=title)
    axes.title.set_fontsize(9)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, frameon=False)
    save(axes, path)
