"""Pictures of posteriors: intervals of every value under several, of all sites and without each of
them, or of several methods; ranks of simulation-based calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, whole
from bayesfed.federated import Posterior
from bayesfed.inference.evaluation.ranks import RankStatistics
from bayesfed.inspect.figures import finished, given_or_new
from bayesfed.keys import Key

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Values that a picture can show, and the ends of its intervals.
MOST, ENDS = 60, (0.05, 0.95)


@checked(draws=whole(100, "draws=1000"))
def plot_intervals(
    posteriors: Mapping[str, Posterior],
    *,
    draws: int = 1000,
    seed: int = 0,
    axes: Axes | None = None,
) -> Axes:
    """Plot means and central 90 % intervals of every value of a model under several posteriors, one
    below the other, in sds of the first posterior from its mean, so that values of any unit stand
    in one picture; the mean and sd themselves are beside the names.

    Parameters
    ----------
    posteriors
        By name, such as ``{"all": posterior, **posterior.without_each(memories)}``.
    draws, seed
        Draws of each, at least 100, and what names them.
    axes
        Axes to draw on. Default: those of a new figure.

    Raises
    ------
    ArgumentError
        If there is no posterior, no value that all of them have, or more than 60.
    MissingExtraError
        If Matplotlib is not installed.
    """
    if not posteriors:
        hint = "{'all': result.posterior}"
        raise ArgumentError("plot_intervals", "at least one posterior", "none", hint)
    return intervals({name: _drawn(one, draws, seed) for name, one in posteriors.items()}, axes)


def intervals(drawn: Mapping[str, Mapping[str, np.ndarray]], axes: Axes | None) -> Axes:
    """Plot what `plot_intervals` does of draws of each value by its name."""
    first, *others = drawn.values()
    names = [name for name in first if all(name in one for one in others)]
    if not 0 < len(names) <= MOST:
        hint = "posteriors of one model, and to_arviz with az.plot_forest for many values"
        raise ArgumentError("plot_intervals", f"1 to {MOST} shared values", len(names), hint)
    axes = given_or_new(axes, width=6.4, height=1.2 + len(names) * (0.12 + 0.14 * len(drawn)))
    labels = []
    for place, name in enumerate(names):
        mean, sd = first[name].mean(), max(first[name].std(), 1e-300)
        labels.append(f"{name}   {mean:.3g} ({sd:.2g})")
        for number, one in enumerate(drawn.values()):
            scaled = (one[name] - mean) / sd
            height = place + 0.8 * ((number + 0.5) / len(drawn) - 0.5)
            low, high = np.quantile(scaled, ENDS)
            axes.hlines(height, low, high, color=f"C{number}", linewidth=1.5)
            axes.plot(scaled.mean(), height, "o", color=f"C{number}", markersize=4)
    for number, name in enumerate(drawn):
        axes.plot([], [], "o-", color=f"C{number}", markersize=4, label=name)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    axes.invert_yaxis()
    xlabel = f"mean and 90% interval, in sds of {next(iter(drawn))!r} from its mean"
    finished(axes, xlabel=xlabel).legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return axes


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


def _drawn(posterior: Posterior, draws: int, seed: int) -> dict[str, np.ndarray]:
    """Return draws of every value, by its name."""
    found = [posterior.draw(Key(seed, "intervals", number)) for number in range(draws)]
    values = {}
    for name in found[0]:
        together = torch.stack([one[name] for one in found]).double().numpy()
        for place in np.ndindex(together.shape[1:]):
            index = f"[{', '.join(map(str, place))}]" if place else ""
            values[f"{name}{index}"] = together[(slice(None), *place)]
    return values
