"""The laws of the manifold of matrices of fixed rank on what is shipped, that they can fail, and
what is refused in which words.
"""

import pytest
import torch

from bayesfed import geometry as g
from bayesfed.errors import ArgumentError
from bayesfed.geometry.thin import LONG
from bayesfed.keys import Key
from bayesfed.testing import LawError
from tests.geometry.geometry_points import CASES, DOUBLE, point, randn, short
from tests.support.manifold import (
    ManifoldOperations,
    check_fixed_rank,
    check_tangency,
    transport,
    zero_tangent,
)
from tests.support.retractions import check_retraction


# -------------------------------------------------------------------------------------------------
# laws
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_laws(case, dtype):
    check_fixed_rank(point(*case, dtype=dtype), Key(0, "law"))


def test_laws_hold_for_a_core_that_is_not_diagonal_and_for_a_bad_condition():
    turned = g.orthographic_retraction(point(), short(point()))
    assert float((turned.s - turned.s.diagonal().diag()).abs().max()) > 1e-3
    check_fixed_rank(turned, Key(0, "law"))
    stiff = g.FixedRank(point().u, torch.tensor([1e3, 1.0, 1e-3], dtype=DOUBLE).diag(), point().v)
    check_fixed_rank(stiff, Key(0, "law"), tolerance=1e-9)


def test_long_columns_in_single_precision_are_summed_in_double():
    long = g.random_point(2 * LONG, 5, 2, Key(0, "long"))
    assert float((long.u.double().mT @ long.u.double() - torch.eye(2)).abs().max()) < 1e-6
    check_fixed_rank(long, Key(0, "law"))


def half_projection(at, a, b):
    whole = g.project_factors(at, a, b)
    return g.Tangent(whole.core, whole.up, 0 * whole.vp)


def leaky_projection(at, a, b):
    whole = g.project_factors(at, a, b)
    return g.Tangent(whole.core, a @ (b.mT @ at.v), whole.vp)


def doubled_projection(at, a, b):
    whole = g.project_factors(at, a, b)
    return g.Tangent(2 * whole.core, whole.up, whole.vp)


def affine_projection(at, a, b):
    return g.project_factors(at, a, b) + g.random_tangent(at, Key(0))


def skewed_projection(at, a, b):
    """Idempotent, linear and tangent, but not along the normal space."""
    whole = g.project_factors(at, a, b)
    left, right = a - at.u @ (at.u.mT @ a), b - at.v @ (at.v.mT @ b)
    return g.Tangent(whole.core + (left @ right.mT)[: at.rank, : at.rank], whole.up, whole.vp)


def first_order(at, tangent):
    """Add the tangent to the two factors of the point."""
    return g.from_factors(
        at.u @ (at.s + tangent.core) + tangent.up,
        at.v + tangent.vp @ torch.linalg.inv(at.s),
        at.rank,
    )


def overstepping(at, tangent):
    return g.metric_retraction(at, 1.1 * tangent)


def displaced(at, tangent):
    return g.metric_retraction(at, tangent + 1e-3 * g.random_tangent(at, Key(0)))


def not_orthonormal(at, tangent):
    moved = g.metric_retraction(at, tangent)
    return g.FixedRank(2 * moved.u, moved.s / 2, moved.v)


def of_lower_rank(at, tangent):
    moved = g.metric_retraction(at, tangent)
    return g.from_factors(moved.u @ moved.s, moved.v, at.rank - 1)


def singular(at, tangent):
    moved = g.metric_retraction(at, tangent)
    return (
        g.FixedRank(moved.u, moved.s * (moved.s > moved.s[-1, -1]), moved.v)
        if float(g.norm(tangent))
        else moved
    )


def turning(at, tangent):
    """The metric retraction with other signs of the same singular vectors."""
    moved = g.metric_retraction(at, tangent)
    return g.FixedRank(-moved.u, moved.s, -moved.v)


def untransported(at, target, tangent):
    return tangent


def retangented(at, target, tangent):
    return g.to_tangent(target, tangent)


def scaled_transport(at, target, tangent):
    return tangent if target is at else 1.01 * transport(at, target, tangent)


