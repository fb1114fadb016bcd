"""Thin linear algebra: decompositions and norms of a product ``A B^T`` of tall factors that is
never formed.

Everything costs ``O((M + N) R'^2)`` for factors of R' columns: two thin QR decompositions and an
SVD of their small product. Signs are deterministic: R of a QR has a nonnegative diagonal, and the
largest entry in size of each left singular vector is positive.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.keys import Key
from bayesfed.trees import is_finite

# Above this number of rows, sums over a column are taken in 64 bits.
LONG = 1 << 15


def signed_qr(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the thin QR decomposition with a nonnegative diagonal of R; Q is orthonormal whatever
    the rank of the matrix.

    Parameters
    ----------
    matrix
        ``(M, k)``; Q is ``(M, min(M, k))``.
    """
    q, r = (part.to(matrix.dtype) for part in torch.linalg.qr(accurate(matrix)))
    signs = torch.where(r.diagonal() < 0, -1.0, 1.0).to(r.dtype)
    return q * signs, signs[:, None] * r


def accurate(matrix: Tensor) -> Tensor:
    """Return a matrix in 64 bits if its columns are too long to be summed in 32.

    At 10^6 rows the columns of a QR in 32 bits are off orthonormal by 6e-5, and inner products of
    columns by 4e-4. Neither is better than the sum over a column, which BLAS and LAPACK compute
    term by term. Up to 32768 rows both stay below 1e-5, and nothing is converted.
    """
    return matrix.double() if matrix.shape[0] > LONG else matrix


def across(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left^T right`` of two tall matrices, summed in 64 bits where `accurate` does so."""
    return (accurate(left).mT @ accurate(right)).to(left.dtype)


def signed_svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the thin SVD as U, singular values (descending) and V; the largest entry in size of
    each column of U is positive.

    Columns that belong to equal singular values are an arbitrary orthonormal basis of their space,
    as LAPACK returns it.
    """
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    u, v = _signed(u, vh.mT)
    return u, s, v


def _signed(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    signs = torch.where(u.gather(0, u.abs().argmax(0, keepdim=True)) < 0, -1.0, 1.0).to(u.dtype)
    return u * signs, v * signs


def product_svd(a: Tensor, b: Tensor, rank: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the SVD of ``A B^T``, truncated, as U ``(M, R)``, singular values ``(R,)`` and V
    ``(N, R)``.

    Parameters
    ----------
    a, b
        ``(M, R')`` and ``(N, R')``.
    rank
        R, at most the minimum of M, N and R'.
    """
    (qa, ra), (qb, rb) = signed_qr(a), signed_qr(b)
    left, s, right = torch.linalg.svd(ra @ rb.mT, full_matrices=False)
    u, v = _signed(qa @ left[:, :rank], qb @ right.mT[:, :rank])
    return u, s[:rank], v


def product_norm(a: Tensor, b: Tensor) -> Tensor:
    """Return the Frobenius norm of ``A B^T``, a scalar, from the two triangles of QR, so that sums
    that cancel do so before they are squared.
    """
    ra, rb = (torch.linalg.qr(accurate(factor), mode="r").R.to(factor.dtype) for factor in (a, b))
    size: Tensor = torch.linalg.matrix_norm(ra @ rb.mT)
    return size


def gaussian(shape: tuple[int, ...], key: Key, like: Tensor) -> Tensor:
    """Draw standard normals with the dtype and device of `like`, on the CPU, so that a key gives
    the same numbers on every device.
    """
    return torch.randn(shape, generator=key.generator(), dtype=like.dtype).to(like.device)


def check_matrices(where: str, **matrices: Tensor) -> None:
    """Check that all are matrices, all float32 or all float64, on one device.

    Raises
    ------
    ArgumentError
        If one is not; the message names it. QR and SVD do not exist in half precision.
    """
    first = next(iter(matrices.values()))
    for name, matrix in matrices.items():
        real = matrix.dtype in (torch.float32, torch.float64)
        if (
            matrix.ndim != 2
            or not real
            or (matrix.dtype, matrix.device) != (first.dtype, first.device)
        ):
            raise ArgumentError(
                f"{where}, {name}",
                "a matrix of float32 or float64, of one dtype and device with the others",
                f"shape {tuple(matrix.shape)} of {matrix.dtype} on {matrix.device}",
                ".to(torch.float32)",
            )


def check_shape(where: str, matrix: Tensor, shape: Sequence[int]) -> None:
    """Raise `ArgumentError` unless the matrix has exactly this shape; it is not broadcast."""
    if matrix.shape != tuple(shape):
        raise ArgumentError(
            where,
            f"shape {tuple(shape)}",
            f"shape {tuple(matrix.shape)}",
            "the point's shapes, (M, R) and (N, R)",
        )


def check_rank(where: str, rank: int, largest: int) -> None:
    """Raise `ArgumentError` unless the rank is a whole number from 1 to `largest`."""
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= largest:
        raise ArgumentError(where, f"a rank from 1 to {largest}", rank, f"{min(4, largest)}")


def check_finite(where: str, **matrices: Tensor) -> None:
    """Raise `ArgumentError` if a matrix holds NaN or infinity."""
    for name, matrix in matrices.items():
        if not is_finite(matrix):
            count = int((~torch.isfinite(matrix)).sum())
            raise ArgumentError(
                f"{where}, {name}",
                "finite values",
                f"{count} NaN or Inf",
                "a smaller learning rate",
            )


def squared_norm(left: Tensor, right: Tensor) -> Tensor:
    """Return ``||U V^T||_F^2 = tr(U^T U V^T V)`` of factors ``(M, r)`` and ``(N, r)`` from two r x
    r matrices, without the product.
    """
    return ((left.mT @ left) * (right.mT @ right)).sum()
