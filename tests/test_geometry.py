"""The fixed-rank manifold: its laws on many sizes, that they can fail, and agreement with dense algebra and with pymanopt."""

import warnings

import numpy as np
import pytest
import torch

from bayesfed import geometry as g
from bayesfed.errors import ArgumentError
from bayesfed.geometry.thin import LONG, signed_qr, signed_svd
from bayesfed.keys import Key
from bayesfed.testing import LawError, ManifoldOperations, check_fixed_rank, check_retraction

DOUBLE = torch.float64
CASES = [
    (rows, columns, rank)
    for rows, columns in ((9, 5), (5, 9), (7, 7), (1, 6), (60, 20))
    for rank in sorted({1, 3, min(rows, columns)})
    if rank <= min(rows, columns)
]


def randn(*shape, name="x", dtype=DOUBLE):
    return torch.randn(*shape, generator=Key(0, name).generator(), dtype=dtype)


def point(rows=9, columns=7, rank=3, *, name="p", dtype=DOUBLE):
    return g.random_point(rows, columns, rank, Key(0, name), dtype=dtype)


def short(at, *, name="z", size=0.5):
    """Draw a tangent whose norm is a share of the smallest singular value."""
    tangent = g.random_tangent(at, Key(0, name))
    return tangent * (size * g.singular_values(at)[-1] / g.norm(tangent))


def close(left, right, tolerance=1e-12):
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance * float(right.abs().max()))


# ---------------------------------------------------------------------------------------------------------------- laws


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
    return g.from_factors(at.u @ (at.s + tangent.core) + tangent.up, at.v + tangent.vp @ torch.linalg.inv(at.s), at.rank)


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
    return g.FixedRank(moved.u, moved.s * (moved.s > moved.s[-1, -1]), moved.v) if float(g.norm(tangent)) else moved


def turning(at, tangent):
    """The metric retraction with other signs of the same singular vectors."""
    moved = g.metric_retraction(at, tangent)
    return g.FixedRank(-moved.u, moved.s, -moved.v)


def untransported(at, target, tangent):
    return tangent


def retangented(at, target, tangent):
    return g.to_tangent(target, tangent)


def scaled_transport(at, target, tangent):
    return tangent if target is at else 1.01 * g.transport(at, target, tangent)


def lossy_write(at, tangent):
    return g.to_coordinates(at, tangent)[:-1]


def loud_write(at, tangent):
    return 2 * g.to_coordinates(at, tangent)


def quiet_read(at, vector):
    return 0.5 * g.from_coordinates(at, vector)


def wrong_read(at, vector):
    return g.from_coordinates(at, vector.flip(0))


