"""Ranks for a budget against brute force, and a rank that shrinks and grows against dense singular
value decompositions.
"""

import pytest
import torch

from bayesfed import geometry as g
from bayesfed.errors import ArgumentError
from bayesfed.keys import Key

DOUBLE = torch.float64


def randn(*shape, name="x"):
    return torch.randn(*shape, generator=Key(0, name).generator(), dtype=DOUBLE)


def point(rows=9, columns=7, rank=3, *, name="p"):
    return g.random_point(rows, columns, rank, Key(0, name), dtype=DOUBLE)


def close(left, right, tolerance=1e-12):
    torch.testing.assert_close(
        left, right, rtol=tolerance, atol=tolerance * max(float(right.abs().max()), 1e-300)
    )


# -------------------------------------------------------------------------------------------------
# for a budget


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (9, 1), (6, 6), (12, 5), (784, 256)], ids=str)
def test_the_uniform_rule_is_that_of_brute_force(shape):
    for ratio in (1e-9, 0.1, 0.3, 0.5, 0.77, 1 / 8, 1 / 32, 1.0):
        fitting = [
            rank
            for rank in range(1, min(shape) + 1)
            if rank * sum(shape) <= ratio * shape[0] * shape[1]
        ]
        assert g.uniform_ranks({"a": shape}, ratio) == {"a": max(fitting, default=1)}


def test_the_uniform_rule_of_the_papers_network():
    assert g.uniform_ranks({"1": (256, 784), "2": (256, 256), "3": (10, 256)}, 1 / 32) == {
        "1": 6,
        "2": 4,
        "3": 1,
    }
    assert g.uniform_ranks({"a": (10**6, 10**6)}, 1e-5) == {"a": 5}


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
    assert g.energy_rank(torch.ones(5), 0.3) == 4


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


def test_growing_makes_room_and_changes_nothing():
    at = point()
    grown = g.grow(at, randn(9, 2), randn(7, 2, name="right"))
    g.check_point(grown, "grown")
    close(g.to_dense(grown), g.to_dense(at))
    assert grown.rank == 5
    assert torch.equal(grown.u[:, :3], at.u)
    assert g.truncate(grown, 0.0).rank == 3
    # Directions of no use are replaced, and the result is as orthonormal.
    filled = g.grow(at, torch.cat([at.u[:, :1], 0 * at.u[:, :1]], 1), randn(7, 2))
    g.check_point(filled, "filled")
    close(g.to_dense(filled), g.to_dense(at))


def test_grown_to_full_rank_and_back():
    at = point(6, 5, 2)
    target = randn(6, 5)
    difference = target - g.to_dense(at)
    full = g.grow(at, randn(6, 3), randn(5, 3))
    assert full.rank == 5
    arrived = g.metric_retraction(
        full, g.project_factors(full, difference, torch.eye(5, dtype=DOUBLE))
    )
    close(g.to_dense(arrived), target)
    assert g.truncate(arrived, 0.999).rank == 1


# -------------------------------------------------------------------------------------------------
# errors


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda p: g.uniform_ranks({"a": (4, 3)}, 0.0),
            r"uniform_ranks: expected a ratio in \(0, 1\], found 0.0",
        ),
        (lambda p: g.uniform_ranks({"a": (4, 3)}, 8), "expected a ratio"),
        (lambda p: g.uniform_ranks({"a": (4, 3)}, float("nan")), "expected a ratio"),
        (lambda p: g.uniform_ranks({"a": (4, 0)}, 0.5), "layer 'a': expected a rank from 1 to 0"),
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
            lambda p: g.energy_rank(torch.ones(2, 2), 0.1),
            r"expected finite singular values \(k,\), 0 or more, found \(2, 2\)",
        ),
        (lambda p: g.truncate(p, 1.0), "energy_rank: expected a loss"),
        (
            lambda p: g.truncate(g.FixedRank(p.u, p.s * float("nan"), p.v), 0.1),
            "truncate, s: expected finite",
        ),
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
    ],
)
def test_errors_say_where_what_and_what_to_try(call, match):
    with pytest.raises(ArgumentError, match=match):
        call(point())
