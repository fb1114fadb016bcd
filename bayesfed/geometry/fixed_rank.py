"""Points of the manifold of ``M x N`` matrices of rank R, stored thin (Vandereycken 2013).

A point is ``X = u s v^T``: u ``(M, R)`` and v ``(N, R)`` have orthonormal columns, and the core s
``(R, R)`` is any invertible matrix. A full core costs R^2 numbers in addition to R (M + N), with
two advantages: the orthographic retraction needs no further SVD, and u and v need not jump where
two singular values cross, as singular vectors do. If you need a diagonal core, `canonical` gives
singular vectors and values. ``(u P, P^T s Q, v Q)`` is the same point for orthogonal P and Q, so
compare points by `distance`, never by their factors.

On the closure of the manifold, where rank(X) < R, u and v stay orthonormal and s is singular. All
functions that read a point work there and are deterministic, but the tangent space is no longer
unique, and `orthographic_retraction` may raise an error. Only `to_dense` and `from_dense` form an
``M x N`` matrix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import POSITIVE, check
from bayesfed.geometry.thin import (
    across,
    check_finite,
    check_matrices,
    check_rank,
    check_shape,
    gaussian,
    product_norm,
    product_svd,
    signed_svd,
)
from bayesfed.keys import Key


@dataclass(frozen=True, eq=False)
class FixedRank:
    """A matrix ``u s v^T`` of shape ``(M, N)`` and rank R.

    Parameters
    ----------
    u
        ``(M, R)``, orthonormal columns.
    s
        ``(R, R)``, the core.
    v
        ``(N, R)``, orthonormal columns.

    Raises
    ------
    ArgumentError
        If shapes, dtypes or devices do not fit, or R is 0 or above min(M, N). Values are checked by
        `check_point` only.
    """

    u: Tensor
    s: Tensor
    v: Tensor

    def __post_init__(self) -> None:
        check_matrices("FixedRank", u=self.u, s=self.s, v=self.v)
        check_rank("FixedRank, columns of u", self.rank, min(self.shape))
        check_shape("FixedRank, v", self.v, (self.v.shape[0], self.rank))
        check_shape("FixedRank, s", self.s, (self.rank, self.rank))

    @property
    def shape(self) -> tuple[int, int]:
        """M and N."""
        return self.u.shape[0], self.v.shape[0]

    @property
    def rank(self) -> int:
        """R, the number of columns; with a singular core, more than the rank of the matrix."""
        return self.u.shape[1]


def from_dense(matrix: Tensor, rank: int) -> FixedRank:
    """Return the matrix of rank R nearest to a dense one, in canonical form (Eckart and Young
    1936). Costs an SVD of the dense matrix.

    Parameters
    ----------
    matrix
        ``(M, N)``.
    rank
        R, from 1 to min(M, N).

    Raises
    ------
    ArgumentError
        If the matrix is not finite or not a matrix, or the rank is outside its range.
    """
    check_matrices("from_dense", matrix=matrix)
    check_rank("from_dense", rank, min(matrix.shape))
    check_finite("from_dense", matrix=matrix)
    u, s, v = signed_svd(matrix)
    return FixedRank(u[:, :rank], s[:rank].diag(), v[:, :rank])


def from_factors(a: Tensor, b: Tensor, rank: int) -> FixedRank:
    """Return the matrix of rank R nearest to ``A B^T``, in canonical form, in ``O((M + N) R'^2)``.

    If the rank of the product is below R, the core has zeros on its diagonal, and further
    orthonormal columns complete u and v.

    Parameters
    ----------
    a, b
        ``(M, R')`` and ``(N, R')``, any columns.
    rank
        R, from 1 to the minimum of M, N and R'.

    Raises
    ------
    ArgumentError
        If the factors are not finite or do not fit, or the rank is outside its range.

    References
    ----------
    The projection onto the manifold, equation (31) of FedRLR.
    """
    check_matrices("from_factors", a=a, b=b)
    check_shape("from_factors, b", b, (b.shape[0], a.shape[1]))
    check_rank("from_factors", rank, min(*a.shape, b.shape[0]))
    check_finite("from_factors", a=a, b=b)
    u, s, v = product_svd(a, b, rank)
    return FixedRank(u, s.diag(), v)


def to_dense(point: FixedRank) -> Tensor:
    """Form the matrix ``(M, N)``, for tests and small matrices."""
    return point.u @ point.s @ point.v.mT


def to_factors(point: FixedRank) -> tuple[Tensor, Tensor]:
    """Return A ``(M, R)`` and B ``(N, R)`` with ``X = A B^T`` and ``A^T A = B^T B`` diagonal:
    equation (21) of FedRLR.
    """
    whole = canonical(point)
    root = whole.s.diagonal().clamp_min(0).sqrt()
    return whole.u * root, whole.v * root


def canonical(point: FixedRank) -> FixedRank:
    """Rotate u and v so that s is diagonal: singular vectors, and singular values in descending
    order.
    """
    left, s, right = signed_svd(point.s)
    return FixedRank(point.u @ left, s.diag(), point.v @ right)


def singular_values(point: FixedRank) -> Tensor:
    """Return the singular values ``(R,)``, descending."""
    values: Tensor = torch.linalg.svdvals(point.s)
    return values


def distance(left: FixedRank, right: FixedRank) -> Tensor:
    """Return the Frobenius norm of the difference, a scalar; the ranks may differ. Half its square
    is the consensus penalty (11) of FedRLR.

    Raises
    ------
    ArgumentError
        If the shapes differ.
    """
    _same_shape("distance", left, right)
    return product_norm(
        torch.cat([left.u @ left.s, -right.u @ right.s], 1), torch.cat([left.v, right.v], 1)
    )


def random_point(
    rows: int,
    columns: int,
    rank: int,
    key: Key,
    *,
    std: float | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> FixedRank:
    """Draw a point as the product of two Gaussian factors, with entries of mean 0 and standard
    deviation `std`.

    Parameters
    ----------
    rows, columns, rank
        M, N, R.
    key
        Random key; the draw is the same on every device.
    std
        Standard deviation of an entry. Default: ``N ** -0.5``, with which a layer keeps the
        variance of x.
    dtype, device
        Those of the point.

    Raises
    ------
    ArgumentError
        If the rank is 0 or above min(M, N), or std is not a positive number.
    """
    check_rank("random_point", rank, min(rows, columns))
    std = columns**-0.5 if std is None else std
    check("random_point, std", std, POSITIVE)
    like = torch.empty((), dtype=dtype, device=device)
    a = gaussian((rows, rank), key.child("u"), like)
    b = gaussian((columns, rank), key.child("v"), like)
    return from_factors(a * (std * rank**-0.5), b, rank)


def sum_points(
    points: Sequence[FixedRank], weights: Sequence[float] | Tensor, rank: int
) -> FixedRank:
    """Return the matrix of rank R nearest to a weighted sum of points, in ``O((M + N) (K R)^2)``.

    The sum is exactly the product of concatenated factors of K R columns. There are no cross terms,
    and only the part beyond rank R is lost: the projection (31) of FedRLR without a channel.

    Parameters
    ----------
    points
        K points of one shape, dtype and device; the ranks may differ.
    weights
        K finite numbers, of any sign and sum.
    rank
        R of the result, from 1 to the minimum of M, N and the sum of all ranks.

    Raises
    ------
    ArgumentError
        If there is no point, the shapes differ, the weights are not one finite number for each
        point, or the rank is outside its range.
    """
    values = [float(weight) for weight in weights]
    if not points or len(values) != len(points) or not all(map(math.isfinite, values)):
        raise ArgumentError(
            "sum_points",
            f"one finite weight for each of {max(len(points), 1)}",
            values,
            "[1 / K] * K",
        )
    _same_shape("sum_points", *points)
    a = torch.cat(
        [weight * (point.u @ point.s) for point, weight in zip(points, values, strict=True)], 1
    )
    return from_factors(a, torch.cat([point.v for point in points], 1), rank)


def check_point(point: FixedRank, where: str, *, tolerance: float | None = None) -> None:
    """Check that a point is finite and its u and v are orthonormal.

    Parameters
    ----------
    point
        Point to check.
    where
        Origin of the point, for the error message.
    tolerance
        Largest allowed entry, in size, of ``u^T u - 1`` and ``v^T v - 1``. Default: 1000 times the
        rounding error of the dtype.

    Raises
    ------
    ArgumentError
        If it is not; the message names the factor.
    """
    check_finite(where, u=point.u, s=point.s, v=point.v)
    limit = 1000 * torch.finfo(point.u.dtype).eps if tolerance is None else tolerance
    for name, factor in (("u", point.u), ("v", point.v)):
        off = float(
            (
                across(factor, factor)
                - torch.eye(point.rank, dtype=factor.dtype, device=factor.device)
            )
            .abs()
            .max()
        )
        if off > limit:
            raise ArgumentError(
                f"{where}, {name}", "orthonormal columns", f"columns off by {off:g}", "from_factors"
            )


def _same_shape(where: str, first: FixedRank, *others: FixedRank) -> None:
    for other in others:
        if other.shape != first.shape:
            raise ArgumentError(
                where, f"points of shape {first.shape}", other.shape, "one layer at a time"
            )
