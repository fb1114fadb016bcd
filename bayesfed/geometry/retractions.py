"""From a tangent vector back to the manifold, and from one tangent space to another (Absil and Oseledets 2015).

Both retractions are of second order: ``R(t Z) = X + t Z + O(t^2)``, and what is of order t^2 is normal to the manifold.

=================== ========================================= ==================================== =============================
retraction          result                                    defined                              costs beside O((M + N) R^2)
=================== ========================================= ==================================== =============================
metric              the matrix of rank R nearest to X + Z     always                               an SVD of a 2R x 2R matrix
orthographic        X + Z plus a normal vector, of rank R     where ``s + core`` is invertible     a solve with an R x R matrix
=================== ========================================= ==================================== =============================

The orthographic one has an inverse without iteration: the projection of the difference onto the tangent space.
"""

from __future__ import annotations

import torch

from bayesfed.errors import ArgumentError, complain
from bayesfed.geometry.fixed_rank import FixedRank, _same_shape
from bayesfed.geometry.tangents import Tangent, check_tangent, difference, project_factors, to_ambient
from bayesfed.geometry.thin import check_finite, product_svd, signed_qr


def metric_retraction(point: FixedRank, tangent: Tangent) -> FixedRank:
    """Return the matrix of rank R nearest to ``X + Z``, in canonical form: its SVD, truncated.

    ``X + Z`` has rank 2R at most, so two thin QRs and an SVD of a ``2R x 2R`` matrix find it. The QRs run over ``[v, vp]`` and its twin, not over vp
    alone: orthonormal to rounding however long the chain of steps, however small or dependent the columns of vp, and also where 2R > M.
    If ``X + Z`` has a rank below R, the core has zeros on its diagonal; u and v are orthonormal all the same.

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
    """Return ``(u C + up) C^-1 (v C^T + vp)^T`` for ``C = s + core``: of rank R, and ``X + Z`` but for a normal vector.

    Raises
    ------
    ArgumentError
        If C is singular to rounding, where the retraction is not defined, or the tangent does not fit the point or is not finite.

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
            complain(
                "orthographic_retraction",
                expected="an invertible s + core",
                actual=f"singular values from {float(values[0]):g} to {float(values[-1]):g}",
                hint="a shorter step, or metric_retraction",
            )
        )
    u, left = signed_qr(point.u @ core + tangent.up)
    v, right = signed_qr(point.v @ core.mT + tangent.vp)
    return FixedRank(u, left @ torch.linalg.solve(core, right.mT), v)


def inverse_orthographic(point: FixedRank, other: FixedRank) -> Tangent:
    """Return the tangent at `point` that `orthographic_retraction` takes to `other`: the projection of ``other - point``.

    Exact wherever ``u^T Y v`` is invertible, Y being `other`: for all but a null set of points of the same rank, near or far. So a client's
    model, sent as a tangent at the shared point, is sent without loss.

    Raises
    ------
    ArgumentError
        If shapes or ranks differ; with another rank, the difference's projection (`difference`) exists, but does not lead back.
    """
    _same_shape("inverse_orthographic", point, other)
    if other.rank != point.rank:
        raise ArgumentError(
            complain("inverse_orthographic", expected=f"rank {point.rank}", actual=f"rank {other.rank}", hint="difference, with its error")
        )
    return difference(point, other)


def transport(point: FixedRank, target: FixedRank, tangent: Tangent) -> Tangent:
    """Carry a tangent at `point` to `target`: project it onto the tangent space there, in ``O((M + N) R^2)``; it never grows.

    Raises
    ------
    ArgumentError
        If the shapes differ or the tangent does not fit the point.

    References
    ----------
    Vandereycken (2013).
    """
    _same_shape("transport", point, target)
    return project_factors(target, *to_ambient(point, tangent))
