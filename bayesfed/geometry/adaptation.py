"""A rank that changes as training goes: drop the directions that carry nothing, add those that the gradient asks for.

Growing is in two parts, directions and step, so that each can be chosen: `normal_directions` finds where the gradient is steepest among what the
tangent space cannot reach, as rank-adaptive Riemannian descent does (Uschmajew and Vandereycken 2015); `tangent_directions` takes the bases that
a step along the tangent space would turn u and v to, as the augmented integrator does (Ceruti, Kusch and Lubich 2022); `grow` appends either.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, complain
from bayesfed.geometry.fixed_rank import FixedRank, canonical
from bayesfed.geometry.ranks import energy_rank
from bayesfed.geometry.tangents import project
from bayesfed.geometry.thin import Product, check_finite, check_rank, check_shape, outside, randomised_svd, signed_qr, signed_svd
from bayesfed.keys import Key


def truncate(point: FixedRank, loss: float) -> FixedRank:
    """Return the nearest point of the smallest rank that loses at most the share `loss` of the energy, in canonical form.

    Parameters
    ----------
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
    point: FixedRank, product: Product, transposed: Product, count: int, key: Key, *, oversample: int = 8, passes: int = 2
) -> tuple[Tensor, Tensor, Tensor]:
    """Find the leading singular triplets of a gradient's normal part, ``(1 - u u^T) G (1 - v v^T)``, from products alone.

    Parameters
    ----------
    product, transposed
        X ``(N, k)`` to ``G X`` ``(M, k)`` and Y ``(M, k)`` to ``G^T Y`` ``(N, k)``. Of factors ``G = A B^T``: ``lambda x: a @ (b.mT @ x)`` and
        ``lambda y: b @ (a.mT @ y)``.
    count
        How many, 1 to min(M, N) - R.
    key
        Of the random probe.
    oversample, passes
        As in `randomised_svd`: more find a slowly decaying spectrum better.

    Returns
    -------
    tuple
        Left ``(M, count)``, values ``(count,)``, right ``(N, count)``. A step of steepest descent appends ``-step * values``.

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

    return randomised_svd(normal, normal_transposed, point.shape[1], count, key, u, oversample=oversample, passes=passes)


def tangent_directions(point: FixedRank, gv: Tensor, gtu: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the leading left singular vectors of ``(1 - u u^T) G V`` and of ``(1 - v v^T) G^T U``: all that two thin products know.

    They come without values, since the products say nothing of the normal part: `grow` appends them with zeros, and a step fills the core.

    Parameters
    ----------
    gv, gtu
        ``G V`` ``(M, R)`` and ``G^T U`` ``(N, R)``.
    count
        How many, 1 to the lesser of R and min(M, N) - R.

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
    """Append directions to u and v: ``X + left diag(values) right^T``, of rank R + r.

    Parameters
    ----------
    left, right
        ``(M, r)`` and ``(N, r)``; made orthogonal to u and v, and orthonormal. Without values, a column that lies in the space already is replaced
        by some orthonormal one outside.
    values
        ``(r,)``, the new diagonal of the core, of any sign, such as ``-step`` times the values of `normal_directions`. None: zeros, the same
        matrix with room in its core, to be filled before anything asks for the core's inverse.

    Raises
    ------
    ArgumentError
        If R + r is above min(M, N), directions or values are not finite or do not fit, or there are values and the directions are not
        orthonormal and outside: the sum would not be the one that was asked for.
    """
    extra = left.shape[-1]
    check_rank("grow, directions", extra, min(point.shape) - point.rank)
    check_shape("grow, left", left, (point.shape[0], extra))
    check_shape("grow, right", right, (point.shape[1], extra))
    check_finite("grow", left=left, right=right)
    core = torch.block_diag(point.s, point.s.new_zeros(extra, extra))
    if values is not None:
        if tuple(values.shape) != (extra,):
            raise ArgumentError(complain("grow, values", expected=f"shape ({extra},)", actual=f"shape {tuple(values.shape)}", hint="one a direction"))
        check_finite("grow", values=values)
        core = torch.block_diag(point.s, values.diag())
    bases = []
    for name, old, new in (("left", point.u, left), ("right", point.v, right)):
        q, r = signed_qr(torch.cat([old, new], 1))
        off = float((r[:, point.rank :] - torch.eye(point.rank + extra, dtype=r.dtype, device=r.device)[:, point.rank :]).abs().max())
        if values is not None and off > torch.finfo(r.dtype).eps ** 0.5:
            raise ArgumentError(
                complain(f"grow, {name}", expected="orthonormal directions outside", actual=f"off by {off:g}", hint="normal_directions")
            )
        # The old columns keep their bits: only what is new is read from the QR.
        bases.append(torch.cat([old, q[:, point.rank :]], 1))
    return FixedRank(bases[0], core, bases[1])
