"""How good predictions are: proper scores, calibration, coverage, uncertainty in nats.

S draws from the posterior, B rows, C classes. Functions take torch tensors on any device and return
tensors on that device. Scores are means over rows; lower is better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import check, whole

# How far the probabilities of a row may be from a sum of one.
TOLERANCE = 1e-3


def _real(where: str, values: Tensor, shape: str) -> None:
    """Raise unless the values are finite floating-point numbers, at least one, with the axes of
    `shape`, such as "(S, B)".
    """
    if values.ndim != shape.count(",") + 1 or not values.numel() or not values.is_floating_point():
        raise ArgumentError(
            where,
            f"floating-point numbers {shape}, at least one",
            f"{tuple(values.shape)} of {values.dtype}",
            "reshaping, or .float()",
        )
    if not values.isfinite().all():
        raise ArgumentError(
            where,
            "finite numbers",
            f"{int((~values.isfinite()).sum())} that are not",
            "looking for the draw or row that overflowed",
        )


def _probabilities(where: str, values: Tensor, shape: str) -> None:
    _real(where, values, shape)
    off = float((values.sum(-1) - 1).abs().max())
    if float(values.min()) < 0 or off > TOLERANCE:
        raise ArgumentError(
            where,
            "probabilities, a sum of 1 over the last axis",
            f"a smallest one of {float(values.min()):.3g}, a sum off by {off:.3g}",
            "torch.softmax(logits, -1)",
        )


def _labels(where: str, probabilities: Tensor, targets: Tensor) -> None:
    rows, classes = probabilities.shape
    if targets.shape != (rows,) or targets.is_floating_point() or targets.dtype == torch.bool:
        raise DataError(
            where,
            f"integer labels ({rows},), one a row",
            f"{tuple(targets.shape)} of {targets.dtype}",
            "targets.long()",
        )
    if not 0 <= int(targets.min()) <= int(targets.max()) < classes:
        raise DataError(
            where,
            f"labels 0 to {classes - 1}",
            f"{int(targets.min())} to {int(targets.max())}",
            "a column of probabilities for every class",
        )


def nll(log_likelihood: Tensor) -> Tensor:
    """Return the negative log predictive density,
    ``-1/B sum_b log 1/S sum_s p(y_b | x_b, theta_s)``, in nats.

    Parameters
    ----------
    log_likelihood
        ``(S, B)``: log p(y_b | x_b, theta_s). Minus infinity is a probability of zero; the score is
        infinite if all draws give a row zero.

    Raises
    ------
    ArgumentError
        If the shape is another, or a number is NaN or plus infinity.
    """
    # Minus infinity is legal: any finite number stands for it in the check.
    _real("nll", torch.where(log_likelihood.isneginf(), -1.0, log_likelihood), "(S, B)")
    return math.log(len(log_likelihood)) - log_likelihood.logsumexp(dim=0).mean()


def brier(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the Brier score, ``1/B sum_b sum_c (p_bc - [y_b = c])²``: 0 to 2, summed over classes
    as Brier (1950) has it.

    Parameters
    ----------
    probabilities
        ``(B, C)``, the mean over draws.
    targets
        Labels ``(B,)``, 0 to C - 1.

    Raises
    ------
    ArgumentError
        If the probabilities are none.
    DataError
        If the targets are not labels of these rows.
    """
    _probabilities("brier", probabilities, "(B, C)")
    _labels("brier", probabilities, targets)
    right = torch.nn.functional.one_hot(targets.long(), probabilities.shape[1])
    return (probabilities - right).square().sum(1).mean()


@dataclass(frozen=True, eq=False)
class CalibrationBins:
    """The data of a reliability diagram: rows in bins of equal width by the probability of the
    likeliest class.

    Parameters
    ----------
    edges
        ``(bins + 1,)``, from 0 to 1.
    confidence, accuracy
        ``(bins + 1,)``: mean probability of the likeliest class, and the share of rows where it is
        the right one; NaN in empty bins.
    count
        ``(bins + 1,)``: number of rows. Bin i is ``edges[i] <= confidence < edges[i + 1]``; the
        last one holds the confidences of exactly 1.
    """

    edges: Tensor
    confidence: Tensor
    accuracy: Tensor
    count: Tensor

    @property
    def error(self) -> Tensor:
        """Expected calibration error: the mean over rows of |accuracy - confidence| of the row's
        bin (Guo et al. 2017).
        """
        gap = (self.accuracy - self.confidence).abs().nan_to_num(0.0)
        return (gap * self.count / self.count.sum()).sum()


