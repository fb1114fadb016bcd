"""Ranks for a budget against brute force, and a rank that shrinks and grows against dense singular
value decompositions.
"""

import itertools

import pytest
import torch

from bayesfed import geometry as g
from bayesfed.errors import ArgumentError
from bayesfed.keys import Key

DOUBLE = torch.float64
# The network of FedRLR.
SHAPES = {"1": (256, 784), "2": (256, 256), "3": (10, 256)}


def randn(*shape, name="x"):
    return torch.randn(*shape, generator=Key(0, name).generator(), dtype=DOUBLE)


def point(rows=9, columns=7, rank=3, *, name="p"):
    return g.random_point(rows, columns, rank, Key(0, name), dtype=DOUBLE)


def close(left, right, tolerance=1e-12):
    torch.testing.assert_close(
        left, right, rtol=tolerance, atol=tolerance * max(float(right.abs().max()), 1e-300)
    )


def total(shapes, ranks, count="factors"):
    return sum(g.numbers(shapes[name], rank, count) for name, rank in ranks.items())


# -------------------------------------------------------------------------------------------------
# for a budget


def test_numbers_of_the_papers_network():
    dense = sum(rows * columns for rows, columns in SHAPES.values())
    assert dense == 268_800
    assert total(SHAPES, dict.fromkeys(SHAPES, 4)) == 7272
    assert total(SHAPES, dict.fromkeys(SHAPES, 4), "freedom") == 7272 - 3 * 16
    assert g.numbers((5, 4), 4, "freedom") == 20
    at = point()
    assert g.numbers(at.shape, at.rank, "freedom") == at.dimension
    assert g.numbers(at.shape, at.rank) == at.u.numel() + at.v.numel()


@pytest.mark.parametrize("count", ["factors", "freedom"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (6, 6), (12, 5)], ids=str)
def test_the_largest_rank_is_that_of_brute_force(shape, count):
    for ratio in (1e-6, 0.1, 0.3, 0.5, 0.77, 1.0):
        fitting = [
            rank
            for rank in range(1, min(shape) + 1)
            if g.numbers(shape, rank, count) <= ratio * shape[0] * shape[1]
        ]
        assert g.largest_rank(shape, ratio, count) == max(fitting, default=1)
    assert g.largest_rank(shape, 1.0, "freedom") == min(shape)


def test_the_uniform_rule_keeps_every_layer_within_the_ratio():
    for count, ratio in itertools.product(("factors", "freedom"), (1 / 8, 1 / 32)):
        ranks = g.uniform_ranks(SHAPES, ratio, count)
        for name, (rows, columns) in SHAPES.items():
            assert (
                ranks[name] == 1
                or g.numbers(SHAPES[name], ranks[name], count) <= ratio * rows * columns
            )
    assert g.uniform_ranks(SHAPES, 1e-9) == {"1": 1, "2": 1, "3": 1}
    assert g.largest_rank((10**6, 10**6), 1e-5) == 5


def test_the_energy_rule_is_the_smallest_rank_that_loses_no_more():
    values = torch.tensor([1.0, 3.0, 2.0, 0.0])
    energies = [9.0, 4.0, 1.0, 0.0]
    for loss in (0.0, 0.05, 1 / 14 + 1e-9, 0.3, 5 / 14 + 1e-9, 0.99):
        brute = next(rank for rank in range(1, 5) if sum(energies[rank:]) <= loss * 14)
        assert g.energy_rank(values, loss) == brute
    assert g.energy_rank(torch.zeros(3), 0.0) == 1
    # A loss below the rounding of the sum.
    assert g.energy_rank(torch.tensor([1.0, 1e-12]), 0.9e-24) == 2
    assert g.energy_rank(torch.tensor([1.0, 1e-12]), 1.1e-24) == 1
    assert g.energy_ranks({"a": values, "b": torch.ones(5)}, 0.3) == {"a": 2, "b": 4}


