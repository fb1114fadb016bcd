"""A rank that changes during training: drop directions with little energy, add directions in which
the gradient is large.

To grow, first find directions, then append them with `grow`. `normal_directions` are those of the
steepest gradient outside the tangent space, as in rank-adaptive Riemannian descent (Uschmajew and
Vandereycken 2015). `tangent_directions` are those to which a step along the tangent space would
turn u and v, as in the augmented integrator (Ceruti, Kusch and Lubich 2022).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry.fixed_rank import FixedRank, canonical
from bayesfed.geometry.ranks import energy_rank
from bayesfed.geometry.tangents import project
from bayesfed.geometry.thin import (
    Product,
    check_finite,
    check_rank,
    check_shape,
    outside,
    randomised_svd,
    signed_qr,
    signed_svd,
)
from bayesfed.keys import Key


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


def normal_directions(
    point: FixedRank,
    product: Product,
    transposed: Product,
    count: int,
    key: Key,
    *,
    oversample: int = 8,
    passes: int = 2,
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the leading singular triplets of a gradient's normal part,
    ``(1 - u u^T) G (1 - v v^T)``, from products alone.

    Parameters
    ----------
    point
        Point of the tangent space.
    product, transposed
        Functions from X ``(N, k)`` to ``G X`` ``(M, k)`` and from Y ``(M, k)`` to ``G^T Y``
        ``(N, k)``. For factors ``G = A B^T``: ``lambda x: a @ (b.mT @ x)`` and
        ``lambda y: b @ (a.mT @ y)``.
    count
        Number of directions, from 1 to min(M, N) - R.
    key
        Random key of the probe.
    oversample, passes
        As in `randomised_svd`; larger values are more accurate if the spectrum decays slowly.

    Returns
    -------
    tuple
        Left vectors ``(M, count)``, values ``(count,)``, right vectors ``(N, count)``. A step of
        steepest descent appends ``-step * values``.

    Raises
    ------
    ArgumentError
        If the count is outside its range or a product is not finite or of another shape.
    """
    u, v = point.u, point.v
    check_rank("normal_directions, count", count, min(point.shape) - point.rank)

    def normal(x: Tensor) -> Tensor:
        y = product(outside(v, x))
        check_shape("normal_directions, product", y, (point.shape[0], x.shape[1]))
        check_finite("normal_directions", product=y)
        return outside(u, y)

    def normal_transposed(y: Tensor) -> Tensor:
        x = transposed(outside(u, y))
        check_shape("normal_directions, transposed", x, (point.shape[1], y.shape[1]))
        check_finite("normal_directions", transposed=x)
        return outside(v, x)

    return randomised_svd(
        normal,
        normal_transposed,
        point.shape[1],
        count,
        key,
        u,
        oversample=oversample,
        passes=passes,
    )


def tangent_directions(
    point: FixedRank, gv: Tensor, gtu: Tensor, count: int
) -> tuple[Tensor, Tensor]:
    """Return the leading left singular vectors of ``(1 - u u^T) G V`` and of ``(1 - v v^T) G^T U``,
    which need only two thin products.

    There are no values, since the products hold no information on the normal part: `grow` appends
    the directions with zeros, and a step fills the core.

    Parameters
    ----------
    point
        Point of the tangent space.
    gv, gtu
        ``G V`` ``(M, R)`` and ``G^T U`` ``(N, R)``.
    count
        Number of directions, from 1 to the minimum of R and min(M, N) - R.

    Raises
    ------
    ArgumentError
        If the count is outside its range, or a product is not finite or of another shape.
    """
    check_rank("tangent_directions, count", count, min(point.rank, min(point.shape) - point.rank))
    check_finite("tangent_directions", gv=gv, gtu=gtu)
    tangent = project(point, gv, gtu)
    return signed_svd(tangent.up)[0][:, :count], signed_svd(tangent.vp)[0][:, :count]


def grow(point: FixedRank, left: Tensor, right: Tensor, values: Tensor | None = None) -> FixedRank:
    """Append directions to u and v: return ``X + left diag(values) right^T``, of rank R + r.

    Parameters
    ----------
    point
        X, of rank R.
    left, right
        ``(M, r)`` and ``(N, r)``. They are made orthogonal to u and v, and orthonormal. Without
        values, a column that already lies in the space of u or v is replaced by an arbitrary
        orthonormal one outside.
    values
        ``(r,)`` new diagonal entries of the core, of any sign, such as ``-step`` times the values
        of `normal_directions`. Default: zeros, which give the same matrix with a larger, singular
        core; take a step before the core's inverse is needed.

    Raises
    ------
    ArgumentError
        If R + r is above min(M, N), directions or values are not finite or do not fit, or values
        are given and the directions are not orthonormal and outside the space of u or v, so that
        the result would not be this sum.
    """
    extra = left.shape[-1]
    check_rank("grow, directions", extra, min(point.shape) - point.rank)
    check_shape("grow, left", left, (point.shape[0], extra))
    check_shape("grow, right", right, (point.shape[1], extra))
    check_finite("grow", left=left, right=right)
    core = torch.block_diag(point.s, point.s.new_zeros(extra, extra))
    if values is not None:
        if tuple(values.shape) != (extra,):
            raise ArgumentError(
                "grow, values",
                f"shape ({extra},)",
                f"shape {tuple(values.shape)}",
                "one per direction",
            )
        check_finite("grow", values=values)
        core = torch.block_diag(point.s, values.diag())
    bases = []
    for name, old, new in (("left", point.u, left), ("right", point.v, right)):
        q, r = signed_qr(torch.cat([old, new], 1))
        off = float(
            (
                r[:, point.rank :]
                - torch.eye(point.rank + extra, dtype=r.dtype, device=r.device)[:, point.rank :]
            )
            .abs()
            .max()
        )
        if values is not None and off > torch.finfo(r.dtype).eps ** 0.5:
            raise ArgumentError(
                f"grow, {name}",
                "orthonormal directions outside",
                f"off by {off:g}",
                "normal_directions",
            )
        # The old columns keep their bits: only the new ones are taken from the QR.
        bases.append(torch.cat([old, q[:, point.rank :]], 1))
    return FixedRank(bases[0], core, bases[1])