def careless_read(at, vector):
    """Read the plain vector without projecting it."""
    rank, rows = at.rank, at.shape[0]
    core, up, vp = vector.split((rank * rank, rows * rank, at.shape[1] * rank))
    return g.Tangent(core.view(rank, rank), up.view(-1, rank), vp.view(-1, rank))


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
        ({"transport": untransported, "retractions": [turning]}, "a step of zero changes the tangent"),
        ({"transport": scaled_transport}, "a step of zero changes the tangent"),
        ({"coordinates": [(lossy_write, g.from_coordinates)]}, "lossy_write: shape .38,. for 39 dimensions"),
        ({"coordinates": [(loud_write, quiet_read)]}, "loud_write: isometric"),
        ({"coordinates": [(g.to_coordinates, wrong_read)]}, "to_coordinates: read back"),
        ({"coordinates": [(g.to_vector, careless_read)]}, "to_vector: read with noise"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_laws_can_fail(broken, match):
    with pytest.raises(LawError, match=match):
        check_fixed_rank(point(), Key(0, "law"), ManifoldOperations(**broken))


def test_a_first_order_retraction_passes_as_one_and_signs_do_not_matter():
    check_retraction(point(), first_order, Key(0), order=1)
    check_retraction(point(), turning, Key(0))


# ------------------------------------------------------------------------------------------------------------- oracles


@pytest.mark.parametrize("case", CASES, ids=str)
def test_agreement_with_dense_algebra(case):
    rows, columns, rank = case
    at, ambient = point(*case), randn(rows, columns)
    u, v, x = at.u, at.v, g.to_dense(at)
    dense = u @ u.mT @ ambient + ambient @ v @ v.mT - u @ u.mT @ ambient @ v @ v.mT
    tangent = g.project(at, ambient @ v, ambient.mT @ u)
    close(g.tangent_to_dense(at, tangent), dense)
    close(g.tangent_to_dense(at, g.project_factors(at, ambient, torch.eye(columns, dtype=DOUBLE))), dense)
    close(g.norm(tangent), dense.norm())
    other = g.random_tangent(at, Key(0, "o"))
    close(g.inner(tangent, other), (dense * g.tangent_to_dense(at, other)).sum(), 1e-11)
    close(g.norm(2.0 * tangent - other), (2 * dense - g.tangent_to_dense(at, other)).norm())

    def nearest(matrix):
        left, s, right = torch.linalg.svd(matrix, full_matrices=False)
        return (left[:, :rank] * s[:rank]) @ right[:rank]

    close(g.to_dense(g.metric_retraction(at, tangent)), nearest(x + dense))
    close(g.to_dense(g.from_dense(ambient, rank)), nearest(ambient))
    a, b = randn(rows, rank + 2, name="a"), randn(columns, rank + 2, name="b")
    close(g.to_dense(g.from_factors(a, b, rank)), nearest(a @ b.mT), 1e-11)
    batch = randn(2, 4, columns, name="batch")
    close(g.apply(at, batch), batch @ x.mT)
    close(g.apply_tangent(at, tangent, batch), batch @ dense.mT)
    far = point(*case, name="far")
    close(g.distance(at, far), (x - g.to_dense(far)).norm())
    close(
        g.tangent_to_dense(at, g.difference(at, far)), g.tangent_to_dense(at, g.project_factors(at, g.to_dense(far) - x, torch.eye(columns).double()))
    )
    close(g.singular_values(at), torch.linalg.svdvals(x)[:rank])


def test_agreement_with_pymanopt():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pymanopt.manifolds import FixedRankEmbedded
    theirs, at, to = FixedRankEmbedded(12, 9, 3), point(12, 9, 3), point(12, 9, 3, name="to")

    def point_there(p):
        return (p.u.numpy(), p.s.diagonal().numpy(), p.v.mT.numpy())

    def tangent_there(z):
        from pymanopt.manifolds.fixed_rank import _FixedRankTangentVector

        return _FixedRankTangentVector(z.up.numpy(), z.core.numpy(), z.vp.numpy())

    def same(found, expected, tolerance=1e-10):
        for part, theirs_part in zip((found.up, found.core, found.vp), expected, strict=True):
            np.testing.assert_allclose(part.numpy(), theirs_part, atol=tolerance)

    ambient = randn(12, 9)
    tangent, other = g.project(at, ambient @ at.v, ambient.mT @ at.u), g.random_tangent(at, Key(1))
    assert at.dimension == theirs.dim
    same(tangent, theirs.projection(point_there(at), ambient.numpy()))
    np.testing.assert_allclose(float(g.inner(tangent, other)), theirs.inner_product(point_there(at), tangent_there(tangent), tangent_there(other)))
    same(g.transport(at, to, tangent), theirs.transport(point_there(at), point_there(to), tangent_there(tangent)))
    u, s, vt = theirs.retraction(point_there(at), tangent_there(tangent))
    np.testing.assert_allclose(g.to_dense(g.metric_retraction(at, tangent)).numpy(), u @ np.diag(s) @ vt, atol=1e-8)
    loose = g.Tangent(other.core, randn(12, 3), randn(9, 3))
    same(g.to_tangent(at, loose), theirs.to_tangent_space(point_there(at), tangent_there(loose)))


@pytest.mark.parametrize("retract", [g.metric_retraction, g.orthographic_retraction])
def test_the_gradient_is_that_of_finite_differences_along_retractions(retract):
    at, x, target = point(), randn(20, 7), randn(20, 9, name="target")

    def loss(y):
        return ((y.tanh() - target) ** 2).sum()

    probe = g.zero_tangent(at, requires_grad=True)
    loss(g.apply(at, x) + g.apply_tangent(at, probe, x)).backward()
    gradient = g.project(at, probe.up.grad, probe.vp.grad)
    # The core's gradient is the projection's core: a third way to the same numbers.
    close(probe.core.grad, gradient.core)
    weight = g.to_dense(at).requires_grad_()
    loss(x @ weight.mT).backward()
    close(g.tangent_to_dense(at, gradient), g.tangent_to_dense(at, g.project(at, weight.grad @ at.v, weight.grad.mT @ at.u)))
    direction, step = short(at), 1e-5
    ahead, behind = (loss(g.apply(retract(at, sign * step * direction), x)) for sign in (1, -1))
    assert float((ahead - behind) / (2 * step)) == pytest.approx(float(g.inner(gradient, direction)), rel=1e-7)


# --------------------------------------------------------------------------------------------------------- retractions


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_orthographic_retraction_is_undone_by_a_projection_near_and_far(case):
    at, far = point(*case), point(*case, name="far")
    tangent = short(at)
    back = g.inverse_orthographic(at, g.orthographic_retraction(at, tangent))
    assert float(g.norm(back - tangent)) < 1e-10 * float(g.norm(tangent))
    reached = g.orthographic_retraction(at, g.inverse_orthographic(at, far))
    assert float(g.distance(reached, far)) < 1e-9 * float(far.s.norm())


def test_the_metric_retraction_is_no_farther_than_any_other():
    at = point()
    for name in range(5):
        tangent = short(at, name=name, size=2.0)
        moved = g.to_dense(at) + g.tangent_to_dense(at, tangent)
        metric, orthographic = (g.to_dense(f(at, tangent)) for f in (g.metric_retraction, g.orthographic_retraction))
        assert float((metric - moved).norm()) <= float((orthographic - moved).norm())


def test_at_full_rank_the_manifold_is_flat():
    at = point(6, 4, 4)
    tangent = short(at, size=0.9)
    moved = g.to_dense(at) + g.tangent_to_dense(at, tangent)
    close(g.to_dense(g.metric_retraction(at, tangent)), moved)
    close(g.to_dense(g.orthographic_retraction(at, tangent)), moved)
    ambient = randn(6, 4)
    close(g.tangent_to_dense(at, g.project(at, ambient @ at.v, ambient.mT @ at.u)), ambient)


@pytest.mark.parametrize("retract", [g.metric_retraction, g.orthographic_retraction])
def test_a_long_chain_of_single_precision_steps_stays_on_the_manifold(retract):
    at = point(40, 30, 4, dtype=torch.float32)
    for step in range(300):
        at = retract(at, short(at, name=step, size=0.3))
    g.check_point(at, "the end", tolerance=3e-6)


def test_a_step_to_lower_rank_is_orthonormal_and_deterministic():
    at = g.canonical(point())
    removed = g.zero_tangent(at) + g.Tangent(-at.s * torch.eye(3, dtype=DOUBLE)[-1], 0 * at.u, 0 * at.v)
    lower, again = g.metric_retraction(at, removed), g.metric_retraction(at, removed)
    g.check_point(lower, "lower")
    assert float(g.singular_values(lower)[-1]) < 1e-14
    assert all(torch.equal(left, right) for left, right in zip((lower.u, lower.s, lower.v), (again.u, again.s, again.v), strict=True))
    close(g.to_dense(lower), g.to_dense(g.from_dense(g.to_dense(at), 2)))
    nothing = g.metric_retraction(at, g.Tangent(-at.s, 0 * at.u, 0 * at.v))
    g.check_point(nothing, "nothing")
    assert float(nothing.s.abs().max()) < 1e-14
    # From there a step leads on.
    g.check_point(g.metric_retraction(nothing, g.random_tangent(nothing, Key(0))), "up again")


def test_tied_and_absent_singular_values():
    tied, again = g.from_dense(torch.eye(5), 2), g.from_dense(torch.eye(5), 2)
    g.check_point(tied, "tied")
    assert torch.equal(tied.u, again.u)
    close(tied.s, torch.eye(2))
    for nothing in (g.from_dense(torch.zeros(4, 3), 2), g.from_factors(torch.zeros(4, 2), torch.zeros(3, 2), 2)):
        g.check_point(nothing, "zero")
        assert float(nothing.s.abs().max()) == 0
    q, r = signed_qr(torch.tensor([[-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    assert (r.diagonal() >= 0).all()
    close(q.mT @ q, torch.eye(2))
    u, s, v = signed_svd(-torch.eye(2))
    close((u * s) @ v.mT, -torch.eye(2))
    assert (u.amax(0) > 0).all()


# -------------------------------------------------------------------------------------------------- sums, coordinates


def test_factors_are_balanced_and_canonical_form_is_a_rotation():
    turned = g.orthographic_retraction(point(), short(point()))
    a, b = g.to_factors(turned)
    close(a @ b.mT, g.to_dense(turned))
    close(a.mT @ a, b.mT @ b)
    whole = g.canonical(turned)
    close(g.to_dense(whole), g.to_dense(turned))
    close(whole.s, g.singular_values(turned).diag())
    close((a.mT @ a).diagonal(), g.singular_values(turned))
    assert float(g.distance(whole, turned)) < 1e-13


def test_a_sum_of_points_is_that_of_their_matrices():
    points = [point(name=name, rank=rank) for name, rank in enumerate((1, 2, 3, 3))]
    weights = [0.5, 2.0, -1.0, 0.0]
    dense = sum(weight * g.to_dense(p) for weight, p in zip(weights, points, strict=True))
    a, b = g.concatenated(points, torch.tensor(weights))
    assert a.shape == (9, 9)
    close(a @ b.mT, dense)
    close(g.to_dense(g.sum_points(points, weights, 6)), dense)
    close(g.to_dense(g.sum_points(points, weights, 2)), g.to_dense(g.from_dense(dense, 2)))
    close(g.to_dense(g.sum_points(points[2:3], [1.0], 3)), g.to_dense(points[2]))


def test_a_sum_of_tangents_is_exact():
    at = point()
    tangents = [g.random_tangent(at, Key(k)) for k in range(3)]
    total = g.sum_tangents(tangents, [0.5, -1.0, 2.0])
    close(g.tangent_to_dense(at, total), sum(w * g.tangent_to_dense(at, z) for w, z in zip((0.5, -1.0, 2.0), tangents, strict=True)))
    assert torch.equal((-tangents[0]).core, -tangents[0].core)


def test_coordinates_are_as_many_as_dimensions_and_are_orthonormal():
    at = point(6, 5, 2)
    assert g.to_coordinates(at, g.zero_tangent(at)).shape == (at.dimension,) == (18,)
    assert g.to_vector(at, g.zero_tangent(at)).shape == (2 * 11 + 4,)
    basis = torch.stack([g.tangent_to_dense(at, g.from_coordinates(at, e)).flatten() for e in torch.eye(18, dtype=DOUBLE)])
    close(basis @ basis.mT, torch.eye(18, dtype=DOUBLE))
    # Noise in the plain vector is projected: as much is left of it as there are dimensions.
    noise = torch.stack([g.to_vector(at, g.from_vector(at, e)) for e in torch.eye(26, dtype=DOUBLE)])
    assert float(noise.trace()) == pytest.approx(18)


def test_random_points_and_tangents():
    at = g.random_point(60, 50, 5, Key(0), std=0.1, dtype=DOUBLE)
    assert float(g.to_dense(at).std()) == pytest.approx(0.1, rel=0.1)
    assert float(g.to_dense(g.random_point(60, 50, 5, Key(0))).std()) == pytest.approx(50**-0.5, rel=0.1)
    assert torch.equal(at.u, g.random_point(60, 50, 5, Key(0), std=0.1, dtype=DOUBLE).u)
    squares = torch.stack([g.norm(g.random_tangent(at, Key(k))) ** 2 for k in range(50)])
    assert float(squares.mean()) == pytest.approx(at.dimension, rel=0.03)


def test_a_matrix_too_large_to_form():
    """10^6 x 10^6, four terabytes in single precision."""
    size, rank = 10**6, 2
    at = g.random_point(size, size, rank, Key(0))
    assert at.dimension == (2 * size - rank) * rank
    tangent = short(at, size=0.1)
    moved = g.metric_retraction(at, tangent)
    reached = g.orthographic_retraction(at, tangent)
    length = float(g.norm(tangent))
    assert float(g.norm(g.inverse_orthographic(at, reached) - tangent)) < 1e-3 * length
    assert float(g.distance(moved, reached)) < 0.1 * length
    assert float(g.norm(g.transport(at, moved, tangent))) <= length
    for write, read in ((g.to_vector, g.from_vector), (g.to_coordinates, g.from_coordinates)):
        assert float(g.norm(read(at, write(at, tangent)) - tangent)) < 1e-5 * length
    x = torch.zeros(1, size)
    x[0, 7] = 1.0
    close(g.apply(at, x)[0, :5], (at.u[:5] @ at.s @ at.v[7]), 1e-5)
    assert g.apply_tangent(at, tangent, x).shape == (1, size)
    mean = g.sum_points([at, moved], [0.5, 0.5], rank)
    assert float(g.distance(mean, at)) == pytest.approx(length / 2, rel=0.01)
    a, b = g.to_factors(moved)
    left, values, right = g.normal_directions(at, lambda y: a @ (b.mT @ y), lambda y: b @ (a.mT @ y), 1, Key(0), oversample=1, passes=0)
    grown = g.grow(at, left, right, -values)
    g.check_point(grown, "grown")
    assert g.truncate(grown, 0.1).rank == rank
    assert g.tangent_directions(at, a, b, 1)[0].shape == (size, 1)


# -------------------------------------------------------------------------------------------------------------- errors


def nan(*shape):
    return torch.full(shape, float("nan"), dtype=DOUBLE)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p: g.FixedRank(p.u[:, :0], p.s[:0, :0], p.v[:, :0]), "FixedRank, columns of u: expected a rank from 1 to 7, found 0"),
        (lambda p: g.FixedRank(torch.eye(9).double(), torch.eye(9).double(), randn(7, 9)), "expected a rank from 1 to 7, found 9"),
        (lambda p: g.FixedRank(p.u, p.s, p.v[:, :2]), r"FixedRank, v: expected shape \(7, 3\), found shape \(7, 2\)"),
        (lambda p: g.FixedRank(p.u, p.s.diagonal(), p.v), r"FixedRank, s: expected a matrix, found shape \(3,\)"),
        (lambda p: g.FixedRank(p.u, p.s[:2], p.v), r"FixedRank, s: expected shape \(3, 3\)"),
        (lambda p: g.FixedRank(p.u, p.s.float(), p.v), "FixedRank, s: expected torch.float64 on cpu, found torch.float32 on cpu; try .to"),
        (lambda p: g.FixedRank(p.u.half(), p.s.half(), p.v.half()), "FixedRank, u: expected float32 or float64, found torch.float16; try .float"),
        (lambda p: g.from_dense(randn(4, 3), 0), "from_dense: expected a rank from 1 to 3, found 0"),
        (lambda p: g.from_dense(randn(4, 3), 4), "from_dense: expected a rank from 1 to 3, found 4"),
        (lambda p: g.from_dense(randn(4, 3), 2.0), "found 2.0"),
        (lambda p: g.from_dense(randn(4, 3), True), "found True"),
        (lambda p: g.from_dense(nan(4, 3), 1), "from_dense, matrix: expected finite values, found 12 NaN or Inf"),
        (lambda p: g.from_factors(randn(4, 2), randn(3, 1), 1), r"from_factors, b: expected shape \(3, 2\)"),
        (lambda p: g.from_factors(randn(4, 2), randn(5, 2), 3), "from_factors: expected a rank from 1 to 2, found 3"),
        (lambda p: g.from_factors(randn(4, 2), nan(5, 2), 2), "from_factors, b: expected finite"),
        (lambda p: g.random_point(4, 3, 4, Key(0)), "random_point: expected a rank from 1 to 3"),
        (lambda p: g.random_point(4, 3, 2, Key(0), std=0.0), "random_point: expected a positive std, found 0.0"),
        (lambda p: g.check_point(g.FixedRank(2 * p.u, p.s, p.v), "client 7"), "client 7, u: expected orthonormal columns, found columns off by 3"),
        (lambda p: g.check_point(g.FixedRank(p.u, nan(3, 3), p.v), "client 7"), "client 7, s: expected finite values, found 9 NaN"),
        (lambda p: g.apply(p, randn(4, 9)), r"apply, x: expected shape \(..., 7\), found shape \(4, 9\); try x.flatten"),
        (lambda p: g.apply_tangent(p, g.zero_tangent(p), randn(4, 9)), r"apply_tangent, x: expected shape \(..., 7\)"),
        (lambda p: g.distance(p, point(9, 6)), r"distance: expected points of shape \(9, 7\), found \(9, 6\)"),
        (lambda p: g.difference(p, point(9, 6)), "difference: expected points of shape"),
        (lambda p: g.Tangent(randn(3, 2), p.u, p.v), r"Tangent, core: expected shape \(3, 3\)"),
        (lambda p: g.Tangent(p.s, p.u[:, :2], p.v), r"Tangent, up: expected shape \(9, 3\)"),
        (lambda p: g.Tangent(p.s, p.u, p.v[:, :2]), r"Tangent, vp: expected shape \(7, 3\)"),
        (lambda p: g.zero_tangent(p) + g.zero_tangent(point(8, 7)), r"sum of tangents, up: expected shape \(9, 3\), found shape \(8, 3\)"),
        (lambda p: g.project(p, p.v, p.v), r"project, gv: expected shape \(9, 3\), found shape \(7, 3\)"),
        (lambda p: g.project(p, p.u, p.u), r"project, gtu: expected shape \(7, 3\)"),
        (lambda p: g.project_factors(p, randn(8, 2), randn(7, 2)), r"project_factors, a: expected shape \(9, 2\)"),
        (lambda p: g.project_factors(p, randn(9, 2), randn(7, 1)), r"project_factors, b: expected shape \(7, 2\)"),
        (lambda p: g.to_ambient(p, g.zero_tangent(point(8, 7))), r"to_ambient, up of the tangent: expected shape \(9, 3\)"),
        (
            lambda p: g.check_tangent("x", p, g.Tangent(p.s, p.u, p.v), tolerance=1e-3),
            "x, up of the tangent: expected a tangent, found .* along the point",
        ),
        (lambda p: g.check_tangent("x", p, g.Tangent(nan(3, 3), p.u, p.v), tolerance=1e-3), "x, core: expected finite"),
        (lambda p: g.metric_retraction(p, g.zero_tangent(p) * float("inf")), "metric_retraction, a: expected finite"),
        (lambda p: g.metric_retraction(p, g.zero_tangent(point(8, 7))), "to_ambient, up of the tangent"),
        (lambda p: g.orthographic_retraction(p, g.zero_tangent(p) * float("nan")), "orthographic_retraction, core: expected finite"),
        (
            lambda p: g.orthographic_retraction(p, g.Tangent(-p.s, 0 * p.u, 0 * p.v)),
            r"orthographic_retraction: expected an invertible s \+ core, found singular values from 0 to 0; try a shorter step, or metric_retraction",
        ),
        (lambda p: g.inverse_orthographic(p, point(rank=2)), "inverse_orthographic: expected rank 3, found rank 2; try difference"),
        (lambda p: g.transport(p, point(9, 6), g.zero_tangent(p)), "transport: expected points of shape"),
        (lambda p: g.sum_points([], [], 1), "concatenated: expected one finite weight for each of 1"),
        (lambda p: g.sum_points([p], [1.0, 2.0], 1), "concatenated: expected one finite weight"),
        (lambda p: g.sum_points([p], [float("nan")], 1), "concatenated: expected one finite weight"),
        (lambda p: g.sum_points([p, point(9, 6)], [1.0, 2.0], 1), "concatenated: expected points of shape"),
        (lambda p: g.sum_points([p], [1.0], 4), "from_factors: expected a rank from 1 to 3"),
        (lambda p: g.sum_tangents([], []), "sum_tangents: expected one finite weight"),
        (lambda p: g.to_vector(p, g.zero_tangent(point(8, 7))), "to_vector, up of the tangent"),
        (lambda p: g.to_coordinates(p, g.zero_tangent(point(8, 7))), "to_coordinates, up of the tangent"),
        (lambda p: g.from_vector(p, randn(39)), r"from_vector: expected a vector of 57, found shape \(39,\)"),
        (lambda p: g.from_coordinates(p, randn(57)), r"from_coordinates: expected a vector of 39, found shape \(57,\)"),
    ],
)
def test_errors_say_where_what_and_what_to_try(call, match):
    with pytest.raises(ArgumentError, match=match):
        call(point())
