"""How good predictions and posteriors are: proper scores, calibration, coverage, uncertainty in nats, ranks of simulated truths.

S is the number of draws from the posterior, B of rows, C of classes. Every function takes torch tensors on any device and gives tensors on that
device. Scores are means over rows; lower is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Binomial, Poisson

from bayesfed.errors import ArgumentError, DataError, complain

# How far the probabilities of a row may be from a sum of one.
TOLERANCE = 1e-3
# At most so many points of an ECDF are compared with its band.
POINTS = 100


def _real(where: str, values: Tensor, shape: str) -> None:
    """Raise unless the values are finite floating-point numbers of a shape such as "(S, B)", and there are some."""
    if values.ndim != shape.count(",") + 1 or not values.numel() or not values.is_floating_point():
        found = f"{tuple(values.shape)} of {values.dtype}"
        raise ArgumentError(complain(where, expected=f"floating-point numbers {shape}, at least one", actual=found, hint="reshaping, or .float()"))
    if not bool(values.isfinite().all()):
        found = f"{int((~values.isfinite()).sum())} that are not"
        raise ArgumentError(complain(where, expected="finite numbers", actual=found, hint="looking for the draw or row that overflowed"))


def _probabilities(where: str, values: Tensor, shape: str) -> None:
    _real(where, values, shape)
    off = float((values.sum(-1) - 1).abs().max())
    if float(values.min()) < 0 or off > TOLERANCE:
        found = f"a smallest one of {float(values.min()):.3g}, a sum off by {off:.3g}"
        raise ArgumentError(complain(where, expected="probabilities, a sum of 1 over the last axis", actual=found, hint="torch.softmax(logits, -1)"))


def _labels(where: str, probabilities: Tensor, targets: Tensor) -> None:
    rows, classes = probabilities.shape
    if targets.shape != (rows,) or targets.is_floating_point() or targets.dtype == torch.bool:
        found = f"{tuple(targets.shape)} of {targets.dtype}"
        raise DataError(complain(where, expected=f"integer labels ({rows},), one a row", actual=found, hint="targets.long()"))
    if not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        found = f"{int(targets.min())} to {int(targets.max())}"
        raise DataError(complain(where, expected=f"labels 0 to {classes - 1}", actual=found, hint="a column of probabilities for every class"))


def _whole(where: str, name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(complain(where, expected=f"a whole number {name} >= 1", actual=repr(value), hint=f"{name}=15"))


def nll(log_likelihood: Tensor) -> Tensor:
    """Return the negative log predictive density, ``-1/B sum_b log 1/S sum_s p(y_b | x_b, theta_s)``, in nats.

    Parameters
    ----------
    log_likelihood
        ``(S, B)``: log p(y_b | x_b, theta_s). Minus infinity is a probability of zero; the score is infinite if all draws give a row zero.

    Raises
    ------
    ArgumentError
        If the shape is another, or a number is NaN or plus infinity.
    """
    # A zero probability is legal, so it is looked at as a very small one.
    _real("nll", torch.where(log_likelihood.isneginf(), -1.0, log_likelihood), "(S, B)")
    return math.log(len(log_likelihood)) - log_likelihood.logsumexp(dim=0).mean()


def brier(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the Brier score, ``1/B sum_b sum_c (p_bc - [y_b = c])²``: 0 to 2, summed over classes as Brier (1950) has it.

    Parameters
    ----------
    probabilities
        ``(B, C)``; of draws, their mean.
    targets
        Labels ``(B,)``, 0 to C - 1.

    Raises
    ------
    ArgumentError, DataError
        If these are not probabilities, or not labels of such rows.
    """
    _probabilities("brier", probabilities, "(B, C)")
    _labels("brier", probabilities, targets)
    right = torch.nn.functional.one_hot(targets.long(), probabilities.shape[1])
    return (probabilities - right).square().sum(1).mean()


@dataclass(frozen=True, eq=False)
class CalibrationBins:
    """The data of a reliability diagram: rows in bins of equal width by the probability of the likeliest class.

    Parameters
    ----------
    edges
        ``(bins + 1,)``, from 0 to 1.
    confidence, accuracy
        ``(bins + 1,)``: mean probability of the likeliest class, and the share of rows where it is the right one; NaN where there is no row.
    count
        ``(bins + 1,)``: rows. Bin i is ``edges[i] <= confidence < edges[i + 1]``; the last one holds the confidences of exactly 1.
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def error(self) -> Tensor:
        """Expected calibration error: the mean over rows of |accuracy - confidence| of the row's bin (Guo et al. 2017)."""
        gap = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return (gap * self.count / self.count.sum()).sum()