def test_the_greedy_rule_spends_within_its_budget_and_keeps_most_energy():
    shapes = {
        "a": (6, 4),
        "b": (4, 6),
        "c": (5, 5),
    }  # ten numbers a direction, all: the knapsack is exact
    spectra = {name: randn(min(shape), name=name).abs() for name, shape in shapes.items()}

    def kept(ranks):
        return sum(
            float(spectra[name].sort(descending=True).values[:rank].square().sum())
            for name, rank in ranks.items()
        )

    for ratio in (0.45, 0.6, 0.8, 1.0):
        ranks = g.greedy_ranks(shapes, spectra, ratio)
        budget = ratio * 73
        assert total(shapes, ranks) <= budget
        every = (
            dict(zip(shapes, each, strict=True))
            for each in itertools.product(range(1, 5), range(1, 5), range(1, 6))
        )
        assert kept(ranks) == pytest.approx(
            max(kept(each) for each in every if total(shapes, each) <= budget)
        )


@pytest.mark.parametrize("count", ["factors", "freedom"])
def test_the_greedy_rule_at_its_ends(count):
    spectra = {
        name: torch.linalg.svdvals(randn(*shape, name=name)) for name, shape in SHAPES.items()
    }
    assert g.greedy_ranks(SHAPES, spectra, 1e-9, count) == {"1": 1, "2": 1, "3": 1}
    for ratio in (0.02, 0.1, 0.5):
        ranks = g.greedy_ranks(SHAPES, spectra, ratio, count)
        assert total(SHAPES, ranks, count) <= ratio * 268_800
        assert all(1 <= rank <= min(SHAPES[name]) for name, rank in ranks.items())
    assert g.greedy_ranks(SHAPES, spectra, 1.0, "freedom") == {
        name: min(shape) for name, shape in SHAPES.items()
    }
    # Of what has no energy, nothing is added, and a layer that counts for more gets more.
    low = {name: torch.cat([values[:2], 0 * values[2:]]) for name, values in spectra.items()}
    assert g.greedy_ranks(SHAPES, low, 1.0, count) == {"1": 2, "2": 2, "3": 2}
    louder = g.greedy_ranks(SHAPES, {**spectra, "2": 100 * spectra["2"]}, 0.1, count)
    assert louder["2"] > g.greedy_ranks(SHAPES, spectra, 0.1, count)["2"]


# -------------------------------------------------------------------------------------------------
# adaptation


def test_truncation_loses_what_it_may_and_no_more():
    dense = randn(9, 7)
    at = g.from_dense(dense, 7)
    for loss in (0.0, 0.01, 0.1, 0.5, 0.99):
        less = g.truncate(at, loss)
        lost = float((g.to_dense(less) - dense).norm() ** 2 / dense.norm() ** 2)
        assert lost <= loss + 1e-15
        if less.rank > 1:
            assert (
                float(
                    (g.to_dense(g.from_dense(dense, less.rank - 1)) - dense).norm() ** 2
                    / dense.norm() ** 2
                )
                > loss
            )
    assert g.truncate(at, 0.0).rank == 7
    nothing = g.from_dense(torch.zeros(4, 4), 3)
    assert g.truncate(nothing, 0.0).rank == 1
    turned = g.orthographic_retraction(point(), 0.1 * g.random_tangent(point(), Key(0)))
    close(g.to_dense(g.truncate(turned, 0.0)), g.to_dense(turned))


def test_normal_directions_are_those_of_a_dense_decomposition():
    at, a, b = (
        point(30, 20, 3),
        randn(30, 20, name="a"),
        randn(20, 20, name="b") * 0.5 ** torch.arange(20),
    )
    gradient = a @ b.mT
    normal = (torch.eye(30) - at.u @ at.u.mT) @ gradient @ (torch.eye(20) - at.v @ at.v.mT)
    found = [
        g.normal_directions(at, lambda x: a @ (b.mT @ x), lambda y: b @ (a.mT @ y), 4, Key(key))
        for key in (0, 0, 1)
    ]
    left, values, right = found[0]
    assert all(torch.equal(one, two) for one, two in zip(found[0], found[1], strict=True)), (
        "a key names the draw"
    )
    u, s, vh = torch.linalg.svd(normal)
    close(values, s[:4], 1e-8)
    close((left * values) @ right.mT, (u[:, :4] * s[:4]) @ vh[:4], 1e-7)
    close(values, found[2][1], 1e-8)
    close(left.mT @ left, torch.eye(4, dtype=DOUBLE))
    assert float((at.u.mT @ left).abs().max()) < 1e-14
    assert float((at.v.mT @ right).abs().max()) < 1e-14
    # All directions that there are, more than the gradient has.
    flat = g.normal_directions(
        at,
        lambda x: a[:, :1] @ (b[:, :1].mT @ x),
        lambda y: b[:, :1] @ (a[:, :1].mT @ y),
        17,
        Key(0),
    )
    assert flat[0].shape == (30, 17)
    assert float(flat[1][1]) < 1e-12 * float(flat[1][0])


