"""Tangent vectors as flat vectors, for codecs, channels and optimisers that know nothing of
manifolds.

There are two forms. Both are isometric: the Euclidean norm of the vector is the norm of the
tangent.

plain (`to_vector`)
    core, up and vp as they are: ``R (M + N) + R^2`` numbers, 2 R^2 of them redundant. A vector with
    noise need not be a tangent; `from_vector` projects it, which removes the part of the noise
    outside the tangent space.
gauge-fixed (`to_coordinates`)
    Exactly as many numbers as the manifold has dimensions, ``(M + N - R) R``: up is written in an
    orthonormal basis of the complement of u. The basis is given by the Householder reflectors of u,
    as QR returns them: ``M R`` numbers, never ``M x M``. Every vector is a tangent.

The basis depends on the bits of u and v, and not continuously (no continuous basis exists). Both
sides need the same bits of u and v and, where a reflector's pivot is zero up to rounding, the same
LAPACK. `to_vector` needs neither.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry.fixed_rank import FixedRank
from bayesfed.geometry.tangents import Tangent, check_tangent, to_tangent


def to_vector(point: FixedRank, tangent: Tangent) -> Tensor:
    """Return core, up and vp, row by row, as a vector of ``R (M + N) + R^2`` numbers.

    Raises
    ------
    ArgumentError
        If the tangent does not fit the point.
    """
    check_tangent("to_vector", point, tangent)
    return torch.cat([tangent.core.reshape(-1), tangent.up.reshape(-1), tangent.vp.reshape(-1)])


def from_vector(point: FixedRank, vector: Tensor) -> Tangent:
    """Return the tangent of a vector written by `to_vector`, projected onto the tangent space in
    case of noise.

    Raises
    ------
    ArgumentError
        If the vector has another length.
    """
    rank, (rows, columns) = point.rank, point.shape
    core, up, vp = _cut("from_vector", vector, rank * rank, rows * rank, columns * rank)
    return to_tangent(
        point, Tangent(core.view(rank, rank), up.view(rows, rank), vp.view(columns, rank))
    )


def to_coordinates(point: FixedRank, tangent: Tangent) -> Tensor:
    """Return the coordinates of a tangent in an orthonormal basis: a vector of ``(M + N - R) R``
    numbers, in ``O((M + N) R^2)``.

    Raises
    ------
    ArgumentError
        If the tangent does not fit the point.
    """
    check_tangent("to_coordinates", point, tangent)
    rank = point.rank
    parts = (
        torch.ormqr(*torch.geqrf(basis), part, transpose=True)[rank:]
        for basis, part in ((point.u, tangent.up), (point.v, tangent.vp))
    )
    return torch.cat([tangent.core.reshape(-1), *(part.reshape(-1) for part in parts)])


def from_coordinates(point: FixedRank, vector: Tensor) -> Tangent:
    """Return the tangent with these coordinates: the inverse of `to_coordinates`.

    Raises
    ------
    ArgumentError
        If the vector has another length.
    """
    rank, (rows, columns) = point.rank, point.shape
    core, *parts = _cut(
        "from_coordinates", vector, rank * rank, (rows - rank) * rank, (columns - rank) * rank
    )
    # R rows of zeros above the coordinates: a tangent has no part along u.
    above = vector.new_zeros(rank, rank)
    up, vp = (
        torch.ormqr(*torch.geqrf(basis), torch.cat([above, part.view(-1, rank)]))
        for basis, part in zip((point.u, point.v), parts, strict=True)
    )
    return Tangent(core.view(rank, rank), up, vp)


def _cut(where: str, vector: Tensor, *sizes: int) -> tuple[Tensor, ...]:
    if tuple(vector.shape) != (sum(sizes),):
        raise ArgumentError(
            where, f"a vector of {sum(sizes)}", f"shape {tuple(vector.shape)}", "the same point"
        )
    parts: tuple[Tensor, ...] = vector.split(sizes)
    return parts
