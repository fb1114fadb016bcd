"""Pictures of results: curves with bands over seeds, calibration, and who held what."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

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
# What curves are drawn against: what a round spends of it, and the label.
AGAINST: Mapping[str, tuple[Callable[[Record], float], str]] = {
    "round": (lambda record: 1.0, "round"),
    "megabytes": (lambda record: bits(record.rows) / 8e6, "megabytes sent, down and up (log)"),
    "joules": (lambda record: energy_j(record.rows), "joules of all devices (log)"),
    "device_s": (lambda record: latency_s(record.rows), "seconds of the devices"),
    "seconds": (lambda record: record.seconds, "seconds of this computer's clock"),
}
LOGARITHMIC = ("megabytes", "joules")

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


def curves(runs: Runs) -> Panels:
    """Return the curves of every metric against every cost, by name of the experiment: those that
    were measured, over the rounds that all seeds have, where something was spent.
    """
    panels: Panels = {metric: {against: {} for against in AGAINST} for metric in LABELS}
    for name, histories in runs.items():
        rounds = list(zip(*histories, strict=False))
        for against, (spent, _) in AGAINST.items():
            totals = np.array(
                [[*accumulate(map(spent, history))][: len(rounds)] for history in histories]
            )
            for metric in LABELS:
                chosen = [
                    place
                    for place, records in enumerate(rounds)
                    if all(metric in record.metrics for record in records)
                ]
                if chosen and (x := totals[:, chosen].mean(0)).any():
                    values = [
                        [record.metrics[metric] for record in rounds[place]] for place in chosen
                    ]
                    panels[metric][against][name] = _curve(x, np.array(values))
    return panels


def scored(histories: Sequence[Sequence[Record]]) -> bool:
    """Return whether there is anything to draw of an experiment."""
    return any(panel["round"] for panel in curves({"": histories}).values())


def _curve(x: NDArray[np.float64], values: NDArray[np.float64]) -> Curve:
    seeds = values.shape[1]
    # A run that diverged has values that are not finite.
    with np.errstate(invalid="ignore"):
        sd = values.std(1, ddof=1) if seeds > 1 else np.zeros(len(x))
        return Curve(x, values.mean(1), sd, seeds)


def columns(panels: Panels, runs: Runs) -> list[str]:
    """Return the costs to draw against: those that were spent, and the clock's seconds only where
    not all experiments have devices.
    """
    spending = {
        against: {name for row in panels.values() for name in row[against]} for against in AGAINST
    }
    if len(spending["device_s"]) == len(runs):
        spending.pop("seconds")
    return [against for against, names in spending.items() if names]


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
        raise ArgumentError(
            "plot_curves",
            f"one of {', '.join(LABELS)}",
            f"none in {sorted(runs)}",
            "a run of at least one round",
        )
    figure = new_figure(1 + 3.8 * len(across), 0.6 + 2.7 * len(measured))
    grid = figure.subplots(len(measured), len(across), squeeze=False, sharey="row")
    for metric, row in zip(measured, grid, strict=True):
        row[0].set_ylabel(LABELS[metric])
        for against, axes in zip(across, row, strict=True):
            _draw(axes, panels[metric][against], list(runs), metric, against)
    for against, axes in zip(across, grid[-1], strict=True):
        axes.set_xlabel(AGAINST[against][1])
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
    axes: Axes, drawn: Mapping[str, Curve], names: Sequence[str], metric: str, against: str
) -> None:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    for name, found in drawn.items():
        # Ten colours; then they come again, dashed.
        again, number = divmod(names.index(name), 10)
        colour, style = f"C{number}", ("-", "--", ":", "-.")[again % 4]
        look: dict[str, Any] = {
            "label": name,
            "linewidth": 1.5,
            "marker": "o",
            "markersize": 4,
            "markevery": [-1],
        }
        axes.plot(found.x, found.mean, style, color=colour, **look)
        if found.seeds > 1:
            low, high = found.mean - found.sd, found.mean + found.sd
            axes.fill_between(found.x, low, high, color=colour, alpha=0.2, linewidth=0)
    if against in LOGARITHMIC:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=12))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
    if against == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    # One diverged run may be far above the others.
    values = np.concatenate([np.zeros(0), *(found.mean for found in drawn.values())])
    values = values[np.isfinite(values) & (values > 0)]
    if metric == "nll" and len(values) and values.max() > 30 * values.min():
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
