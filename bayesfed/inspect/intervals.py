"""Pictures of posteriors: intervals of every value under several, of all sites and without each of
them, or of several methods; ranks of simulation-based calibration.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, whole
from bayesfed.federated import Posterior
from bayesfed.inference.evaluation.ranks import RankStatistics
from bayesfed.inference.exact.weighted import TRUSTED, Weighted
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
        By name, such as ``{"all": posterior, **posterior.without_each(memories)}``. Exact ones
        whose `status` is not "exact" or "adapted" have it in the legend, open marks and dotted
        lines.
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
    drawn, statuses = dict[str, dict[str, Interval]](), dict[str, str]()
    for name, posterior in posteriors.items():
        if isinstance(posterior, Weighted) and posterior.lack:
            statuses[name] = posterior.status
        values = _drawn(posterior, draws, seed).items()
        drawn[name] = {value: interval_of(sample) for value, sample in values}
    return intervals(drawn, axes, statuses)


class Interval(NamedTuple):
    """Mean, sd, and the ends of the central 90 % interval of a value."""

    mean: float
    sd: float
    low: float
    high: float


def interval_of(sample: np.ndarray) -> Interval:
    """Return mean, sd and interval of draws ``(n,)``."""
    low, high = np.quantile(sample, ENDS)
    return Interval(float(sample.mean()), float(sample.std()), float(low), float(high))


def intervals(
    drawn: Mapping[str, Mapping[str, Interval]],
    axes: Axes | None,
    statuses: Mapping[str, str] = MappingProxyType({}),
) -> Axes:
    """Plot what `plot_intervals` does.

    Parameters
    ----------
    drawn
        Intervals of each value by its name, by the name of the posterior.
    axes
        Axes to draw on; None for those of a new figure.
    statuses
        What the legend says of posteriors by their names, as `ExactPosterior.status`.
    """
    first, *others = drawn.values()
    names = [name for name in first if all(name in one for one in others)]
    if not 0 < len(names) <= MOST:
        hint = "posteriors of one model, and to_arviz with az.plot_forest for many values"
        raise ArgumentError("plot_intervals", f"1 to {MOST} shared values", len(names), hint)
    axes = given_or_new(axes, width=6.4, height=1.2 + len(names) * (0.12 + 0.14 * len(drawn)))
    labels = []
    styles = {
        name: ("-", f"C{number}") if _is_trusted(statuses.get(name, "")) else (":", "none")
        for number, name in enumerate(drawn)
    }
    for place, value in enumerate(names):
        mean, sd = first[value].mean, max(first[value].sd, 1e-300)
        labels.append(f"{value}   {mean:.3g} ({sd:.2g})")
        for number, (name, each) in enumerate(drawn.items()):
            interval = each[value]
            middle = (interval.mean - mean) / sd
            low = (interval.low - mean) / sd
            high = (interval.high - mean) / sd
            height = place + 0.8 * ((number + 0.5) / len(drawn) - 0.5)
            line, face = styles[name]
            color = f"C{number}"
            axes.hlines(height, low, high, color=color, linewidth=1.5, linestyle=line)
            axes.plot(middle, height, "o", color=color, markerfacecolor=face, markersize=4)
    for number, (name, (line, face)) in enumerate(styles.items()):
        label = ": ".join(filter(None, [name, statuses.get(name)]))
        color = f"C{number}"
        axes.plot([], [], f"o{line}", color=color, markerfacecolor=face, markersize=4, label=label)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    axes.invert_yaxis()
    reference = next(iter(drawn))
    xlabel = f"mean and 90% interval, in sds of {reference!r} from its mean"
    finished(axes, xlabel=xlabel).legend(fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
    return axes


def _is_trusted(status: str) -> bool:
    """Return whether draws are of the posterior, also of one that lacks sites; or nothing is known
    against them.
    """
    return status.partition(",")[0] in ("", *TRUSTED)


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
