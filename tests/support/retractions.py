"""Laws of a retraction on the fixed-rank manifold, checked at any point without dense matrices.

All comparisons are of matrices, never of factors, which are unique only up to a gauge. Step sizes
are relative to the smallest singular value of the point, the manifold's radius of curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import linear_regression

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry import (
    FixedRank,
    Tangent,
    check_point,
    norm,
    project_factors,
    random_tangent,
    singular_values,
    to_ambient,
)
from bayesfed.geometry.thin import product_norm
from bayesfed.keys import Key
from bayesfed.testing.law import LawError, law

Retract = Callable[[FixedRank, Tangent], FixedRank]

_STEPS = tuple(2.0**-k for k in range(3, 8))


def check_retraction(
    point: FixedRank, retract: Retract, key: Key, *, order: int = 2, tolerance: float | None = None
) -> None:
    """Check that a retraction stays on the manifold, starts at the point, and follows the tangent:
    ``R(t Z) = X + t Z + O(t^2)``.

    The slope of log error against log t is 2, and for a second-order retraction the slope of the
    error's tangent part is 3 or more, for steps t of 1/8 to 1/128 of the smallest singular value.
    Errors at the level of rounding are ignored.

    Parameters
    ----------
    point
        A point of full rank.
    retract
        ``(point, tangent) -> point``.
    key
        Key of the random tangent.
    order
        Order of the retraction, 1 or 2.
    tolerance
        Allowed relative error. None: two thousand times the machine epsilon of the dtype.

    Raises
    ------
    LawError
        If a law is broken.
    """
    limit, name = limit_of(point, tolerance), getattr(retract, "__name__", type(retract).__name__)
    values = singular_values(point)
    tangent = random_tangent(point, key)
    tangent = tangent * (values[-1] / norm(tangent))
    size = values.norm()
    start = retract(point, 0.0 * tangent)
    check_manifold(start, point.rank, name, limit)
    off = float(product_norm(*_residual(point, tangent, start, 0.0)))
    law(off <= limit * float(size), f"{name}: a step of zero moves the point by {off:g}")
    errors, inside = [], []
    for step in _STEPS:
        moved = retract(point, step * tangent)
        check_manifold(moved, point.rank, name, limit)
        a, b = _residual(point, tangent, moved, step)
        errors.append(float(product_norm(a, b)))
        inside.append(float(norm(project_factors(point, a, b))))
    _slope(errors, 2, limit * float(size), f"{name}: error against X + t Z")
    if order == 2:
        _slope(inside, 3, limit * float(size), f"{name}: tangent part of the error")


def limit_of(point: FixedRank, tolerance: float | None) -> float:
    """Return the allowed relative error."""
    return 2000 * torch.finfo(point.u.dtype).eps if tolerance is None else tolerance


def _residual(
    point: FixedRank, tangent: Tangent, moved: FixedRank, step: float
) -> tuple[Tensor, Tensor]:
    """Return thin factors of ``R(t Z) - X - t Z``."""
    a, b = to_ambient(point, step * tangent)
    return torch.cat([moved.u @ moved.s, -point.u @ point.s, -a], 1), torch.cat(
        [moved.v, point.v, b], 1
    )


def _slope(errors: Sequence[float], order: float, floor: float, what: str) -> None:
    kept = [(step, error) for step, error in zip(_STEPS, errors, strict=True) if error > floor]
    if len(kept) >= 2:
        slope = linear_regression(
            *zip(*((math.log(step), math.log(error)) for step, error in kept), strict=True)
        ).slope
        law(slope > order - 0.2, f"{what}: slope {slope:.2f} in log-log, not {order}")


def check_manifold(point: FixedRank, rank: int, what: str, limit: float) -> None:
    """Check that a point has its rank, and factors as a point has them."""
    law(point.rank == rank, f"{what}: rank {point.rank} against {rank}")
    try:
        check_point(point, what, tolerance=limit)
    except ArgumentError as error:
        raise LawError(str(error)) from error
    values = singular_values(point)
    law(
        float(values[-1]) > float(torch.finfo(values.dtype).eps * values[0]),
        f"{what}: the smallest singular value is 0",
    )
