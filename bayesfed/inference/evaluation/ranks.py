"""Simulation-based calibration: the ranks of simulated truths among a posterior's draws, compared
with uniform ranks.

Talts, Betancourt, Simpson, Vehtari and Gelman (2018); the band is that of Säilynoja, Bürkner and
Vehtari (2022).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Binomial, Poisson

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import check, whole

# Largest number of points at which an ECDF is compared with its band.
POINTS = 100


@dataclass(frozen=True, eq=False)
class RankStatistics:
    """The ECDF of ranks and that of uniform ranks; all ``(K,)``, in 64 bits.

    Parameters
    ----------
    uniform, ecdf
        P(rank <= r) at K values of r, for uniform ranks and as observed.
    lower, upper
        The simultaneous band: if ranks are uniform, all of the ECDF lies in it with at least the
        level's probability.
    """

    uniform: Tensor
    ecdf: Tensor
    lower: Tensor
    upper: Tensor

    @property
    def deviation(self) -> float:
        """Largest distance of the ECDF from uniform, in [0, 1]."""
        return float((self.ecdf - self.uniform).abs().max())

    @property
    def inside(self) -> bool:
        """Whether all of the ECDF lies in the band."""
        return bool(((self.lower <= self.ecdf) & (self.ecdf <= self.upper)).all())


def rank_statistics(ranks: Tensor, draws: int, level: float = 0.95) -> RankStatistics:
    """Compare the ranks of simulation-based calibration with uniform ones (Talts et al. 2018;
    Säilynoja, Bürkner and Vehtari 2022).

    Parameters
    ----------
    ranks
        Integers ``(n,)``: in each of n simulated data sets, how many of the posterior's draws are
        below the true value, 0 to `draws`.
    draws
        L, the number of draws behind each rank.
    level
        Probability of the simultaneous band, in (0, 1).

    Raises
    ------
    ArgumentError
        If ranks are not integers from 0 to draws, draws is below 1, or the level is outside (0, 1).
    """
    check("rank_statistics, draws", draws, whole(1, "15"))
    if (
        ranks.ndim != 1
        or not ranks.numel()
        or ranks.is_floating_point()
        or not 0 <= int(ranks.min()) <= int(ranks.max()) <= draws
    ):
        actual = f"{tuple(ranks.shape)} of {ranks.dtype}" + (
            f", {float(ranks.min()):g} to {float(ranks.max()):g}" if ranks.numel() else ""
        )
        raise ArgumentError(
            "rank_statistics", f"integer ranks (n,), 0 to {draws}", actual, "(draws < truth).sum(0)"
        )
    uniform, lower, upper = (
        values.to(ranks.device) for values in ecdf_band(len(ranks), draws, level)
    )
    counts = torch.bincount(ranks, minlength=draws + 1).cumsum(0)[_points(draws).to(ranks.device)]
    return RankStatistics(uniform, counts.double() / len(ranks), lower, upper)


def ecdf_band(count: int, draws: int, level: float = 0.95) -> tuple[Tensor, Tensor, Tensor]:
    """Return P(rank <= r) of uniform ranks and the lower and upper end of the simultaneous band of
    their ECDF, each ``(K,)``.

    Parameters
    ----------
    count
        n, the number of ranks; the band narrows as ``n ** -0.5``.
    draws
        L: ranks are 0 to L. K is the smaller of L and 100, points r evenly spaced from 0 to L - 1.
    level
        Probability that the ECDF of n independent uniform ranks is inside at every point.

    Raises
    ------
    ArgumentError
        If count or draws is below 1, or the level is outside (0, 1).

    Notes
    -----
    Exact, without simulation: pointwise binomial intervals of one tail probability gamma, the
    largest for which the whole band still has the level (Säilynoja, Bürkner and Vehtari 2022, by
    optimisation). The joint probability is a sum over the counts at successive points, a Markov
    chain: independent Poisson steps given their sum n. Counts are whole numbers, so the probability
    of the band is a little above the level.
    """
    check("ecdf_band, count", count, whole(1, "15"))
    check("ecdf_band, draws", draws, whole(1, "15"))
    if not 0 < level < 1:
        raise ArgumentError("ecdf_band", "a level inside (0, 1)", level, "0.95")
    lower, upper = _counts(count, draws, level)
    uniform = (_points(draws) + 1).double() / (draws + 1)
    return (
        uniform,
        torch.tensor(lower, dtype=torch.float64) / count,
        torch.tensor(upper, dtype=torch.float64) / count,
    )


def _points(draws: int) -> Tensor:
    """Return the ranks r at which an ECDF is compared."""
    points = min(draws, POINTS)
    return torch.arange(points) * (draws - 1) // max(points - 1, 1)


@lru_cache(maxsize=64)
def _counts(count: int, draws: int, level: float) -> tuple[list[int], list[int]]:
    """Return both ends of the band as counts of ranks. Cached: the ranks of a thousand parameters
    have one band.
    """
    uniform = (_points(draws) + 1).double() / (draws + 1)
    counts = torch.arange(count + 1, dtype=torch.float64)
    cdf = Binomial(count, uniform[:, None]).log_prob(counts).exp().cumsum(1)
    steps = torch.diff(uniform, prepend=uniform.new_zeros(1), append=uniform.new_ones(1))
    jumps = Poisson(count * steps[:, None]).log_prob(counts).exp().numpy()
    total = float(Poisson(counts.new_tensor(count)).log_prob(counts[-1]).exp())

    def band(gamma: float) -> tuple[list[int], list[int]]:
        return (cdf < gamma / 2).sum(1).tolist(), (cdf < 1 - gamma / 2).sum(1).clamp(
            max=count
        ).tolist()

    # By the union bound the first gamma is small enough; above the second a single point may miss
    # the level.
    low, high = (1 - level) / len(uniform), 1 - level
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (
            (middle, high) if _inside(*band(middle), jumps) / total >= level else (low, middle)
        )
    return band(low)


def _inside(lower: list[int], upper: list[int], jumps: np.ndarray) -> float:
    """Return the probability that a Poisson process of rate n is inside the band at every point,
    and at n in the end.
    """
    first, state, last = 0, np.ones(1), jumps.shape[1] - 1
    for low, high, jump in zip([*lower, last], [*upper, last], jumps, strict=True):
        state = np.convolve(state, jump[: high - first + 1])[low - first : high - first + 1]
        first = low
    return float(state.sum())