def test_growing_along_the_gradient_descends_at_the_rate_of_its_values():
    at, x, target = point(12, 10, 2), randn(40, 10), randn(40, 12, name="target")
    weight = g.to_dense(at).requires_grad_()
    (0.5 * (x @ weight.mT - target).square().sum()).backward()
    # The gradient of a linear layer comes as two factors already: outputs' gradients and inputs.
    out = (g.apply(at, x) - target).mT
    left, values, right = g.normal_directions(
        at, lambda y: out @ (x @ y), lambda y: x.mT @ (out.mT @ y), 3, Key(0)
    )
    step = 1e-6
    grown = g.grow(at, left, right, -step * values)
    close(g.to_dense(grown), g.to_dense(at) - step * (left * values) @ right.mT)
    g.check_point(grown, "grown")
    assert grown.rank == 5
    assert torch.equal(grown.u[:, :2], at.u)
    before, after = (0.5 * (g.apply(p, x) - target).square().sum() for p in (at, grown))
    assert float((before - after) / step) == pytest.approx(float(values.square().sum()), rel=1e-3)
    assert float(values.square().sum()) <= float(weight.grad.norm() ** 2)


def test_growing_from_thin_products_makes_room_and_changes_nothing():
    at, gradient = point(), randn(9, 7)
    left, right = g.tangent_directions(at, gradient @ at.v, gradient.mT @ at.u, 2)
    u = torch.linalg.svd((torch.eye(9) - at.u @ at.u.mT) @ gradient @ at.v)[0][:, :2]
    v = torch.linalg.svd((torch.eye(7) - at.v @ at.v.mT) @ gradient.mT @ at.u)[0][:, :2]
    close(left @ left.mT, u @ u.mT)
    close(right @ right.mT, v @ v.mT)
    grown = g.grow(at, left, right)
    g.check_point(grown, "grown")
    close(g.to_dense(grown), g.to_dense(at))
    assert grown.rank == 5
    assert g.truncate(grown, 0.0).rank == 3
    # Directions of no use are replaced, and the result is as orthonormal.
    filled = g.grow(at, torch.cat([at.u[:, :1], 0 * at.u[:, :1]], 1), randn(7, 2))
    g.check_point(filled, "filled")
    close(g.to_dense(filled), g.to_dense(at))


def test_grown_to_full_rank_and_back():
    at = point(6, 5, 2)
    target = randn(6, 5)
    difference = target - g.to_dense(at)
    full = g.grow(at, *g.tangent_directions(at, difference @ at.v, difference.mT @ at.u, 2))
    full = g.grow(full, *g.tangent_directions(full, difference @ full.v, difference.mT @ full.u, 1))
    assert full.rank == 5
    arrived = g.metric_retraction(
        full, g.project_factors(full, difference, torch.eye(5, dtype=DOUBLE))
    )
    close(g.to_dense(arrived), target)
    assert g.truncate(arrived, 0.999).rank == 1


# -------------------------------------------------------------------------------------------------
# errors


