"""Laws of the fixed-rank manifold: projections, retractions, and transports, checked at
any point without dense matrices.

The operations are arguments, so the laws can be run on your own as well as on the package's. All
comparisons are of matrices, never of factors, which are unique only up to a gauge. Step sizes are
relative to the smallest singular value of the point, the manifold's radius of curvature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry import (
    FixedRank,
    Tangent,
    metric_retraction,
    norm,
    orthographic_retraction,
    project_factors,
    random_tangent,
    singular_values,
    to_ambient,
)
from bayesfed.geometry.tangents import check_tangent
from bayesfed.geometry.thin import check_finite, gaussian, product_norm
from bayesfed.keys import Key
from bayesfed.testing.law import LawError, law
from tests.support.retractions import Retract, check_manifold, check_retraction, limit_of

Project = Callable[[FixedRank, Tensor, Tensor], Tangent]
Transport = Callable[[FixedRank, FixedRank, Tangent], Tangent]


def inner(left: Tangent, right: Tangent) -> Tensor:
    """Return the Frobenius inner product of two tangents at one point."""
    return (left.core * right.core).sum() + (left.up * right.up).sum() + (left.vp * right.vp).sum()


def zero_tangent(point: FixedRank) -> Tangent:
    """Return the zero of the tangent space."""
    return Tangent(*(torch.zeros_like(part) for part in (point.s, point.u, point.v)))


def tangent_to_dense(point: FixedRank, tangent: Tangent) -> Tensor:
    """Form the tangent vector ``(M, N)``."""
    a, b = to_ambient(point, tangent)
    return a @ b.mT


def transport(point: FixedRank, target: FixedRank, tangent: Tangent) -> Tangent:
    """Transport a tangent to another point, by projection onto the tangent space there."""
    return project_factors(target, *to_ambient(point, tangent))


def check_tangency(what: str, point: FixedRank, tangent: Tangent, tolerance: float) -> None:
    """Raise `LawError` unless a tangent is finite, fits its point, and is orthogonal to its u
    and v.
    """
    try:
        check_tangent(what, point, tangent)
        check_finite(what, core=tangent.core, up=tangent.up, vp=tangent.vp)
    except ArgumentError as error:
        raise LawError(str(error)) from error
    size = float(norm(tangent))
    for name, part, basis in (("up", tangent.up, point.u), ("vp", tangent.vp, point.v)):
        off = float((basis.double().mT @ part.double()).norm())
        law(
            off <= tolerance * size,
            f"{what}, {name} of the tangent: expected a tangent, found {off:g} of {size:g} along "
            "the point",
        )


@dataclass(frozen=True)
class ManifoldOperations:
    """The operations to check. The defaults are those of the package.

    Parameters
    ----------
    project
        ``(point, A, B) -> tangent``, with factors A ``(M, R')`` and B ``(N, R')`` of an ambient
        matrix.
    retractions
        ``(point, tangent) -> point``; each must obey the laws of `check_retraction`.
    transport
        ``(point, target, tangent at the point) -> tangent at the target``.
    """

    project: Project = project_factors
    retractions: Sequence[Retract] = (metric_retraction, orthographic_retraction)
    transport: Transport = transport


def check_fixed_rank(
    point: FixedRank,
    key: Key,
    operations: ManifoldOperations | None = None,
    *,
    tolerance: float | None = None,
) -> None:
    """Check every operation at one point.

    The projection is tangent, linear, idempotent, self-adjoint, and the identity on tangents.
    Retractions obey `check_retraction`. The transport is tangent at the target, linear, equal to
    the projection there, and the identity for a step of zero.

    Parameters
    ----------
    point
        A point of full rank and any size; R may be min(M, N).
    key
        Key of the random tangents and ambient matrices.
    operations
        Operations to check. None: those of the package.
    tolerance
        Allowed relative error. None: two thousand times the machine epsilon of the dtype.

    Raises
    ------
    LawError
        If a law is broken.
    """
    run = operations or ManifoldOperations()
    limit = limit_of(point, tolerance)
    check_manifold(point, point.rank, "the point", limit)
    _projection(point, key.child("projection"), run.project, limit)
    for retract in run.retractions:
        check_retraction(point, retract, key.child("retraction"), tolerance=tolerance)
        _transport(point, retract, key.child("transport"), run, limit)


def _is_tangent(point: FixedRank, tangent: Tangent, what: str, limit: float, size: float) -> None:
    """Check tangency relative to a given size, since the rounding error of a projection that is
    nearly zero is not orthogonal.
    """
    check_tangency(what, point, tangent, limit * size / max(float(norm(tangent)), 1e-300))


def _equal(point: FixedRank, left: Tangent, right: Tangent, what: str, limit: float) -> None:
    off, size = float(norm(left - right)), float(norm(left)) + float(norm(right))
    law(off <= limit * size, f"{what}: off by {off:g} of {size:g}")


def _close(left: Tensor, right: Tensor, size: Tensor, what: str, limit: float) -> None:
    law(
        float((left - right).abs()) <= limit * float(size),
        f"{what}: {float(left):g} against {float(right):g}",
    )


def _projection(point: FixedRank, key: Key, project: Project, limit: float) -> None:
    rows, columns = point.shape
    width = point.rank + 1
    (a, b), (c, d) = (
        (
            gaussian((rows, width), key.child(name, "a"), point.u),
            gaussian((columns, width), key.child(name, "b"), point.u),
        )
        for name in ("G", "H")
    )
    first, second = project(point, a, b), project(point, c, d)
    size = product_norm(a, b) * product_norm(c, d)
    _is_tangent(point, first, "projection", limit, float(product_norm(a, b)))
    _equal(point, project(point, *to_ambient(point, first)), first, "projection: idempotent", limit)
    tangent = random_tangent(point, key.child("tangent"))
    _equal(
        point,
        project(point, *to_ambient(point, tangent)),
        tangent,
        "projection: the identity on tangents",
        limit,
    )
    # <P G, H> for P G = E F^T and H = C D^T is the sum of (E^T C) * (F^T D).
    (e, f), (i, j) = to_ambient(point, first), to_ambient(point, second)
    one, other = ((e.mT @ c) * (f.mT @ d)).sum(), ((i.mT @ a) * (j.mT @ b)).sum()
    _close(one, other, size, "projection: self-adjoint, <P G, H> against <G, P H>", limit)
    _close(one, inner(first, second), size, "projection: <P G, H> against <P G, P H>", limit)
    both = project(point, torch.cat([a, 2 * c], 1), torch.cat([b, d], 1))
    _equal(point, both, first + 2.0 * second, "projection: linear", limit)


def _transport(
    point: FixedRank, retract: Retract, key: Key, run: ManifoldOperations, limit: float
) -> None:
    first, second = (
        random_tangent(point, key.child("first")),
        random_tangent(point, key.child("second")),
    )
    _equal(
        point, run.transport(point, point, first), first, "transport: the identity in place", limit
    )
    step = random_tangent(point, key.child("step"))
    step = step * (0.1 * singular_values(point)[-1] / norm(step))
    zero = retract(point, 0.0 * step)
    carried = run.transport(point, zero, first)
    # The factors may be rotated, but the matrix is the same.
    a, b = to_ambient(point, first)
    c, d = to_ambient(zero, carried)
    off = float(product_norm(torch.cat([a, -c], 1), torch.cat([b, d], 1)))
    law(
        off <= limit * float(norm(first)) * _condition(point),
        f"transport: a step of zero changes the tangent by {off:g}",
    )
    target = retract(point, step)
    there = run.transport(point, target, first)
    _is_tangent(target, there, "transport", limit, float(norm(first)))
    _equal(
        target,
        run.transport(point, target, first + 2.0 * second),
        there + 2.0 * run.transport(point, target, second),
        "transport: linear",
        limit,
    )
    _equal(
        target,
        there,
        run.project(target, a, b),
        "transport: the projection onto the target's tangent space",
        limit,
    )
    law(
        float(norm(there)) <= (1 + limit) * float(norm(first)),
        f"transport: grows from {float(norm(first)):g} to {float(norm(there)):g}",
    )


def _condition(point: FixedRank) -> float:
    """Return the condition number, the factor by which rounding of the matrix rotates its singular
    spaces.
    """
    values = singular_values(point)
    return float(values[0] / values[-1])