@pytest.mark.parametrize(
    ("broken", "match"),
    [
        ({"project": half_projection}, "the identity on tangents"),
        ({"project": leaky_projection}, "projection, up of the tangent: expected a tangent"),
        ({"project": doubled_projection}, "projection: idempotent"),
        ({"project": affine_projection}, "projection: idempotent"),
        ({"project": skewed_projection}, "self-adjoint"),
        ({"retractions": [first_order]}, "first_order: tangent part of the error: slope 2.* not 3"),
        ({"retractions": [overstepping]}, "overstepping: error against X . t Z: slope 1.0"),
        ({"retractions": [displaced]}, "displaced: a step of zero moves the point"),
        ({"retractions": [not_orthonormal]}, "not_orthonormal, u: expected orthonormal"),
        ({"retractions": [of_lower_rank]}, "rank 2 against 3"),
        ({"retractions": [singular]}, "the smallest singular value is 0"),
        ({"transport": untransported}, "transport, up of the tangent: expected a tangent"),
        ({"transport": retangented}, "transport: the projection onto the target's tangent space"),
        (
            {"transport": untransported, "retractions": [turning]},
            "a step of zero changes the tangent",
        ),
        ({"transport": scaled_transport}, "a step of zero changes the tangent"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_laws_can_fail(broken, match):
    with pytest.raises(LawError, match=match):
        check_fixed_rank(point(), Key(0, "law"), ManifoldOperations(**broken))


def test_a_tangent_of_values_that_are_none_is_named():
    at = point()
    with pytest.raises(LawError, match="x, core: expected finite"):
        check_tangency("x", at, g.Tangent(nan(3, 3), at.u, at.v), 1e-3)


def test_a_first_order_retraction_passes_as_one_and_signs_do_not_matter():
    check_retraction(point(), first_order, Key(0), order=1)
    check_retraction(point(), turning, Key(0))


# -------------------------------------------------------------------------------------------------
# errors
def nan(*shape):
    return torch.full(shape, float("nan"), dtype=DOUBLE)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda p: g.FixedRank(p.u[:, :0], p.s[:0, :0], p.v[:, :0]),
            "FixedRank, columns of u: expected a rank from 1 to 7, found 0",
        ),
        (
            lambda p: g.FixedRank(torch.eye(9).double(), torch.eye(9).double(), randn(7, 9)),
            "expected a rank from 1 to 7, found 9",
        ),
        (
            lambda p: g.FixedRank(p.u, p.s, p.v[:, :2]),
            r"FixedRank, v: expected shape \(7, 3\), found shape \(7, 2\)",
        ),
        (
            lambda p: g.FixedRank(p.u, p.s.diagonal(), p.v),
            r"FixedRank, s: expected a matrix .* found shape \(3,\)",
        ),
        (lambda p: g.FixedRank(p.u, p.s[:2], p.v), r"FixedRank, s: expected shape \(3, 3\)"),
        (
            lambda p: g.FixedRank(p.u, p.s.float(), p.v),
            r"FixedRank, s: .* of one dtype .* found shape \(3, 3\) of torch.float32 on cpu",
        ),
        (
            lambda p: g.FixedRank(p.u.half(), p.s.half(), p.v.half()),
            r"FixedRank, u: .*float32 or float64.* found shape \(9, 3\) of torch.float16",
        ),
        (
            lambda p: g.from_dense(randn(4, 3), 0),
            "from_dense: expected a rank from 1 to 3, found 0",
        ),
        (
            lambda p: g.from_dense(randn(4, 3), 4),
            "from_dense: expected a rank from 1 to 3, found 4",
        ),
        (lambda p: g.from_dense(randn(4, 3), 2.0), "found 2.0"),
        (lambda p: g.from_dense(randn(4, 3), True), "found True"),
        (
            lambda p: g.from_dense(nan(4, 3), 1),
            "from_dense, matrix: expected finite values, found 12 NaN or Inf",
        ),
        (
            lambda p: g.from_factors(randn(4, 2), randn(3, 1), 1),
            r"from_factors, b: expected shape \(3, 2\)",
        ),
        (
            lambda p: g.from_factors(randn(4, 2), randn(5, 2), 3),
            "from_factors: expected a rank from 1 to 2, found 3",
        ),
        (lambda p: g.from_factors(randn(4, 2), nan(5, 2), 2), "from_factors, b: expected finite"),
        (lambda p: g.random_point(4, 3, 4, Key(0)), "random_point: expected a rank from 1 to 3"),
        (
            lambda p: g.random_point(4, 3, 2, Key(0), std=0.0),
            "random_point, std: expected a positive finite number, found 0.0",
        ),
        (
            lambda p: g.check_point(g.FixedRank(2 * p.u, p.s, p.v), "client 7"),
            "client 7, u: expected orthonormal columns, found columns off by 3",
        ),
        (
            lambda p: g.check_point(g.FixedRank(p.u, nan(3, 3), p.v), "client 7"),
            "client 7, s: expected finite values, found 9 NaN",
        ),
        (
            lambda p: g.distance(p, point(9, 6)),
            r"distance: expected points of shape \(9, 7\), found \(9, 6\)",
        ),
        (lambda p: g.difference(p, point(9, 6)), "difference: expected points of shape"),
        (lambda p: g.Tangent(randn(3, 2), p.u, p.v), r"Tangent, core: expected shape \(3, 3\)"),
        (lambda p: g.Tangent(p.s, p.u[:, :2], p.v), r"Tangent, up: expected shape \(9, 3\)"),
        (lambda p: g.Tangent(p.s, p.u, p.v[:, :2]), r"Tangent, vp: expected shape \(7, 3\)"),
        (
            lambda p: zero_tangent(p) + zero_tangent(point(8, 7)),
            r"sum of tangents, up: expected shape \(9, 3\), found shape \(8, 3\)",
        ),
        (
            lambda p: g.project(p, p.v, p.v),
            r"project, gv: expected shape \(9, 3\), found shape \(7, 3\)",
        ),
        (lambda p: g.project(p, p.u, p.u), r"project, gtu: expected shape \(7, 3\)"),
        (
            lambda p: g.project_factors(p, randn(8, 2), randn(7, 2)),
            r"project_factors, a: expected shape \(9, 2\)",
        ),
        (
            lambda p: g.project_factors(p, randn(9, 2), randn(7, 1)),
            r"project_factors, b: expected shape \(7, 2\)",
        ),
        (
            lambda p: g.to_ambient(p, zero_tangent(point(8, 7))),
            r"to_ambient, up of the tangent: expected shape \(9, 3\)",
        ),
        (
            lambda p: g.metric_retraction(p, zero_tangent(p) * float("inf")),
            "metric_retraction, a: expected finite",
        ),
        (
            lambda p: g.metric_retraction(p, zero_tangent(point(8, 7))),
            "to_ambient, up of the tangent",
        ),
        (
            lambda p: g.orthographic_retraction(p, zero_tangent(p) * float("nan")),
            "orthographic_retraction, core: expected finite",
        ),
        (
            lambda p: g.orthographic_retraction(p, g.Tangent(-p.s, 0 * p.u, 0 * p.v)),
            (
                r"orthographic_retraction: expected an invertible s \+ core, found singular "
                r"values from 0 to 0; try a shorter step, or metric_retraction"
            ),
        ),
        (
            lambda p: g.sum_points([], [], 1),
            "sum_points: expected one finite weight for each of 1",
        ),
        (lambda p: g.sum_points([p], [1.0, 2.0], 1), "sum_points: expected one finite weight"),
        (
            lambda p: g.sum_points([p], [float("nan")], 1),
            "sum_points: expected one finite weight",
        ),
        (
            lambda p: g.sum_points([p, point(9, 6)], [1.0, 2.0], 1),
            "sum_points: expected points of shape",
        ),
        (lambda p: g.sum_points([p], [1.0], 4), "from_factors: expected a rank from 1 to 3"),
    ],
)
def test_errors_say_where_what_and_what_to_try(call, match):
    with pytest.raises(ArgumentError, match=match):
        call(point())
