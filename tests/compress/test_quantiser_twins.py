"""Codecs of one leaf against loops, formulas and sorts, and arguments out of their domain."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.quantisers.cells import CELLS
from bayesfed.compress.quantisers.floats import Float, Uniform
from bayesfed.compress.quantisers.lattice import Lattice
from bayesfed.compress.quantisers.probabilistic import FedPaqQuantiser, Probabilistic, Qsgd
from bayesfed.compress.quantisers.sparsify import Sparse, Ternary, TopK
from bayesfed.errors import ArgumentError, WireError
from bayesfed.keys import Key
from tests.compress.quantiser_leaves import (
    KEY,
    LEAVES,
    Words,
    decode,
    encode,
    gaussian,
    there_and_back,
)
from tests.support.codecs.promises import REACH, variance


def test_floats_round_to_nearest_and_weigh_what_they_should():
    leaf = gaussian(999)
    for codec, dtype, size in [
        (Float(32), torch.float32, 4),
        (Float(16), torch.float16, 2),
    ]:
        assert len(encode(codec, leaf)) == size * 999
        assert torch.equal(there_and_back(codec, leaf), leaf.to(dtype).float())
        assert torch.equal(
            there_and_back(replace(codec, entropy=Cheapest()), leaf), leaf.to(dtype).float()
        )
    assert encode(Float(32), leaf) == leaf.numpy().astype("<f4").tobytes()
    assert torch.equal(
        there_and_back(Float(32, Cheapest()), -torch.zeros(3)).signbit(),
        torch.ones(3, dtype=torch.bool),
    )
    large = gaussian(300, 300)
    assert (
        len(encode(Float(32, Cheapest()), large)) < 0.87 * 4 * 90_000
    )  # 5.3 of 8 bits of a Gaussian exponent are redundant


def test_floats_beyond_the_range_are_refused():
    with pytest.raises(
        WireError, match=r"values within its range, found largest 3.4\d*e\+38; try Float\(32\)"
    ):
        encode(Float(16), torch.tensor([1.0, 3.4028234e38]))
    with pytest.raises(WireError, match="finite numbers"):
        decode(Float(16), b"\xff\x7f", (1,))


def test_the_uniform_grid_meets_both_ends():
    leaf = torch.tensor([-1.3, 0.1, 0.4, 2.7])
    for bits in (1, 2, 8, 14):
        back = there_and_back(Uniform(bits), leaf)
        assert (back[0], back[3]) == (leaf[0], leaf[3])
        grid = (
            torch.linspace(0, 1, 2**bits, dtype=torch.float64) * (leaf[3] - leaf[0]).double()
            + leaf[0]
        )
        nearest = grid[(leaf[1:3, None].double() - grid).abs().argmin(1)]
        assert torch.allclose(back[1:3].double(), nearest, atol=1e-6)
    assert len(encode(Uniform(8), torch.full((100,), 0.3))) == 8


def anycostfl(leaf, levels, key):
    """(3) and (4) an entry at a time, with Q_0 = u_min, from the same uniform numbers."""
    active = [u for u in leaf.reshape(-1).tolist() if u != 0]
    draws = iter(key.child("rounding").numpy().random(len(active)))
    low, high = min(map(abs, active)), max(map(abs, active))
    points = [low + step * (high - low) / levels for step in range(levels + 1)]
    found = []
    for u in leaf.reshape(-1).tolist():
        if u == 0:
            found.append(0.0)
            continue
        below = max((step for step in range(levels) if points[step] <= abs(u)), default=0)
        stay = (
            (points[below + 1] - abs(u)) / (points[below + 1] - points[below])
            if high > low
            else 1.0
        )
        up = next(draws) < 1 - stay
        found.append(math.copysign(points[below + up] if high > low else low, u))
    return torch.tensor(found).reshape(leaf.shape)


@pytest.mark.parametrize(
    "what", ["(5, 7)", "sparse", "single", "equal", "one magnitude", "huge", "subnormal"]
)
@pytest.mark.parametrize("levels", [1, 3, 16])
def test_anycostfl_against_a_loop(what, levels):
    for seed in range(5):
        key, leaf = KEY.child(seed), LEAVES[what]
        assert torch.allclose(
            there_and_back(Probabilistic(levels), leaf, key),
            anycostfl(leaf, levels, key),
            rtol=1e-6,
            atol=1e-44,
        )


@pytest.mark.parametrize("levels", [1, 5])
def test_qsgd_against_a_loop(levels):
    leaf = LEAVES["(1000,)"][:101]
    for bucket, norm in itertools.product([None, 1, 10, 101, 1 << 40], ["l2", "max"]):
        draws = KEY.child("rounding").numpy().random(101)
        found = []
        for start in range(0, 101, bucket or 101):
            part = leaf[start : start + (bucket or 101)]
            size = float(part.norm() if norm == "l2" else part.abs().max())
            for i, x in enumerate(part.tolist(), start):
                ratio = abs(x) / size * levels
                found.append(
                    math.copysign(size * (int(ratio) + (draws[i] < ratio - int(ratio))) / levels, x)
                )
        back = there_and_back(Qsgd(levels, bucket, norm), leaf)
        assert torch.allclose(back, torch.tensor(found), rtol=1e-5)


def test_qsgd_keeps_its_lemma():
    """Lemma 3.1: the variance is at most min(n / s**2, sqrt(n) / s) times the energy."""
    for n, levels in itertools.product([1, 10, 1000], [1, 4, 64]):
        leaf = gaussian(n)
        assert (
            variance(Qsgd(levels), leaf)
            <= 1.0001 * min(n / levels**2, math.sqrt(n) / levels) * leaf.square().sum().item()
        )
    with pytest.raises(WireError, match="try norm='max' or a bucket"):
        encode(Qsgd(4), torch.full((100,), 3e38))
    assert there_and_back(Qsgd(4, norm="max"), torch.full((100,), 3e38)).eq(3e38).all()
    assert FedPaqQuantiser is Qsgd


def brute_force(dimension, points):
    """All lattice points near the origin by their definition, and the nearest to each."""
    basis = {1: [[1.0]], 2: [[1.0, 0.0], [0.5, math.sqrt(3) / 2]]}[dimension]
    lattice = np.array(list(itertools.product(range(-9, 10), repeat=dimension))) @ np.array(basis)
    return lattice, np.array(
        [lattice[((lattice - point) ** 2).sum(1).argmin()] for point in points]
    )


@pytest.mark.parametrize("dimension", CELLS)
def test_nearest_lattice_points_against_brute_force(dimension):
    cell, random = CELLS[dimension], KEY.child("points").numpy()
    points = random.uniform(-3, 3, (1500, dimension))
    lattice, nearest = brute_force(dimension, points)
    found = cell.nearest(points)
    assert np.allclose(cell.points(found), nearest)
    everywhere = random.uniform(-30, 30, (1500, dimension))
    shift = lattice[random.integers(len(lattice), size=1500)]
    assert np.allclose(
        cell.points(cell.nearest(everywhere + shift)), cell.points(cell.nearest(everywhere)) + shift
    )
    assert np.array_equal(cell.nearest(cell.points(found)), found)
    integers = random.integers(-9, 10, (500, dimension))
    assert np.array_equal(
        cell.nearest(cell.points(integers)), integers
    )  # every integer vector is a point, and only one


@pytest.mark.parametrize("dimension", CELLS)
def test_dither_fills_the_cell(dimension):
    cell = CELLS[dimension]
    drawn = cell.uniform(200_000, KEY.child("dither").numpy())
    assert not cell.nearest(drawn).any()
    assert drawn.mean(0) == pytest.approx(np.zeros(dimension), abs=0.005)
    assert np.cov(drawn.T).reshape(dimension, dimension) == pytest.approx(
        cell.moment * np.eye(dimension), abs=0.0015
    )
    assert np.abs(drawn).max() <= REACH[dimension]
    assert cell.moment / cell.side**2 == pytest.approx(
        {1: 1 / 12, 2: 0.0801875}[dimension], rel=1e-5
    )


@pytest.mark.parametrize("dimension", CELLS)
@pytest.mark.parametrize("what", ["gaussian", "uniform", "sparse", "constant"])
def test_lattice_error_is_known_and_independent_of_the_leaf(dimension, what):
    n = 40_001
    leaf = {
        "gaussian": gaussian(n),
        "uniform": torch.arange(n) / n,
        "sparse": gaussian(n) * (torch.arange(n) % 9 == 0),
        "constant": torch.ones(n),
    }[what]
    codec = Lattice(bits=1.7, dimension=dimension, code=Words())
    error = there_and_back(codec, leaf).double() - leaf
    assert error.square().sum().item() == pytest.approx(variance(codec, leaf), rel=0.05)
    assert abs(error.mean().item()) < 5 * math.sqrt(variance(codec, leaf)) / n
    assert (
        abs((error * leaf).sum().item())
        < 5 * math.sqrt(variance(codec, leaf) / n) * leaf.norm().item()
    )


def entropy(values):
    """Bits a symbol of the empirical distribution of rows."""
    shares = np.unique(values, axis=0, return_counts=True)[1] / len(values)
    return -(shares * np.log2(shares)).sum()


@pytest.mark.parametrize("bits", [1.5, 4.0])
def test_lattice_spends_its_bits_and_errs_less_in_more_dimensions(bits):
    leaf = gaussian(200_000)
    codecs = [Lattice(bits=bits, dimension=dimension) for dimension in CELLS]
    spent = [8 * len(encode(codec, leaf)) / 200_000 for codec in codecs]
    variances = [variance(codec, leaf) for codec in codecs]
    assert spent == pytest.approx([bits] * 2, abs=0.05)
    # At equal rates, by the 6 dB a bit that moves a rate: hexagons win 1.5 % at least.
    scaled = [
        variance * 4 ** (rate - bits) for variance, rate in zip(variances, spent, strict=True)
    ]
    assert scaled[1] < scaled[0] / 1.015


def test_streams_cost_what_pairs_would():
    """Coding rows of A2, then columns by the row's parity, is as good as coding points: the joint
    entropy.
    """
    cell, random = CELLS[2], KEY.child("streams").numpy()
    points = cell.nearest(random.normal(size=(200_000, 2)) / 1.5 + cell.uniform(200_000, random))
    rows = points[:, 1]
    streams = [rows, *(points[rows & 1 == odd, 0] for odd in (0, 1))]
    apart = sum(len(values) * entropy(values) for values in streams) / len(points)
    assert apart == pytest.approx(entropy(points), abs=0.001)
    assert apart < 2 * entropy(points.reshape(-1)) - 0.1


def test_lattice_needs_its_key():
    leaf = gaussian(50)
    message = encode(Lattice(bits=4), leaf)
    assert not torch.allclose(decode(Lattice(bits=4), message, (50,), Key(1)), leaf, atol=0.1)


@pytest.mark.parametrize("share", [0.001, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(
    "what", ["(1000,)", "sparse", "ternary", "huge", "(5, 7)", "wide", "single"]
)
def test_ternary_energy_contraction_and_idempotence(what, share):
    leaf = LEAVES[what]
    once = there_and_back(Ternary(share), leaf)
    kept, exact = once != 0, leaf.double()
    count, magnitude = int(kept.sum()), once.abs().max().item()
    assert count == min(math.ceil(share * leaf.numel()), int(leaf.count_nonzero()))
    assert magnitude == pytest.approx(exact[kept].abs().mean().item(), rel=1e-7)
    assert (leaf[kept].abs().min() >= leaf[~kept].abs().max()) if count < leaf.numel() else True
    error, energy = (once.double() - exact).square().sum().item(), exact.square().sum().item()
    assert error == pytest.approx(energy - count * magnitude**2, abs=1e-6 * energy)
    assert variance(Ternary(share), leaf) == pytest.approx(error, rel=1e-9, abs=1e-12 * energy)
    n = leaf.numel()
    contraction = (
        count / n**2 * exact.abs().sum().item() ** 2 / energy
        if count == math.ceil(share * n)
        else 0.0
    )
    assert error <= (1 - contraction) * energy * (1 + 1e-9)
    assert torch.equal(there_and_back(Ternary(share), once), once)


def test_ternary_of_nothing_and_of_ties():
    half = Ternary(0.5)
    assert torch.equal(there_and_back(half, torch.zeros(4, 4)), torch.zeros(4, 4))
    ties = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert there_and_back(half, ties).tolist() == [1.0, -1.0, 0.0, 0.0]
    assert there_and_back(half, torch.tensor(-3.0)).item() == -3.0
    assert there_and_back(Ternary(0.1), gaussian(30)).count_nonzero() == 3
    large = gaussian(1000, 1000)
    once = there_and_back(Ternary(0.37), large)
    assert torch.equal(there_and_back(Ternary(0.37), once), once)


def test_top_entries_against_a_sort():
    leaf = gaussian(17, 23)
    back = there_and_back(TopK(0.1), leaf)
    order = sorted(range(391), key=lambda i: -abs(leaf.view(-1)[i].item()))[: math.ceil(39.1)]
    expected = torch.zeros(391)
    expected[order] = leaf.view(-1)[order]
    assert torch.equal(back.view(-1), expected)
    codec = TopK(0.1, Uniform(4))
    lost = (leaf - back).square().sum().item()
    assert variance(codec, leaf) == pytest.approx(lost + variance(Uniform(4), leaf[back != 0]))
    assert lost <= 0.9 * leaf.square().sum().item()


def test_sparse_leaves_cost_their_positions_and_their_few_values():
    leaf = gaussian(300, 300) * (gaussian(300, 300, name="mask") > 2)
    signs = leaf.sign() * 0.25
    active = int((leaf != 0).sum())
    for tensor in (leaf, signs, gaussian(40).round() / 8, gaussian(300, 300)):
        assert torch.equal(there_and_back(Sparse(), tensor), tensor)
    assert len(encode(Sparse(), leaf)) < 4 * active + 90_000 / 8
    assert (
        8 * len(encode(Sparse(), signs)) < 90_000 * 0.16 + 1.1 * active + 400
    )  # entropy of the mask, a bit a sign
    assert len(encode(Sparse(), signs)) < 1.1 * len(encode(Ternary(1.0), signs)) + 60
    assert not there_and_back(Sparse(), -torch.zeros(3)).signbit().any()
    for distinct in (255, 256, 257):
        many = (torch.arange(5000) % distinct + 1).float()
        assert torch.equal(there_and_back(Sparse(), many), many)
        assert (len(encode(Sparse(), many)) < 8000) == (distinct <= 256)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: Float(8), "kind: expected one of 32, 16"),
        (lambda: Uniform(0), "bits: expected an integer from 1 to 24"),
        (lambda: Uniform(2.5), "bits: expected an integer"),
        (lambda: Probabilistic(0), "levels: expected an integer"),
        (lambda: Qsgd(True), "levels: expected an integer"),
        (lambda: Qsgd(4, bucket=0), "bucket: expected an integer"),
        (lambda: Qsgd(4, norm="l1"), "norm: expected one of 'l2', 'max'"),
        (lambda: Lattice(bits=0.5), r"bits: expected a number in \[1, 20\]"),
        (lambda: Lattice(bits=4, dimension=3), "dimension: expected one of 1, 2"),
        (lambda: Ternary(0.0), "a share above 0"),
        (lambda: TopK(1.1), "a share above 0"),
    ],
)
def test_arguments_out_of_domain(build, text):
    with pytest.raises(ArgumentError, match=text):
        build()
