"""Tangent vectors of the fixed-rank manifold, a linear space of thin triples, and retractions from
them to the manifold (Vandereycken 2013).

A tangent at ``X = u s v^T`` is ``Z = u core v^T + up v^T + u vp^T``, with any core ``(R, R)``, up
``(M, R)`` with ``u^T up = 0``, and vp ``(N, R)`` with ``v^T vp = 0``. The three terms are
orthogonal, so inner products of tangents are sums of those of their parts. The triple does not hold
its point and has no meaning without it, down to the signs of u and v: sender and receiver need the
same bits of u and v. Tangents at one point add and scale like vectors.

The projection is equation (47) of FedRLR, ``U U^T G + G V V^T - U U^T G V V^T``. Of an ambient G
it needs only ``G V`` and ``G^T U``. For the gradient of a loss, autograd gives both without G, as
those of a probe ``up v^T + u vp^T`` of zeros: `bayesfed.models.low_rank.thin_layers`.

Both retractions are of second order: ``R(t Z) = X + t Z + O(t^2)``, and the part of order t^2 is
normal to the manifold (Absil and Oseledets 2015).

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

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry.fixed_rank import FixedRank, _same_shape
from bayesfed.geometry.thin import (
    accurate,
    across,
    check_finite,
    check_matrices,
    check_shape,
    gaussian,
    product_svd,
    signed_qr,
)
from bayesfed.keys import Key


@dataclass(frozen=True, eq=False)
class Tangent:
    """A tangent vector, without its point; `+`, `-` and multiplication by a number act on all three
    parts.

    Parameters
    ----------
    core
        ``(R, R)``.
    up
        ``(M, R)``, orthogonal to the point's u.
    vp
        ``(N, R)``, orthogonal to the point's v.

    Raises
    ------
    ArgumentError
        If shapes, dtypes or devices do not fit, here or in a sum.
    """

    core: Tensor
    up: Tensor
    vp: Tensor

    def __post_init__(self) -> None:
        check_matrices("Tangent", core=self.core, up=self.up, vp=self.vp)
        rank = self.core.shape[0]
        check_shape("Tangent, core", self.core, (rank, rank))
        check_shape("Tangent, up", self.up, (self.up.shape[0], rank))
        check_shape("Tangent, vp", self.vp, (self.vp.shape[0], rank))

    def __add__(self, other: Tangent) -> Tangent:
        for name in ("core", "up", "vp"):
            check_shape(f"sum of tangents, {name}", getattr(other, name), getattr(self, name).shape)
        return Tangent(self.core + other.core, self.up + other.up, self.vp + other.vp)

    def __sub__(self, other: Tangent) -> Tangent:
        return self + -1.0 * other

    def __mul__(self, scale: float | Tensor) -> Tangent:
        return Tangent(self.core * scale, self.up * scale, self.vp * scale)

    __rmul__ = __mul__


def project(point: FixedRank, gv: Tensor, gtu: Tensor) -> Tangent:
    """Project an ambient matrix G onto the tangent space, given its two thin products.

    Parameters
    ----------
    point
        Point of the tangent space.
    gv
        ``G V``, ``(M, R)``.
    gtu
        ``G^T U``, ``(N, R)``.

    Raises
    ------
    ArgumentError
        If a product has another shape.

    References
    ----------
    Equation (47) of FedRLR.
    """
    check_shape("project, gv", gv, point.u.shape)
    check_shape("project, gtu", gtu, point.v.shape)
    core = across(point.u, gv)
    return Tangent(core, gv - point.u @ core, gtu - point.v @ core.mT)


def project_factors(point: FixedRank, a: Tensor, b: Tensor) -> Tangent:
    """Project ``A B^T`` onto the tangent space, in ``O((M + N) R R')``.

    Parameters
    ----------
    point
        Point of the tangent space.
    a, b
        ``(M, R')`` and ``(N, R')``. For the gradient of a linear layer: the outputs' gradients
        ``(B, M)`` and the inputs ``(B, N)``, transposed.

    Raises
    ------
    ArgumentError
        If the factors do not fit the point or each other.
    """
    check_matrices("project_factors", a=a, b=b)
    check_shape("project_factors, a", a, (point.shape[0], a.shape[1]))
    check_shape("project_factors, b", b, (point.shape[1], a.shape[1]))
    return project(point, a @ across(b, point.v), b @ across(a, point.u))


def difference(base: FixedRank, other: FixedRank) -> Tangent:
    """Project ``other - base`` onto the tangent space at `base`; the ranks may differ.

    This is the consensus term of FedRLR. Between points of one rank it is the inverse of the
    orthographic retraction wherever ``u^T Y v`` is invertible, Y being `other`.

    Raises
    ------
    ArgumentError
        If the shapes differ.
    """
    _same_shape("difference", base, other)
    onto = project_factors(base, other.u @ other.s, other.v)
    return Tangent(onto.core - base.s, onto.up, onto.vp)


def to_ambient(point: FixedRank, tangent: Tangent) -> tuple[Tensor, Tensor]:
    """Return A ``(M, 2R)`` and B ``(N, 2R)`` with ``Z = A B^T``.

    Raises
    ------
    ArgumentError
        If the tangent does not fit the point.
    """
    check_tangent("to_ambient", point, tangent)
    return torch.cat([point.u @ tangent.core + tangent.up, point.u], 1), torch.cat(
        [point.v, tangent.vp], 1
    )


def norm(tangent: Tangent) -> Tensor:
    """Return the Frobenius norm of a tangent, a scalar."""
    parts = (tangent.core, tangent.up, tangent.vp)
    sizes = [torch.linalg.vector_norm(accurate(part)).to(part.dtype) for part in parts]
    size: Tensor = torch.stack(sizes).norm()
    return size


def random_tangent(point: FixedRank, key: Key) -> Tangent:
    """Draw a standard normal vector of the tangent space: the projection of a matrix of independent
    standard normals.

    The mean of its squared norm is the dimension of the manifold.
    """
    parts = (
        gaussian(tuple(part.shape), key.child(name), part)
        for name, part in (("core", point.s), ("up", point.u), ("vp", point.v))
    )
    return to_tangent(point, Tangent(*parts))


def to_tangent(point: FixedRank, tangent: Tangent) -> Tangent:
    """Project a triple whose up and vp are not orthogonal to u and v, because it was received with
    noise or has drifted by rounding.
    """
    check_tangent("to_tangent", point, tangent)
    u, v = point.u, point.v
    return Tangent(
        tangent.core, tangent.up - u @ across(u, tangent.up), tangent.vp - v @ across(v, tangent.vp)
    )


def check_tangent(where: str, point: FixedRank, tangent: Tangent) -> None:
    """Raise `ArgumentError` unless a tangent has the shapes of its point."""
    for name, like in (("core", point.s), ("up", point.u), ("vp", point.v)):
        check_shape(f"{where}, {name} of the tangent", getattr(tangent, name), like.shape)


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
    if not (values[-1] > point.rank * torch.finfo(core.dtype).eps * values[0]):
        raise ArgumentError(
            "orthographic_retraction",
            "an invertible s + core",
            f"singular values from {float(values[0]):g} to {float(values[-1]):g}",
            "a shorter step, or metric_retraction",
        )
    u, left = signed_qr(point.u @ core + tangent.up)
    v, right = signed_qr(point.v @ core.mT + tangent.vp)
    return FixedRank(u, left @ torch.linalg.solve(core, right.mT), v)
