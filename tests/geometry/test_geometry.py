"""Fixed-rank geometry against dense algebra and pymanopt: projections, retractions, sums,
sums.
"""

import warnings

import numpy as np
import pytest
import torch

from bayesfed import geometry as g
from bayesfed.geometry.thin import signed_qr, signed_svd
from bayesfed.keys import Key
from tests.geometry.geometry_points import CASES, DOUBLE, point, randn, short
from tests.support.manifold import inner, tangent_to_dense, transport, zero_tangent


def close(left, right, tolerance=1e-12):
    torch.testing.assert_close(
        left, right, rtol=tolerance, atol=tolerance * float(right.abs().max())
    )


# -------------------------------------------------------------------------------------------------
# oracles
@pytest.mark.parametrize("case", CASES, ids=str)
def test_agreement_with_dense_algebra(case):
    rows, columns, rank = case
    at, ambient = point(*case), randn(rows, columns)
    u, v, x = at.u, at.v, g.to_dense(at)
    dense = u @ u.mT @ ambient + ambient @ v @ v.mT - u @ u.mT @ ambient @ v @ v.mT
    tangent = g.project(at, ambient @ v, ambient.mT @ u)
    close(tangent_to_dense(at, tangent), dense)
    close(
        tangent_to_dense(at, g.project_factors(at, ambient, torch.eye(columns, dtype=DOUBLE))),
        dense,
    )
    close(g.norm(tangent), dense.norm())
    other = g.random_tangent(at, Key(0, "o"))
    close(inner(tangent, other), (dense * tangent_to_dense(at, other)).sum(), 1e-11)
    close(g.norm(2.0 * tangent - other), (2 * dense - tangent_to_dense(at, other)).norm())

    def nearest(matrix):
        left, s, right = torch.linalg.svd(matrix, full_matrices=False)
        return (left[:, :rank] * s[:rank]) @ right[:rank]

    close(g.to_dense(g.metric_retraction(at, tangent)), nearest(x + dense))
    close(g.to_dense(g.from_dense(ambient, rank)), nearest(ambient))
    a, b = randn(rows, rank + 2, name="a"), randn(columns, rank + 2, name="b")
    close(g.to_dense(g.from_factors(a, b, rank)), nearest(a @ b.mT), 1e-11)
    far = point(*case, name="far")
    close(g.distance(at, far), (x - g.to_dense(far)).norm())
    close(
        tangent_to_dense(at, g.difference(at, far)),
        tangent_to_dense(
            at, g.project_factors(at, g.to_dense(far) - x, torch.eye(columns).double())
        ),
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
    assert theirs.dim == (12 + 9 - 3) * 3
    same(tangent, theirs.projection(point_there(at), ambient.numpy()))
    np.testing.assert_allclose(
        float(inner(tangent, other)),
        theirs.inner_product(point_there(at), tangent_there(tangent), tangent_there(other)),
    )
    same(
        transport(at, to, tangent),
        theirs.transport(point_there(at), point_there(to), tangent_there(tangent)),
    )
    u, s, vt = theirs.retraction(point_there(at), tangent_there(tangent))
    np.testing.assert_allclose(
        g.to_dense(g.metric_retraction(at, tangent)).numpy(), u @ np.diag(s) @ vt, atol=1e-8
    )
    loose = g.Tangent(other.core, randn(12, 3), randn(9, 3))
    same(g.to_tangent(at, loose), theirs.to_tangent_space(point_there(at), tangent_there(loose)))


@pytest.mark.parametrize("retract", [g.metric_retraction, g.orthographic_retraction])
def test_the_gradient_is_that_of_finite_differences_along_retractions(retract):
    at, x, target = point(), randn(20, 7), randn(20, 9, name="target")

    def loss(y):
        return ((y.tanh() - target) ** 2).sum()

    weight = g.to_dense(at).requires_grad_()
    loss(x @ weight.mT).backward()
    gradient = g.project(at, weight.grad @ at.v, weight.grad.mT @ at.u)
    direction, step = short(at), 1e-5
    ahead, behind = (
        loss(x @ g.to_dense(retract(at, sign * step * direction)).mT) for sign in (1, -1)
    )
    assert float((ahead - behind) / (2 * step)) == pytest.approx(
        float(inner(gradient, direction)), rel=1e-7
    )


# -------------------------------------------------------------------------------------------------
# retractions
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_orthographic_retraction_is_undone_by_a_projection_near_and_far(case):
    at, far = point(*case), point(*case, name="far")
    tangent = short(at)
    back = g.difference(at, g.orthographic_retraction(at, tangent))
    assert float(g.norm(back - tangent)) < 1e-10 * float(g.norm(tangent))
    reached = g.orthographic_retraction(at, g.difference(at, far))
    assert float(g.distance(reached, far)) < 1e-9 * float(far.s.norm())


def test_the_metric_retraction_is_no_farther_than_any_other():
    at = point()
    for name in range(5):
        tangent = short(at, name=name, size=2.0)
        moved = g.to_dense(at) + tangent_to_dense(at, tangent)
        metric, orthographic = (
            g.to_dense(f(at, tangent)) for f in (g.metric_retraction, g.orthographic_retraction)
        )
        assert float((metric - moved).norm()) <= float((orthographic - moved).norm())


def test_at_full_rank_the_manifold_is_flat():
    at = point(6, 4, 4)
    tangent = short(at, size=0.9)
    moved = g.to_dense(at) + tangent_to_dense(at, tangent)
    close(g.to_dense(g.metric_retraction(at, tangent)), moved)
    close(g.to_dense(g.orthographic_retraction(at, tangent)), moved)
    ambient = randn(6, 4)
    close(tangent_to_dense(at, g.project(at, ambient @ at.v, ambient.mT @ at.u)), ambient)


@pytest.mark.parametrize("retract", [g.metric_retraction, g.orthographic_retraction])
def test_a_long_chain_of_single_precision_steps_stays_on_the_manifold(retract):
    at = point(40, 30, 4, dtype=torch.float32)
    for step in range(300):
        at = retract(at, short(at, name=step, size=0.3))
    g.check_point(at, "the end", tolerance=3e-6)


def test_a_step_to_lower_rank_is_orthonormal_and_deterministic():
    at = g.canonical(point())
    removed = zero_tangent(at) + g.Tangent(
        -at.s * torch.eye(3, dtype=DOUBLE)[-1], 0 * at.u, 0 * at.v
    )
    lower, again = g.metric_retraction(at, removed), g.metric_retraction(at, removed)
    g.check_point(lower, "lower")
    assert float(g.singular_values(lower)[-1]) < 1e-14
    assert all(
        torch.equal(left, right)
        for left, right in zip(
            (lower.u, lower.s, lower.v), (again.u, again.s, again.v), strict=True
        )
    )
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
    for nothing in (
        g.from_dense(torch.zeros(4, 3), 2),
        g.from_factors(torch.zeros(4, 2), torch.zeros(3, 2), 2),
    ):
        g.check_point(nothing, "zero")
        assert float(nothing.s.abs().max()) == 0
    q, r = signed_qr(torch.tensor([[-1.0, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    assert (r.diagonal() >= 0).all()
    close(q.mT @ q, torch.eye(2))
    u, s, v = signed_svd(-torch.eye(2))
    close((u * s) @ v.mT, -torch.eye(2))
    assert (u.amax(0) > 0).all()


# --------------------------------------------------------------------------------------------------
# sums
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
    close(g.to_dense(g.sum_points(points, weights, 6)), dense)
    close(g.to_dense(g.sum_points(points, weights, 2)), g.to_dense(g.from_dense(dense, 2)))
    close(g.to_dense(g.sum_points(points[2:3], [1.0], 3)), g.to_dense(points[2]))


def test_tangents_add_and_scale_as_their_matrices_do():
    at = point()
    tangents = [g.random_tangent(at, Key(k)) for k in range(3)]
    total = 0.5 * tangents[0] - tangents[1] + 2.0 * tangents[2]
    close(
        tangent_to_dense(at, total),
        sum(w * tangent_to_dense(at, z) for w, z in zip((0.5, -1.0, 2.0), tangents, strict=True)),
    )


def test_random_points_and_tangents():
    at = g.random_point(60, 50, 5, Key(0), std=0.1, dtype=DOUBLE)
    assert float(g.to_dense(at).std()) == pytest.approx(0.1, rel=0.1)
    assert float(g.to_dense(g.random_point(60, 50, 5, Key(0))).std()) == pytest.approx(
        50**-0.5, rel=0.1
    )
    assert torch.equal(at.u, g.random_point(60, 50, 5, Key(0), std=0.1, dtype=DOUBLE).u)
    squares = torch.stack([g.norm(g.random_tangent(at, Key(k))) ** 2 for k in range(50)])
    assert float(squares.mean()) == pytest.approx((60 + 50 - 5) * 5, rel=0.03)


@pytest.mark.slow
def test_a_matrix_too_large_to_form():
    """10^6 x 10^6, four terabytes in single precision."""
    size, rank = 10**6, 2
    at = g.random_point(size, size, rank, Key(0))
    tangent = short(at, size=0.1)
    moved = g.metric_retraction(at, tangent)
    reached = g.orthographic_retraction(at, tangent)
    length = float(g.norm(tangent))
    assert float(g.norm(g.difference(at, reached) - tangent)) < 1e-3 * length
    assert float(g.distance(moved, reached)) < 0.1 * length
    assert float(g.norm(transport(at, moved, tangent))) <= length
    mean = g.sum_points([at, moved], [0.5, 0.5], rank)
    assert float(g.distance(mean, at)) == pytest.approx(length / 2, rel=0.01)
