"""Retractions from a tangent vector to the manifold (Absil and Oseledets 2015).

Both retractions are of second order: ``R(t Z) = X + t Z + O(t^2)``, and the part of order t^2 is
normal to the manifold.

============  =====================================  ================================  =============
retraction    result                                 defined                           costs O((M +
                                                                                       N) R^2) and
============  =====================================  ================================  =============
metric        the matrix of rank R nearest to X + Z  always                            an SVD of a
                                                                                       2R x 2R
                                                                                       matrix
orthographic  X + Z plus a normal vector, of rank R  where ``s + core`` is invertible  a solve with
                                                                                       an R x R
                                                                                       matrix
============  =====================================  ================================  =============

The orthographic retraction has an inverse that needs no iteration: the projection of the difference
onto the tangent space.
"""

from __future__ import annotations

import torch

from bayesfed.errors import ArgumentError
from bayesfed.geometry.fixed_rank import FixedRank
from bayesfed.geometry.tangents import Tangent, check_tangent, to_ambient
from bayesfed.geometry.thin import check_finite, product_svd, signed_qr


def metric_retraction(point: FixedRank, tangent: Tangent) -> FixedRank:
    """Return the matrix of rank R nearest to ``X + Z``, in canonical form, by a truncated SVD.

    ``X + Z`` has a rank of at most 2R, so two thin QRs and an SVD of a ``2R x 2R`` matrix suffice.
    The QRs are of ``[v, vp]`` and its counterpart for u, not of vp alone. The result is therefore
    orthonormal to rounding after any number of steps, for small or dependent columns of vp, and
    also where 2R > M. If ``X + Z`` has a rank below R, the core has zeros on its diagonal, and u
    and v are still orthonormal.

    Raises
    ------
    ArgumentError
        If the tangent does not fit the point or is not finite.

    References
    ----------
    Equation (19) of FedRLR; Vandereycken (2013); Absil and Malick (2012).
    """
    a, b = to_ambient(point, tangent)
    # Z = [u core + up, u] [v, vp]^T, so X joins the first block.
    a = torch.cat([a[:, : point.rank] + point.u @ point.s, point.u], 1)
    check_finite("metric_retraction", a=a, b=b)
    u, s, v = product_svd(a, b, point.rank)
    return FixedRank(u, s.diag(), v)


def orthographic_retraction(point: FixedRank, tangent: Tangent) -> FixedRank:
    """Return ``(u C + up) C^-1 (v C^T + vp)^T`` for ``C = s + core``, a matrix of rank R that
    differs from ``X + Z`` by a normal vector.

    Raises
    ------
    ArgumentError
        If C is singular to rounding, where the retraction is not defined, or the tangent does not
        fit the point or is not finite.

    References
    ----------
    Absil and Oseledets (2015).
    """
    check_tangent("orthographic_retraction", point, tangent)
    core = point.s + tangent.core
    check_finite("orthographic_retraction", core=core, up=tangent.up, vp=tangent.vp)
    values = torch.linalg.svdvals(core)
    if not bool(values[-1] > point.rank * torch.finfo(core.dtype).eps * values[0]):
        raise ArgumentError(
            "orthographic_retraction",
            "an invertible s + core",
            f"singular values from {float(values[0]):g} to {float(values[-1]):g}",
            "a shorter step, or metric_retraction",
        )
    u, left = signed_qr(point.u @ core + tangent.up)
    v, right = signed_qr(point.v @ core.mT + tangent.vp)
    return FixedRank(u, left @ torch.linalg.solve(core, right.mT), v)
