"""Pictures of simulation-based calibration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.inference.evaluation.ranks import RankStatistics
from bayesfed.inspect.figures import given_or_new

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@checked()
def plot_ranks(statistics: Mapping[str, RankStatistics], *, axes: Axes | None = None) -> Axes:
    """Plot how much the ECDF of the ranks of each coordinate differs from that of uniform ranks,
    and the band in which all lie if posteriors are right (Säilynoja, Bürkner and Vehtari 2022).

    Too narrow posteriors are above the band among low ranks and below it among high ones; those
    with too large means are above it everywhere.

    Parameters
    ----------
    statistics
        ``simulated_calibration(...).statistics()``, of one data set count and level.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If there are no statistics.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not statistics:
        hint = "simulated_calibration(model, fit, inputs).statistics()"
        raise ArgumentError("plot_ranks", "at least one coordinate's ranks", "none", hint)
    axes = given_or_new(axes)
    for name, one in statistics.items():
        axes.plot(one.uniform, one.ecdf - one.uniform, label=name, linewidth=1)
    band = next(iter(statistics.values()))
    low, high = band.lower - band.uniform, band.upper - band.uniform
    axes.fill_between(band.uniform, low, high, color="0.5", alpha=0.25, linewidth=0)
    axes.set(xlabel="rank of the truth, as a share", ylabel="ECDF less uniform")
    axes.grid(alpha=0.3)
    if len(statistics) <= 12:
        axes.legend(fontsize="small", ncols=2)
    return axes
