"""Ranks: of the layers of a network for a ratio of compression, and of one point, which is
truncated by its energy or grown by new directions.

A matrix ``M x N`` of rank R is stored as two factors, ``R (M + N)`` numbers; a ratio is this count
over the M N numbers of the dense matrix. Energies are squares of singular values: a truncation
loses their sum from the squared Frobenius norm. Ranks are from 1 to min(M, N), so a ratio too small
for rank 1 is exceeded.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry.fixed_rank import FixedRank, canonical
from bayesfed.geometry.thin import check_finite, check_rank, check_shape, signed_qr


def uniform_ranks(shapes: Mapping[str, tuple[int, int]], ratio: float) -> dict[str, int]:
    """Return for every layer the largest rank that keeps it within the ratio: the same compression
    everywhere.

    Parameters
    ----------
    shapes
        M and N by layer.
    ratio
        In (0, 1].

    Raises
    ------
    ArgumentError
        If the ratio is not in (0, 1], or a shape is empty.
    """
    if not 0 < ratio <= 1:
        raise ArgumentError("uniform_ranks", "a ratio in (0, 1]", ratio, "1 / 16")
    ranks = {}
    for name, (rows, columns) in shapes.items():
        check_rank(f"uniform_ranks, layer {name!r}", 1, min(rows, columns))
        fitting = int(ratio * rows * columns / (rows + columns))
        ranks[name] = max(1, min(fitting, rows, columns))
    return ranks


def energy_rank(values: Tensor, loss: float) -> int:
    """Return the smallest rank, at least 1, that loses at most the share `loss` of the energy.

    Parameters
    ----------
    values
        Singular values ``(k,)``, in any order.
    loss
        Share of the sum of squares, in [0, 1); 0 keeps every value that is not zero. Sums start at
        the smallest value, so that a loss below the rounding of the whole sum still counts.

    Raises
    ------
    ArgumentError
        If the loss is not in [0, 1), or the values are not k finite numbers, 0 or more.
    """
    if not 0 <= loss < 1:
        raise ArgumentError("energy_rank", "a loss in [0, 1)", loss, "0.01")
    if values.ndim != 1 or not len(values) or not bool((values.isfinite() & (values >= 0)).all()):
        expected, actual = "finite singular values (k,), 0 or more", tuple(values.shape)
        raise ArgumentError("energy_rank", expected, actual, "svdvals")
    lost = values.double().sort().values.square().cumsum(0)
    return max(1, len(lost) - int((lost <= loss * lost[-1]).sum()))


def truncate(point: FixedRank, loss: float) -> FixedRank:
    """Return the nearest point of the smallest rank that loses at most the share `loss` of the
    energy, in canonical form.

    Parameters
    ----------
    point
        Point to truncate.
    loss
        Share of the squared Frobenius norm, in [0, 1); 0 drops zero singular values only.

    Raises
    ------
    ArgumentError
        If the loss is outside [0, 1) or the core is not finite.
    """
    check_finite("truncate", s=point.s)
    whole = canonical(point)
    rank = energy_rank(whole.s.diagonal(), loss)
    return FixedRank(whole.u[:, :rank], whole.s[:rank, :rank], whole.v[:, :rank])


def grow(point: FixedRank, left: Tensor, right: Tensor) -> FixedRank:
    """Append directions to u and v, with zeros in the core: the same matrix, with room for r more
    directions. Take a step before the core's inverse is needed.

    Parameters
    ----------
    point
        Point of rank R.
    left, right
        ``(M, r)`` and ``(N, r)``. They are made orthogonal to u and v, and orthonormal; a column
        that already lies in the space of u or v is replaced by an arbitrary orthonormal one
        outside.

    Raises
    ------
    ArgumentError
        If R + r is above min(M, N), or directions are not finite or do not fit.
    """
    extra = left.shape[-1]
    check_rank("grow, directions", extra, min(point.shape) - point.rank)
    check_shape("grow, left", left, (point.shape[0], extra))
    check_shape("grow, right", right, (point.shape[1], extra))
    check_finite("grow", left=left, right=right)
    # The old columns keep their bits: only the new ones are taken from the QR.
    u, v = (
        torch.cat([old, signed_qr(torch.cat([old, new], 1))[0][:, point.rank :]], 1)
        for old, new in ((point.u, left), (point.v, right))
    )
    return FixedRank(u, torch.block_diag(point.s, point.s.new_zeros(extra, extra)), v)
