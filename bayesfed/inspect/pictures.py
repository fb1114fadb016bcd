"""Plots of a run. Each function draws on Matplotlib axes and returns them; only `save` writes a
file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from bayesfed.data.files import writing
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.errors.roles import Role
from bayesfed.federated import Record, bits
from bayesfed.inspect.figures import given_or_new
from bayesfed.models import SiteBelief

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked()
def plot_series(
    series: Mapping[str, Sequence[tuple[int, float]]], *, label: str, axes: Axes | None = None
) -> Axes:
    """Plot a quantity over the rounds, such as ELBO, density or accuracy, with one line for each
    run.

    Parameters
    ----------
    series
        Pairs (round, value) by name of the run.
    label
        Name of the quantity.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If no run has a value.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not any(series.values()):
        raise ArgumentError(
            "plot_series", "a value", f"none in {sorted(series)}", "a callback that enters it"
        )
    axes = given_or_new(axes)
    for name, points in series.items():
        rounds, values = zip(*points, strict=True) if points else ((), ())
        axes.plot([number + 1 for number in rounds], values, marker=".", label=name)
    axes.set(xlabel="round", ylabel=label)
    axes.grid(alpha=0.3)
    if len(series) > 1:
        axes.legend()
    return axes


@checked()
def plot_accuracy_against_bits(
    histories: Mapping[str, Sequence[Record]], *, metric: str = "accuracy", axes: Axes | None = None
) -> Axes:
    """Plot a metric against the data sent so far, down and up, with one line for each method, as in
    Fig. 3 of D-Turbo-VBI.

    Parameters
    ----------
    histories
        Histories of runs by name of the method.
    metric
        Name of the metric; rounds without it are left out.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    """
    curves = {}
    for name, history in histories.items():
        spent = accumulate(bits(record.rows) for record in history)
        curves[name] = [
            (total / 8e6, record.metrics[metric])
            for total, record in zip(spent, history, strict=True)
            if metric in record.metrics
        ]
    return plot_against_bits(curves, label=metric, axes=axes)


@checked()
def plot_against_bits(
    curves: Mapping[str, Sequence[tuple[float, float]]], *, label: str, axes: Axes | None = None
) -> Axes:
    """Plot curves of (megabytes sent, value), with one line for each method.

    Parameters
    ----------
    curves
        Points by name of the method.
    label
        Name of the value.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    MissingExtraError
        If Matplotlib is not installed.
    """
    axes = given_or_new(axes)
    from matplotlib.ticker import LogLocator, NullFormatter

    for name, points in curves.items():
        x, y = zip(*points, strict=True) if points else ((), ())
        axes.plot(x, y, marker=".", markersize=4, label=name)
    axes.set(xlabel="megabytes sent, down and up", ylabel=label, xscale="log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    return axes


@checked()
def plot_forest(site: SiteBelief, *, count: int = 20, axes: Axes | None = None) -> Axes:
    """Plot means and central 90 % intervals of the weights of a layer that are likeliest active,
    coloured by inclusion probability; ties are broken by |mean|.

    Parameters
    ----------
    site
        Belief of the layer.
    count
        Number of weights.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If `count` is below 1.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if count < 1:
        raise ArgumentError("plot_forest", "count >= 1", count, "20")
    mean, sd, inclusion = (
        value.expand_as(site.mean).flatten().numpy()
        for value in (site.mean, site.sd, site.inclusion)
    )
    order = np.lexsort((-np.abs(mean), -inclusion))[:count][::-1]
    mean, half, height = mean[order], NormalDist().inv_cdf(0.95) * sd[order], np.arange(len(order))
    axes = given_or_new(axes, height=1 + 0.22 * len(order))
    axes.hlines(height, mean - half, mean + half, color="0.4", linewidth=1.5)
    dots = axes.scatter(
        mean, height, s=14, c=inclusion[order], vmin=0, vmax=1, cmap="viridis", zorder=3
    )
    axes.axvline(0, color="0.3", linewidth=0.8)
    named = [divmod(int(place), site.mean.shape[1]) for place in order]
    axes.set_yticks(height, [f"unit {unit}, input {i}" for unit, i in named], fontsize=7)
    axes.set_xlabel("weight: mean and 90% interval")
    # As many as have room beside the colour bar.
    axes.locator_params(axis="x", nbins=5)
    if (figure := axes.get_figure()) is not None:
        figure.colorbar(dots, ax=axes, label="inclusion probability")
    return axes


@checked(
    axes=Role(
        lambda axes: hasattr(axes, "get_figure"),
        "axes",
        "plot_series({'a': [(0, 1.0)]}, label='NLL')",
    )
)
def save(axes: Axes, path: str | Path, *, dpi: int = 110) -> None:
    """Save the figure of these axes to a file, and create the folder if needed.

    Parameters
    ----------
    axes
        Axes of the figure.
    path
        The file; its suffix gives the format.
    dpi
        Dots per inch.

    Raises
    ------
    ArgumentError
        If the axes have been removed from their figure.
    """
    path = Path(path)
    figure = axes.get_figure(root=True)
    if figure is None:
        raise ArgumentError("save", "axes of a figure", "axes removed from theirs", "drawing again")
    with writing("save", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi)
