"""The pictures of `fedrlr.py`: means over seeds with bands of one standard deviation."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator
from parts.fedrlr.ranks import Inference, Ranks
from parts.fedrlr.runs import DENSE, Finished

from bayesfed.inspect import save

Groups = Mapping[str, Sequence[Finished]]


def spread(runs: Sequence[Finished], count: int) -> tuple[float, float]:
    """Return mean and sd over seeds of the accuracy after the last rounds; sd 0 of one seed."""
    values = [run.last(count) for run in runs]
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def curves(
    groups: Groups,
    path: Path,
    *,
    title: str,
    against: str = "round",
    marks: Sequence[float] = (),
    window: int = 1,
) -> None:
    """Draw accuracy against rounds or channel uses, one line a case, each point the mean of the
    last rounds of a window.
    """
    axes: Axes = Figure(figsize=(7.5, 4.6), layout="constrained").subplots()
    for number, (label, runs) in enumerate(groups.items()):
        length = min(len(run.rounds) for run in runs)
        if not length:
            continue
        columns = list(zip(*(run.rounds[:length] for run in runs), strict=True))
        points = list(
            zip(
                *(_smooth([row[1] for row in run.rounds[:length]], window) for run in runs),
                strict=True,
            )
        )
        mean = [statistics.mean(values) for values in points]
        sd = [statistics.stdev(values) if len(values) > 1 else 0.0 for values in points]
        at = (
            [statistics.mean(row[0] for row in column) for column in columns]
            if against == "uses"
            else list(range(1, length + 1))
        )
        # Curves lie on each other: thick ones first.
        width = 1.2 + 2.4 * (len(groups) - 1 - number) / len(groups)
        note = f", diverges after round {length}" if any(run.failure for run in runs) else ""
        line = axes.plot(at, mean, linewidth=width, label=label + note)[0]
        low, high = ([m + sign * d for m, d in zip(mean, sd, strict=True)] for sign in (-1, 1))
        axes.fill_between(at, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(ylabel="accuracy", xlabel="channel uses" if against == "uses" else "round")
    axes.set_title(fill(title, 75), fontsize=9)
    for mark in marks:
        axes.axhline(mark, color="0.4", linewidth=0.8, linestyle=":")
    if against == "uses":
        axes.set_xscale("log")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save(axes, path)


def _smooth(values: Sequence[float], window: int) -> list[float]:
    return [
        statistics.mean(values[max(0, end - window) : end]) for end in range(1, len(values) + 1)
    ]


def compression(
    groups: Mapping[str, Mapping[float, Sequence[Finished]]], path: Path, *, title: str, count: int
) -> None:
    """Draw final accuracy against how many times fewer channel uses a round takes than a dense
    model, Fig. 9.
    """
    axes: Axes = Figure(figsize=(7.5, 4.4), layout="constrained").subplots()
    for label, found in groups.items():
        at = sorted(found)
        values = [spread(found[x], count) for x in at]
        axes.errorbar(
            at,
            [mean for mean, _ in values],
            [sd for _, sd in values],
            marker="o",
            markersize=4,
            capsize=3,
            linewidth=1.2,
            label=label,
        )
    axes.set(
        xscale="log",
        xlabel=f"compression: {DENSE:,} / channel uses of a round",
        ylabel="accuracy",
        ylim=(0, 0.9),
    )
    axes.set_title(fill(title, 75), fontsize=9)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    save(axes, path)


def rank_pictures(found: Mapping[str, Ranks], wanted: int, path: Path, *, title: str) -> None:
    """Draw ranks and errors by step, Fig. 2."""
    left, right = Figure(figsize=(9, 3.8), layout="constrained").subplots(1, 2)
    for number, (name, run) in enumerate(found.items()):
        # Lines of equal ranks lie on each other: thick ones first.
        steps, width = range(1, len(run.ranks) + 1), 1.2 + 1.4 * (len(found) - 1 - number)
        left.plot(steps, run.ranks, linewidth=width, label=name)
        right.plot(steps, run.errors, linewidth=width, label=name)
    left.set(
        xlabel="step",
        ylabel="rank",
        yscale="log",
        yticks=[wanted, 2 * wanted, 5 * wanted, 10 * wanted],
    )
    left.yaxis.set_major_formatter("{x:g}")
    left.yaxis.set_minor_locator(NullLocator())
    right.set(xlabel="step", ylabel="relative error", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(fontsize=8)
    left.set_title(title, fontsize=9, loc="left")
    save(left, path)


def times(found: Sequence[Inference], path: Path) -> None:
    """Draw milliseconds a batch, dense and thin side by side, Fig. 10."""
    batches = sorted({case.batch for case in found})
    plots = Figure(figsize=(3.8 * len(batches), 3.4), layout="constrained").subplots(
        1, len(batches), squeeze=False
    )[0]
    for axes, batch in zip(plots, batches, strict=True):
        mine = [case for case in found if case.batch == batch]
        bars = axes.bar(
            [case.network for case in mine],
            [case.milliseconds for case in mine],
            0.6,
            color=["0.6", *["C1"] * (len(mine) - 1)],
        )
        labels = [
            f"{case.milliseconds:.2f} ms" + (f"\n{case.ratio:.1f} x" if number else "")
            for number, case in enumerate(mine)
        ]
        axes.bar_label(bars, labels, fontsize=8)
        axes.set(
            title=f"batch {batch}",
            ylabel="ms a batch, median",
            ylim=(0, 1.2 * max(case.milliseconds for case in mine)),
        )
    save(plots[0], path)