def calibration_bins(probabilities: Tensor, targets: Tensor, bins: int = 15) -> CalibrationBins:
    """Return the rows in bins of equal width by confidence, the probability of the likeliest class.

    Parameters
    ----------
    probabilities
        ``(B, C)``, the mean over draws.
    targets
        Labels ``(B,)``, 0 to C - 1.
    bins
        Number of bins, as torchmetrics has them: closed on the left, in 32 bits, confidences of
        exactly 1 in one bin more.

    Raises
    ------
    ArgumentError
        If the probabilities are none, or bins is below 1.
    DataError
        If the targets are not labels of these rows.
    """
    check("calibration_bins, bins", bins, whole(1, "15"))
    _probabilities("calibration_bins", probabilities, "(B, C)")
    _labels("calibration_bins", probabilities, targets)
    top, likeliest = probabilities.max(dim=1)
    top = top.float().clamp(max=1.0)
    edges = torch.linspace(0, 1, bins + 1, device=top.device)
    bin_of_row = torch.bucketize(top, edges, right=True) - 1
    # A mask, not scattered sums, whose order and so whose last bits vary on GPUs.
    member = bin_of_row == torch.arange(bins + 1, device=top.device)[:, None]
    count = member.sum(1)
    return CalibrationBins(
        edges,
        torch.where(member, top, 0.0).sum(1) / count,
        (member & (likeliest == targets)).sum(1) / count,
        count,
    )


def expected_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> Tensor:
    """Return the expected calibration error (Guo et al. 2017) of `calibration_bins`, which takes
    the same arguments.
    """
    return calibration_bins(probabilities, targets, bins).error


def coverage(draws: Tensor, targets: Tensor, level: float | Sequence[float] | Tensor) -> Tensor:
    """Return the share of targets inside the central interval of predictive draws, of the shape of
    `level`.

    Parameters
    ----------
    draws
        ``(S, B)``, drawn from p(y | x, D), in the units of the targets.
    targets
        ``(B,)``.
    level
        Predictive mass of the interval, one or several ``(K,)``; in (0, 1), at most
        ``(S - 1) / (S + 1)``.

    Raises
    ------
    ArgumentError
        If shapes do not fit, a number is not finite, or there are too few draws for a level.

    Notes
    -----
    The end points are the quantiles at position ``q (S + 1)`` of the ordered draws (Weibull's;
    "weibull" in NumPy). If target and draws have one distribution, P(target <= k-th of S draws) is
    k / (S + 1), so the expected coverage is `level` at any S; NumPy's default covers less.
    """
    _real("coverage, draws", draws, "(S, B)")
    if targets.shape != draws.shape[1:] or not targets.isfinite().all():
        raise ArgumentError(
            "coverage",
            f"finite targets ({draws.shape[1]},)",
            f"{tuple(targets.shape)}, {int(targets.isfinite().sum())} finite",
            "draws (S, B), targets (B,)",
        )
    levels = torch.as_tensor(level, dtype=torch.float64, device="cpu")
    if levels.ndim > 1 or not levels.numel() or not ((levels > 0) & (levels < 1)).all():
        raise ArgumentError("coverage", "levels inside (0, 1)", level, "[0.5, 0.9]")
    count, widest = len(draws), float(levels.max())
    if widest > (count - 1) / (count + 1) + 1e-9:
        need = math.ceil(2 / (1 - widest) - 1 - 1e-9)
        raise ArgumentError(
            "coverage", f"a level <= {(count - 1) / (count + 1):.4g}", level, f"{need} draws"
        )
    tails = (1 - levels.reshape(-1)) / 2
    shares = torch.cat([tails, 1 - tails]).numpy()
    ends = np.quantile(draws.detach().double().cpu().numpy(), shares, axis=0, method="weibull")
    lower, upper = torch.from_numpy(ends).to(draws).chunk(2)
    return ((lower <= targets) & (targets <= upper)).to(draws.dtype).mean(1).reshape(levels.shape)


def _entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy over the last axis in nats; ``0 log 0`` is 0."""
    terms: Tensor = torch.special.entr(probabilities)
    return terms.sum(-1)


def predictive_entropy(probabilities: Tensor) -> Tensor:
    """Return the entropy of each row's predictive distribution, H[E p(y | x, theta)], ``(B,)`` in
    nats: the total uncertainty.

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
    """Return I(y; theta | x) = H[E p] - E H[p], ``(B,)`` in nats: the information that a label has
    about the weights (BALD; Houlsby et al. 2011).

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
