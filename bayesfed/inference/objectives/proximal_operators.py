"""Proximal operators: the step that a penalty without a gradient takes after a gradient step.

    prox_{rate * penalty}(w) = argmin_x  rate * penalty(x) + ||x - w||^2 / 2

`SoftThreshold` is that of the l1 norm, `SingularThreshold` that of the nuclear norm of the weight
matrix; `LargestShare` keeps the largest entries. (`Proximal` is FedProx's quadratic term, which has
a gradient.)

References
----------
Parikh and Boyd, "Proximal algorithms" (2014): (1.1), sections 6.5.2 and 6.7.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.compress.quantisers.entries import share_of
from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import NOT_NEGATIVE, SHARE, check, checked_class
from bayesfed.trees import is_finite


@checked_class({}, strength=NOT_NEGATIVE)
@dataclass(frozen=True)
class SoftThreshold:
    """``strength * ||w||_1``: every magnitude shrinks by ``rate * strength``, but not below zero.

    Parameters
    ----------
    strength
        Factor on the norm, finite and >= 0.

    Raises
    ------
    ArgumentError
        If the strength is negative or not finite.
    """

    strength: float

    def __call__(self, leaf: Tensor, rate: float) -> Tensor:
        """Shrink every entry of a leaf of any shape."""
        threshold = _threshold("SoftThreshold", rate, self.strength)
        return nn.functional.softshrink(leaf, threshold) if threshold else leaf

    def value(self, leaf: Tensor) -> float:
        """Return ``strength`` times the sum of magnitudes."""
        return self.strength * float(leaf.abs().sum())

    def figures(self, leaf: Tensor) -> dict[str, float]:
        """Return ``density``, the share of entries that are not zero."""
        return {"density": density(leaf)}


@checked_class({}, strength=NOT_NEGATIVE)
@dataclass(frozen=True)
class SingularThreshold:
    """``strength * ||W||_*`` of the matrix ``(out, in * k * k)``: singular values shrink by
    ``rate * strength``, but not below zero.

    One dense SVD a call. Source of the penalty: FedRLR (1).

    Parameters
    ----------
    strength
        Factor on the norm, finite and >= 0.

    Raises
    ------
    ArgumentError
        If the strength is negative or not finite; from a call, if the leaf is no matrix or kernel.
    DataError
        From a call, if the leaf is not finite: it has no SVD.
    """

    strength: float

    def __call__(self, leaf: Tensor, rate: float) -> Tensor:
        """Shrink the singular values of a leaf ``(out, in, ...)``."""
        threshold, matrix = _threshold("SingularThreshold", rate, self.strength), _matrix(leaf)
        if not threshold or not leaf.numel():
            return leaf
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        # A rebuilt matrix has exactly the remaining rank, but its rounding exceeds a threshold of
        # 1e-6 of the largest value: then subtract.
        shrunk: Tensor
        if threshold > 0.01 * float(values.amax()):
            shrunk = (left * (values - threshold).clamp_min(0)) @ right
        else:
            shrunk = matrix - (left * values.clamp_max(threshold)) @ right
        return shrunk.reshape(leaf.shape).to(leaf.dtype)

    def value(self, leaf: Tensor) -> float:
        """Return ``strength`` times the sum of singular values."""
        return self.strength * float(torch.linalg.svdvals(_matrix(leaf)).sum())

    def rank(self, leaf: Tensor) -> int:
        """Count the singular values above rounding: ``max(M, N) * eps`` of the largest."""
        return int(torch.linalg.matrix_rank(_matrix(leaf)))

    def figures(self, leaf: Tensor) -> dict[str, float]:
        """Return ``rank``."""
        return {"rank": float(self.rank(leaf))}


@checked_class({}, share=SHARE)
@dataclass(frozen=True)
class LargestShare:
    """Keep the ``ceil(share * n)`` largest of a leaf's n entries by magnitude, among equals the
    earlier ones; set the others to zero.

    Not the proximal operator of a convex penalty, but the projection onto a set that is not convex,
    whatever the rate. No convergence theory covers it here, and averages of its results leave the
    set.

    Parameters
    ----------
    share
        Share of the entries to keep, above 0 and at most 1.

    Raises
    ------
    ArgumentError
        If the share is not above 0 and at most 1.
    """

    share: float

    def __call__(self, leaf: Tensor, rate: float) -> Tensor:
        """Zero the small entries of a leaf of any shape; any positive rate does the same."""
        count, magnitudes = share_of(self.share, leaf.numel()), leaf.abs().reshape(-1)
        if not _threshold("LargestShare", rate, 1.0) or count == len(magnitudes):
            return leaf
        # Which of several equal entries top-k returns is undefined; the value of the least is not.
        least = magnitudes.topk(count, sorted=False).values.amin()
        above, equal = magnitudes > least, magnitudes == least
        kept = above | (equal & (equal.cumsum(0) <= count - above.sum()))
        return torch.where(kept.reshape(leaf.shape), leaf, torch.zeros_like(leaf))

    def value(self, leaf: Tensor) -> float:
        """Return 0 for a leaf with no more than its share of non-zeros, else infinity."""
        return 0.0 if int(leaf.count_nonzero()) <= share_of(self.share, leaf.numel()) else math.inf

    def figures(self, leaf: Tensor) -> dict[str, float]:
        """Return ``density``, the share of entries that are not zero."""
        return {"density": density(leaf)}


# One leaf in, one leaf out, no state: ``(leaf, rate)`` gives ``prox_{rate * penalty}(leaf)``, at
# rate 0 `leaf` bit for bit; `value` is the penalty with its strength; `figures` are for a report.
ProximalOperator = SoftThreshold | SingularThreshold | LargestShare


def density(leaf: Tensor) -> float:
    """Return the share of entries that are not zero; 0 if there are no entries."""
    return int(leaf.count_nonzero()) / max(1, leaf.numel())


def _threshold(where: str, rate: float, strength: float) -> float:
    check(f"{where}, rate", rate, NOT_NEGATIVE)
    return rate * strength


def _matrix(leaf: Tensor) -> Tensor:
    if leaf.ndim < 2:
        raise ArgumentError(
            "SingularThreshold",
            "a matrix or kernel",
            f"shape {tuple(leaf.shape)}",
            "where=weight_matrices",
        )
    if not is_finite(leaf):
        raise DataError(
            "SingularThreshold", "finite weights", "NaN or Inf", "a smaller learning rate"
        )
    # Decompositions need at least 32 bits.
    return leaf.flatten(1).to(torch.promote_types(leaf.dtype, torch.float32))
