"""Pictures of results: curves with bands over seeds, calibration, and who held what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bayesfed.errors import ArgumentError
from bayesfed.federated import Record, bits, energy_j, latency_s
from bayesfed.inspect.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LABELS = {
    "accuracy": "test accuracy",
    "nll": "test NLL, nats a row",
    "ece": "test ECE",
    "rmse": "test RMSE",
}
AGAINST = {
    "round": "round",
    "megabytes": "megabytes sent, down and up (log)",
    "joules": "joules of all devices (log)",
    "device_s": "seconds of the devices",
    "seconds": "seconds of this computer's clock",
}
LOGARITHMIC = ("megabytes", "joules")

# What a round spends, by what is drawn against.
SPENT: Mapping[str, Callable[[Record], float]] = {
    "megabytes": lambda record: bits(record.rows) / 8e6,
    "joules": lambda record: energy_j(record.rows),
    "device_s": lambda record: latency_s(record.rows),
    "seconds": lambda record: record.seconds,
}

Runs = Mapping[str, Sequence[Sequence[Record]]]


@dataclass(frozen=True)
class Curve:
    """One experiment's metric over what it cost so far: means over seeds, and their standard
    deviation ``(points,)``.
    """

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    seeds: int


Panels = dict[str, dict[str, dict[str, Curve]]]


def spent(history: Sequence[Record], against: str) -> list[float]:
    """Return what was spent after each round: rounds, megabytes, joules, seconds of the devices, or
    of the clock.
    """
    if against == "round":
        return [record.round + 1.0 for record in history]
    return list(accumulate(SPENT[against](record) for record in history))


def curves(runs: Runs) -> Panels:
    """Return the curves of every metric against every cost, by name of the experiment: those that
    were measured, where something was spent.
    """
    panels: Panels = {metric: {against: {} for against in AGAINST} for metric in LABELS}
    for name, histories in runs.items():
        for against in AGAINST:
            totals = [spent(history, against) for history in histories]
            for metric in LABELS:
                if (found := _curve(histories, metric, totals)) is not None:
                    panels[metric][against][name] = found
    return panels


def columns(panels: Panels, runs: Runs) -> list[str]:
    """Return the costs to draw against: those that were spent, and the clock's seconds only where
    not all experiments have devices.
    """
    spending = {
        against: {name for row in panels.values() for name in row[against]} for against in AGAINST
    }
    return [
        against
        for against, names in spending.items()
        if names and not (against == "seconds" and len(spending["device_s"]) == len(runs))
    ]


def _curve(
    histories: Sequence[Sequence[Record]], metric: str, totals: Sequence[Sequence[float]]
) -> Curve | None:
    """Return the curve over the rounds that all seeds have; None where it was never measured or
    nothing was spent.
    """
    length = min(map(len, histories), default=0)
    chosen = [
        place
        for place in range(length)
        if all(metric in history[place].metrics for history in histories)
    ]
    if not chosen:
        return None
    y = np.array([[history[place].metrics[metric] for place in chosen] for history in histories])
    x = np.array([[total[place] for place in chosen] for total in totals]).mean(0)
    if not x.any():
        return None
    # A run that diverged has values that are not finite.
    with np.errstate(invalid="ignore"):
        return Curve(
            x,
            y.mean(0),
            y.std(0, ddof=1) if len(histories) > 1 else np.zeros(y.shape[1]),
            len(histories),
        )


def plot_curves(runs: Runs) -> Figure:
    """Draw every metric against rounds, megabytes, joules and seconds, as far as there are any; one
    line an experiment, a dot where it ends.

    Bands are one standard deviation over seeds to each side. Seconds are the devices' where all
    experiments have devices.

    Raises
    ------
    ArgumentError
        If nothing was measured.
    MissingExtraError
        If matplotlib is not installed.
    """
    panels = curves(runs)
    measured, across = [name for name in LABELS if panels[name]["round"]], columns(panels, runs)
    if not measured:
        hint = "a run of at least one round"
        raise ArgumentError(
            "plot_curves", f"one of {', '.join(LABELS)}", f"none in {sorted(runs)}", hint
        )
    figure = new_figure(1 + 3.8 * len(across), 0.6 + 2.7 * len(measured))
    grid = figure.subplots(len(measured), len(across), squeeze=False, sharey="row")
    numbers = {name: number for number, name in enumerate(runs)}
    for row, metric in enumerate(measured):
        for column, against in enumerate(across):
            _draw(grid[row][column], panels[metric][against], numbers, metric, against)
            if column == 0:
                grid[row][column].set_ylabel(LABELS[metric])
            if row == len(measured) - 1:
                grid[row][column].set_xlabel(AGAINST[against])
    handles, labels = grid[0][0].get_legend_handles_labels()
    seeds = sorted({len(histories) for histories in runs.values()} - {1})
    if seeds:
        from matplotlib.patches import Patch

        handles.append(Patch(color="grey", alpha=0.2, linewidth=0))
        labels.append(f"one sd of {' or '.join(map(str, seeds))} seeds to each side")
    if len(runs) > 1 or seeds:
        lines = math.ceil(len(handles) / (2 * len(across)))
        figure.legend(
            handles, labels, loc="outside upper center", ncols=math.ceil(len(handles) / lines)
        )
    return figure


def _draw(
    axes: Axes, drawn: Mapping[str, Curve], numbers: Mapping[str, int], metric: str, against: str
) -> None:
    for name, found in drawn.items():
        # Ten colours; then they come again, dashed.
        number = numbers[name]
        colour, style = f"C{number % 10}", ("-", "--", ":", "-.")[number // 10 % 4]
        axes.plot(
            found.x,
            found.mean,
            style,
            color=colour,
            label=name,
            linewidth=1.5,
            marker="o",
            markersize=4,
            markevery=[-1],
        )
        if found.seeds > 1:
            axes.fill_between(
                found.x,
                found.mean - found.sd,
                found.mean + found.sd,
                color=colour,
                alpha=0.2,
                linewidth=0,
            )
    if against in LOGARITHMIC:
        from matplotlib.ticker import LogLocator, NullLocator

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    if against == "round":
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if metric == "nll" and _spread(axes) > 30:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)


def _spread(axes: Axes) -> float:
    """Return the largest over the smallest value drawn: how many times one diverged run is above
    the others.
    """
    values = np.concatenate(
        [np.asarray(line.get_ydata(), dtype=float) for line in axes.get_lines()] or [np.zeros(0)]
    )
    values = values[np.isfinite(values) & (values > 0)]
    return float(values.max() / values.min()) if len(values) else 1.0