def calibration_bins(probabilities: Tensor, targets: Tensor, bins: int = 15) -> CalibrationBins:
    """Return the rows in bins of equal width by confidence, the probability of the likeliest class.

    Parameters
    ----------
    probabilities
        ``(B, C)``; of draws, their mean.
    targets
        Labels ``(B,)``, 0 to C - 1.
    bins
        How many. They are those of torchmetrics: closed on the left, in 32 bits, confidences of exactly 1 apart.

    Raises
    ------
    ArgumentError, DataError
        If these are not probabilities, or not labels of such rows, or bins is below 1.
    """
    _whole("calibration_bins", "bins", bins)
    _probabilities("calibration_bins", probabilities, "(B, C)")
    _labels("calibration_bins", probabilities, targets)
    top, likeliest = probabilities.max(dim=1)
    top = top.float().clamp(max=1.0)
    edges = torch.linspace(0, 1, bins + 1, device=top.device)
    bin_of_row = torch.bucketize(top, edges, right=True) - 1
    # A mask in place of scattered sums: the same bits whenever it runs, on any device.
    member = bin_of_row == torch.arange(bins + 1, device=top.device)[:, None]
    count = member.sum(1)
    return CalibrationBins(edges, torch.where(member, top, 0.0).sum(1) / count, (member & (likeliest == targets)).sum(1) / count, count)


def expected_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> Tensor:
    """Return the expected calibration error (Guo et al. 2017), that of `calibration_bins`; it takes the same arguments."""
    return calibration_bins(probabilities, targets, bins).error


def coverage(draws: Tensor, targets: Tensor, level: float | Sequence[float] | Tensor) -> Tensor:
    """Return the share of targets inside the central interval of predictive draws, of the shape of `level`.

    Parameters
    ----------
    draws
        ``(S, B)`` of p(y | x, D), in the units of the targets.
    targets
        ``(B,)``.
    level
        Predictive mass of the interval, or several ``(K,)``; in (0, 1), at most ``(S - 1) / (S + 1)``.

    Raises
    ------
    ArgumentError
        If shapes do not fit, a number is not finite, or there are too few draws for a level.

    Notes
    -----
    The end points are the quantiles at position ``q (S + 1)`` of the ordered draws (Weibull's; "weibull" in NumPy). If a target comes from where the
    draws come from, then P(target <= k-th of S draws) is k / (S + 1), so `level` is what to expect at any S; NumPy's default covers less.
    """
    _real("coverage, draws", draws, "(S, B)")
    if targets.shape != draws.shape[1:] or not bool(targets.isfinite().all()):
        found = f"{tuple(targets.shape)}, {int(targets.isfinite().sum())} finite"
        raise ArgumentError(complain("coverage", expected=f"finite targets ({draws.shape[1]},)", actual=found, hint="draws (S, B), targets (B,)"))
    levels = torch.as_tensor(level, dtype=torch.float64, device="cpu")
    if levels.ndim > 1 or not levels.numel() or not bool(((levels > 0) & (levels < 1)).all()):
        raise ArgumentError(complain("coverage", expected="levels inside (0, 1)", actual=level, hint="[0.5, 0.9]"))
    count, widest = len(draws), float(levels.max())
    if widest > (count - 1) / (count + 1) + 1e-9:
        need = math.ceil(2 / (1 - widest) - 1 - 1e-9)
        raise ArgumentError(complain("coverage", expected=f"a level <= {(count - 1) / (count + 1):.4g}", actual=level, hint=f"{need} draws"))
    position = ((1 - levels.reshape(-1)) / 2 * (count + 1) - 1).clamp(min=0).to(draws.device)
    below, share = position.long(), position.frac().to(draws.dtype)[:, None]
    ordered = draws.sort(dim=0).values
    lower = torch.lerp(ordered[below], ordered[below + 1], share)
    upper = torch.lerp(ordered[count - 1 - below], ordered[count - 2 - below], share)
    return ((lower <= targets) & (targets <= upper)).to(draws.dtype).mean(1).reshape(levels.shape)


def _entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy over the last axis in nats; ``0 log 0`` is 0."""
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(-1)


def predictive_entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy of each row's predictive distribution, H[E p(y | x, theta)], ``(B,)`` in nats: the total uncertainty.

    Parameters
    ----------
    probabilities
        ``(S, B, C)``: p(y = c | x_b, theta_s). Zeros are legal.

    Raises
    ------
    ArgumentError
        If these are not probabilities.
    """
    _probabilities("predictive_entropy", probabilities, "(S, B, C)")
    return _entropy(probabilities.mean(0)).clamp(min=0)


def mutual_information(probabilities: Tensor) -> Tensor:
    """Return I(y; theta | x) = H[E p] - E H[p], ``(B,)`` in nats: what a label would say about the weights (BALD; Houlsby et al. 2011).

    Parameters
    ----------
    probabilities
        ``(S, B, C)``: p(y = c | x_b, theta_s). Zeros are legal. With one draw the information is 0.

    Raises
    ------
    ArgumentError
        If these are not probabilities.
    """
    _probabilities("mutual_information", probabilities, "(S, B, C)")
    return (_entropy(probabilities.mean(0)) - _entropy(probabilities).mean(0)).clamp(min=0)