def products(matrix):
    return (lambda x: matrix @ x), (lambda y: matrix.mT @ y)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda p: g.numbers((4, 3), 0), "numbers: expected a rank from 1 to 3, found 0"),
        (lambda p: g.numbers((4, 3), 4), "numbers: expected a rank from 1 to 3, found 4"),
        (
            lambda p: g.numbers((4, 3), 1, "weights"),
            "numbers: expected 'factors' or 'freedom', found 'weights'",
        ),
        (
            lambda p: g.largest_rank((4, 3), 0.0),
            r"largest_rank: expected a ratio in \(0, 1\], found 0.0",
        ),
        (
            lambda p: g.largest_rank((4, 3), 8),
            r"largest_rank: expected a ratio in \(0, 1\], found 8",
        ),
        (lambda p: g.largest_rank((4, 0), 0.5), "largest_rank: expected a rank from 1 to 0"),
        (lambda p: g.uniform_ranks({"a": (4, 3)}, float("nan")), "largest_rank: expected a ratio"),
        (
            lambda p: g.energy_rank(torch.ones(3), 1.0),
            r"energy_rank: expected a loss in \[0, 1\), found 1.0",
        ),
        (
            lambda p: g.energy_rank(torch.tensor([1.0, -1.0]), 0.1),
            "energy_rank: expected finite singular values",
        ),
        (
            lambda p: g.energy_rank(torch.tensor([]), 0.1),
            "energy_rank: expected finite singular values",
        ),
        (
            lambda p: g.energy_ranks({"a": torch.ones(2, 2)}, 0.1),
            r"expected finite singular values \(k,\), 0 or more, found \(2, 2\)",
        ),
        (
            lambda p: g.greedy_ranks({"a": (4, 3)}, {"a": torch.ones(3)}, 1.5),
            "greedy_ranks: expected a ratio",
        ),
        (
            lambda p: g.greedy_ranks({"a": (4, 3)}, {"b": torch.ones(3)}, 0.5),
            r"greedy_ranks: expected spectra of \['a'\], found \['b'\]",
        ),
        (
            lambda p: g.greedy_ranks({"a": (4, 3)}, {"a": torch.ones(4)}, 0.5),
            "greedy_ranks, singular values of 'a': expected a rank from 1 to 3",
        ),
        (
            lambda p: g.greedy_ranks({"a": (4, 3)}, {"a": -torch.ones(3)}, 0.5),
            "greedy_ranks, 'a': expected finite singular values",
        ),
        (lambda p: g.truncate(p, 1.0), "energy_rank: expected a loss"),
        (
            lambda p: g.truncate(g.FixedRank(p.u, p.s * float("nan"), p.v), 0.1),
            "truncate, s: expected finite",
        ),
        (
            lambda p: g.normal_directions(p, *products(randn(9, 7)), 5, Key(0)),
            "normal_directions, count: expected a rank from 1 to 4, found 5",
        ),
        (
            lambda p: g.normal_directions(p, *products(randn(8, 7)), 1, Key(0)),
            r"normal_directions, product: expected shape \(9, 7\)",
        ),
        (
            lambda p: g.normal_directions(
                p, lambda x: randn(9, x.shape[1]), lambda y: y, 1, Key(0)
            ),
            "normal_directions, transposed: expected shape",
        ),
        (
            lambda p: g.normal_directions(p, *products(randn(9, 7) / 0), 1, Key(0)),
            "normal_directions, product: expected finite",
        ),
        (
            lambda p: g.normal_directions(
                p, lambda x: randn(9, x.shape[1]), lambda y: p.v[:, :1] @ y[:1] / 0, 1, Key(0)
            ),
            "transposed: expected finite",
        ),
        (
            lambda p: g.tangent_directions(p, p.u, p.v, 4),
            "tangent_directions, count: expected a rank from 1 to 3, found 4",
        ),
        (
            lambda p: g.tangent_directions(p, p.u / 0, p.v, 1),
            "tangent_directions, gv: expected finite",
        ),
        (lambda p: g.tangent_directions(p, p.v, p.v, 1), "project, gv: expected shape"),
        (
            lambda p: g.grow(p, randn(9, 5), randn(7, 5)),
            "grow, directions: expected a rank from 1 to 4, found 5",
        ),
        (
            lambda p: g.grow(p, randn(9, 0), randn(7, 0)),
            "grow, directions: expected a rank from 1 to 4, found 0",
        ),
        (lambda p: g.grow(p, randn(8, 2), randn(7, 2)), r"grow, left: expected shape \(9, 2\)"),
        (lambda p: g.grow(p, randn(9, 2), randn(7, 1)), r"grow, right: expected shape \(7, 2\)"),
        (lambda p: g.grow(p, randn(9, 1) / 0, randn(7, 1)), "grow, left: expected finite"),
        (
            lambda p: g.grow(p, randn(9, 1), randn(7, 1), torch.ones(2)),
            r"grow, values: expected shape \(1,\), found shape \(2,\)",
        ),
        (
            lambda p: g.grow(p, randn(9, 1), randn(7, 1), torch.ones(1) / 0),
            "grow, values: expected finite",
        ),
        (
            lambda p: g.grow(p, p.u[:, :1], randn(7, 1), torch.ones(1)),
            "grow, left: expected orthonormal directions outside, found off by",
        ),
    ],
)
def test_errors_say_where_what_and_what_to_try(call, match):
    with pytest.raises(ArgumentError, match=match):
        call(point())
