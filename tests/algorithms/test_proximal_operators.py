"""Operators of penalties without a gradient, against their definition."""

from itertools import combinations

import pytest
import torch

from bayesfed.errors import ArgumentError, DataError
from bayesfed.inference.objectives.proximal_operators import (
    LargestShare,
    SingularThreshold,
    SoftThreshold,
)
from bayesfed.keys import Key

OPERATORS = [SoftThreshold(0.3), SingularThreshold(0.3), LargestShare(0.4)]


def weights(shape, key=0, dtype=torch.float64):
    return torch.randn(shape, generator=Key(key, "weights").generator(), dtype=dtype)


@pytest.mark.parametrize("operator", [SoftThreshold(0.3), SingularThreshold(0.3)])
@pytest.mark.parametrize("rate", [0.1, 1.0, 2.5])
def test_a_convex_operator_minimises_what_it_says(operator, rate):
    leaf = weights((2, 2))

    def objective(point):
        return rate * operator.value(point) + float((point - leaf).square().sum()) / 2

    found = operator(leaf, rate)
    # A strongly convex function lies above its minimum by half the squared distance, anywhere; a
    # false minimum shows close by.
    for scale in (1e-6, 1e-4, 1e-2, 0.1, 1.0, 3.0):
        for number in range(60):
            point = found + scale * weights((2, 2), number)
            gap = objective(point) - objective(found) - float((point - found).square().sum()) / 2
            assert gap >= -1e-13


@pytest.mark.parametrize("shape", [(5, 8), (9, 4), (4, 3, 2, 2)])
def test_singular_values_shrink_and_nothing_else_does(shape):
    leaf = weights(shape)
    left, values, right = torch.linalg.svd(leaf.flatten(1), full_matrices=False)
    operator, threshold = SingularThreshold(0.5), float(values[1:3].mean())
    found = operator(leaf, 2 * threshold)
    assert found.shape == leaf.shape
    assert torch.allclose(found.flatten(1), (left * (values - threshold).clamp_min(0)) @ right)
    assert operator.rank(found) == 2 < operator.rank(leaf) == len(values)
    assert operator.value(leaf) == pytest.approx(0.5 * float(values.sum()))
    # The residual over the threshold is a subgradient of the nuclear norm: of spectral norm at most
    # 1, and aligned with the result.
    residual = (leaf - found).flatten(1) / threshold
    assert float(torch.linalg.svdvals(residual)[0]) <= 1 + 1e-12
    assert float((residual * found.flatten(1)).sum()) == pytest.approx(
        float(torch.linalg.svdvals(found.flatten(1)).sum())
    )


def test_the_largest_share_is_the_nearest_point_with_so_few_entries():
    leaf, operator = weights((3, 3)), LargestShare(0.4)
    near = min(
        (
            leaf
            * torch.zeros(9, dtype=leaf.dtype).index_fill(0, torch.tensor(kept), 1.0).reshape(3, 3)
            for kept in combinations(range(9), 4)
        ),
        key=lambda point: float((point - leaf).norm()),
    )
    found = operator(leaf, 0.01)
    assert torch.equal(found, near)
    assert torch.equal(found, operator(leaf, 5.0))
    assert operator.value(found) == 0.0
    assert operator.value(leaf) == float("inf")