@dataclass(frozen=True, eq=False)
class RankStatistics:
    """The ECDF of ranks beside that of uniform ranks; all ``(K,)``, in 64 bits.

    Parameters
    ----------
    uniform, ecdf
        P(rank <= r) at K values of r, if ranks are uniform and as observed.
    lower, upper
        The simultaneous band: where all of the ECDF lies, with at least the level's probability, if ranks are uniform.
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
    """Compare the ranks of simulation-based calibration with uniform ones (Talts et al. 2018; Säilynoja, Bürkner and Vehtari 2022).

    Parameters
    ----------
    ranks
        Integers ``(n,)``: in each of n simulated data sets, how many of the posterior's draws are below the true value, 0 to `draws`.
    draws
        L, how many draws each rank was taken among.
    level
        Of the simultaneous band, in (0, 1).

    Raises
    ------
    ArgumentError
        If ranks are not integers from 0 to draws, draws is below 1, or the level is outside (0, 1).
    """
    _whole("rank_statistics", "draws", draws)
    if ranks.ndim != 1 or not ranks.numel() or ranks.is_floating_point() or not 0 <= int(ranks.min()) <= int(ranks.max()) <= draws:
        found = f"{tuple(ranks.shape)} of {ranks.dtype}" + (f", {float(ranks.min()):g} to {float(ranks.max()):g}" if ranks.numel() else "")
        raise ArgumentError(complain("rank_statistics", expected=f"integer ranks (n,), 0 to {draws}", actual=found, hint="(draws < truth).sum(0)"))
    uniform, lower, upper = (values.to(ranks.device) for values in ecdf_band(len(ranks), draws, level))
    counts = torch.bincount(ranks, minlength=draws + 1).cumsum(0)[_points(draws).to(ranks.device)]
    return RankStatistics(uniform, counts.double() / len(ranks), lower, upper)


def ecdf_band(count: int, draws: int, level: float = 0.95) -> tuple[Tensor, Tensor, Tensor]:
    """Return P(rank <= r) of uniform ranks and the lower and upper end of the simultaneous band of their ECDF, each ``(K,)``.

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
    Exact, without simulation: pointwise binomial intervals, all of the largest tail probability gamma at which the whole band still holds
    the level (Säilynoja, Bürkner and Vehtari 2022, by optimisation). The joint probability is a sum over the counts at successive points, a Markov
    chain: independent Poisson steps given their sum n. Counts are whole numbers, so the band holds a little more than the level.
    """
    _whole("ecdf_band", "count", count)
    _whole("ecdf_band", "draws", draws)
    if not 0 < level < 1:
        raise ArgumentError(complain("ecdf_band", expected="a level inside (0, 1)", actual=level, hint="0.95"))
    lower, upper = _counts(count, draws, level)
    uniform = (_points(draws) + 1).double() / (draws + 1)
    return uniform, torch.tensor(lower, dtype=torch.float64) / count, torch.tensor(upper, dtype=torch.float64) / count


def _points(draws: int) -> Tensor:
    """Return the ranks r at which an ECDF is compared."""
    points = min(draws, POINTS)
    return torch.arange(points) * (draws - 1) // max(points - 1, 1)


@lru_cache(maxsize=64)
def _counts(count: int, draws: int, level: float) -> tuple[list[int], list[int]]:
    """Return both ends of the band as counts of ranks; the ranks of a thousand parameters have one band."""
    uniform = (_points(draws) + 1).double() / (draws + 1)
    counts = torch.arange(count + 1, dtype=torch.float64)
    cdf = Binomial(count, uniform[:, None]).log_prob(counts).exp().cumsum(1)
    steps = torch.diff(uniform, prepend=uniform.new_zeros(1), append=uniform.new_ones(1))
    jumps = Poisson(count * steps[:, None]).log_prob(counts).exp().numpy()
    total = float(Poisson(counts.new_tensor(count)).log_prob(counts[-1]).exp())

    def band(gamma: float) -> tuple[list[int], list[int]]:
        return (cdf < gamma / 2).sum(1).tolist(), (cdf < 1 - gamma / 2).sum(1).clamp(max=count).tolist()

    # By the union bound the first gamma is small enough; above the second a single point may miss the level.
    low, high = (1 - level) / len(uniform), 1 - level
    while high / low > 1 + 1e-6:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _inside(*band(middle), jumps) / total >= level else (low, middle)
    return band(low)


def _inside(lower: list[int], upper: list[int], jumps: np.ndarray) -> float:
    """Return the probability that a Poisson process of rate n is inside the band at every point, and at n in the end."""
    first, state, last = 0, np.ones(1), jumps.shape[1] - 1
    for low, high, jump in zip([*lower, last], [*upper, last], jumps, strict=True):
        state = np.convolve(state, jump[: high - first + 1])[low - first : high - first + 1]
        first = low
    return float(state.sum())
