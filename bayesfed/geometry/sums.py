"""Sums over clients: of points, which leave the manifold and are projected back, and of tangents at
one point, which stay tangent.

A weighted sum of K points is exactly the product of their concatenated factors, with K R columns.
Recompressed, this is the digital form of factored aggregation, the projection (31) of FedRLR
without a channel. There are no cross terms between clients, and `from_factors` loses only the part
beyond rank R.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry.fixed_rank import FixedRank, _same_shape, from_factors


def concatenated(
    points: Sequence[FixedRank], weights: Sequence[float] | Tensor
) -> tuple[Tensor, Tensor]:
    """Return A ``(M, K R)`` and B ``(N, K R)`` with ``A B^T = sum_k w_k X_k``, exactly; the ranks
    may differ.

    Parameters
    ----------
    points
        K points of one shape, dtype and device.
    weights
        K finite numbers, of any sign and sum.

    Raises
    ------
    ArgumentError
        If there is no point, the shapes differ, or the weights are not one finite number for each
        point.
    """
    values = _weights("concatenated", weights, len(points))
    _same_shape("concatenated", *points)
    a = torch.cat(
        [weight * (point.u @ point.s) for point, weight in zip(points, values, strict=True)], 1
    )
    return a, torch.cat([point.v for point in points], 1)


def sum_points(
    points: Sequence[FixedRank], weights: Sequence[float] | Tensor, rank: int
) -> FixedRank:
    """Return the matrix of rank R nearest to a weighted sum of points, in ``O((M + N) (K R)^2)``.

    Parameters
    ----------
    points, weights
        As in `concatenated`.
    rank
        R of the result, from 1 to the minimum of M, N and the sum of all ranks.

    Raises
    ------
    ArgumentError
        As `concatenated`, or if the rank is outside its range.
    """
    return from_factors(*concatenated(points, weights), rank)


def _weights(where: str, weights: Sequence[float] | Tensor, count: int) -> list[float]:
    values = [float(weight) for weight in weights]
    if not count or len(values) != count or not all(map(math.isfinite, values)):
        raise ArgumentError(
            where, f"one finite weight for each of {max(count, 1)}", values, "[1 / K] * K"
        )
    return values