@pytest.mark.parametrize(
    ("share", "count"), [(1 / 32, 7), (0.1, 20), (0.5, 100), (1e-9, 1), (0.999, 200), (1.0, 200)]
)
def test_exactly_the_share_is_kept_whatever_the_ties(share, count):
    for leaf in (weights((10, 20)), torch.ones(10, 20), weights((10, 20)).round()):
        found = LargestShare(share)(leaf + (leaf == 0), 1.0)
        assert int(found.count_nonzero()) == count
    assert torch.equal(
        LargestShare(share)(torch.ones(10, 20), 1.0).reshape(-1),
        (torch.arange(200) < count).float(),
    )


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_keep_shape_dtype_and_at_rate_zero_every_bit(operator):
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        leaf = weights((4, 3, 2, 2), dtype=torch.float32).to(dtype)
        before = leaf.clone()
        found = operator(leaf, 1.0)
        assert (found.shape, found.dtype) == (leaf.shape, dtype)
        assert not torch.equal(found, leaf)
        assert torch.equal(leaf, before)
        assert torch.equal(operator(leaf, 0.0), leaf)
        fine = operator(leaf.double(), 1.0)
        assert torch.allclose(found.double(), fine, atol=10 * torch.finfo(dtype).eps)
    assert operator(torch.zeros(0, 3), 1.0).shape == (0, 3)


@pytest.mark.parametrize("operator", OPERATORS[:2])
def test_convex_operators_bring_points_together_and_compose(operator):
    one, two = weights((6, 5), 1), weights((6, 5), 2)
    images = operator(one, 1.0) - operator(two, 1.0)
    assert float((images * (one - two)).sum()) >= float(images.square().sum()) - 1e-12
    # A threshold twice is twice the threshold: why the server's part of FeDMiD doubles the
    # strength.
    assert torch.allclose(operator(operator(one, 1.0), 2.0), operator(one, 3.0))


@pytest.mark.parametrize("part", [1e-5, 1e-3, 0.009, 0.011, 0.3, 0.7, 0.999, 1.0, 1.5])
def test_singular_thresholds_of_every_size_agree_with_the_definition(part):
    leaf = weights((7, 3), 1) @ weights((3, 12), 2) + 1e-6 * weights((7, 12), 3)
    left, values, right = torch.linalg.svd(leaf, full_matrices=False)
    threshold = part * float(values[0])
    wanted = (values - threshold).clamp_min(0)
    found = SingularThreshold(1.0)(leaf.float(), threshold)
    assert float((found - (left * wanted) @ right).abs().max()) < 2e-6 * float(values[0])
    assert SingularThreshold(1.0).rank(found) == int((wanted > 0).sum())


def test_a_threshold_below_the_rounding_of_a_rebuilt_matrix_is_not_lost():
    leaf, threshold = weights((48, 96), dtype=torch.float32), 3e-6
    operator, found, count = SingularThreshold(threshold), leaf, 100
    for _ in range(count):
        found = operator(found, 1.0)
    wanted = SingularThreshold(count * threshold)(leaf.double(), 1.0)
    assert float((found - wanted).norm()) < 0.15 * float((leaf - wanted).norm())


@pytest.mark.parametrize("operator", [SoftThreshold, SingularThreshold])
@pytest.mark.parametrize("strength", [-0.1, float("nan"), float("inf")])
def test_a_strength_is_finite_and_not_negative(operator, strength):
    with pytest.raises(
        ArgumentError, match=rf"{operator.__name__}, strength: expected a finite number from 0 up"
    ):
        operator(strength)


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_rate_is_finite_and_not_negative(operator):
    for rate in (-1.0, float("nan"), float("inf")):
        with pytest.raises(
            ArgumentError,
            match=rf"{type(operator).__name__}, rate: expected a finite number from 0 up",
        ):
            operator(torch.ones(2, 2), rate)


def test_what_operators_refuse():
    for share in (0.0, 1.1, float("nan")):
        with pytest.raises(ArgumentError, match="LargestShare, share: expected a share above 0"):
            LargestShare(share)
    with pytest.raises(
        ArgumentError, match=r"SingularThreshold: expected a matrix or kernel, found shape \(3,\)"
    ):
        SingularThreshold(0.1)(torch.ones(3), 1.0)
    for use in (
        lambda leaf: SingularThreshold(0.1)(leaf, 1.0),
        SingularThreshold(0.1).rank,
        SingularThreshold(0.1).value,
    ):
        with pytest.raises(DataError, match="SingularThreshold: expected finite weights"):
            use(torch.full((2, 2), float("nan")))


# What they are applied to
