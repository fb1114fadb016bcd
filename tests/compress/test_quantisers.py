"""Codecs of one leaf: what comes back, how far it may be, what it costs, and what garbage does."""

import math
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.masks.runs import PlainMask
from bayesfed.compress.quantisers.floats import Float, Uniform
from bayesfed.compress.quantisers.lattice import Lattice
from bayesfed.compress.quantisers.probabilistic import FedPaqQuantiser, Probabilistic, Qsgd
from bayesfed.compress.quantisers.sparsify import Kernels, Sparse, Ternary, TopK
from bayesfed.errors import WireError
from tests.compress.quantiser_leaves import (
    KEY,
    LEAVES,
    Words,
    decode,
    encode,
    gaussian,
    there_and_back,
)
from tests.support.codecs.promises import bound, unbiased, variance


@dataclass(frozen=True)
class Apart(Words):
    """Predicts that several short sequences cost less than one long one."""

    def predicted_bits(self, values):
        return float(len(values)) ** 2


CODECS = {
    "float32": Float(32),
    "float32 entropy": Float(32, Cheapest()),
    "float16": Float(16),
    "float16 entropy": Float(16, Cheapest()),
    "uniform 8": Uniform(8),
    "uniform 1": Uniform(1),
    "uniform 16": Uniform(16),
    "probabilistic 1": Probabilistic(1),
    "probabilistic 16": Probabilistic(16),
    "qsgd": Qsgd(4),
    "qsgd buckets": Qsgd(4, bucket=10),
    "qsgd max": Qsgd(65535, norm="max"),
    "fedpaq": FedPaqQuantiser(1),
    "lattice 1": Lattice(bits=3, dimension=1),
    "lattice 2": Lattice(bits=3.1),
    "lattice 2 apart": Lattice(bits=3.1, code=Apart()),
    "lattice fine": Lattice(bits=12),
    "ternary": Ternary(0.2),
    "top": TopK(0.3),
    "top probabilistic": TopK(0.3, Probabilistic(4)),
    "kernels": Kernels(Float(32)),
    "kernels probabilistic": Kernels(Probabilistic(4)),
    "kernels of top": Kernels(TopK(0.5, Float(16))),
    "sparse": Sparse(),
    "sparse qsgd": Sparse(Qsgd(8)),
}


UNBIASED = {
    "probabilistic 1": Probabilistic(1, Words(), PlainMask()),
    "probabilistic 5": Probabilistic(5, Words(), PlainMask()),
    "qsgd": Qsgd(8, code=Words()),
    "qsgd buckets": Qsgd(2, bucket=50, code=Words()),
    "qsgd max": Qsgd(3, norm="max", code=Words()),
    "lattice 1": Lattice(bits=2.6, dimension=1, code=Words()),
    "lattice 2": Lattice(bits=2.6, dimension=2, code=Words()),
    "top, all": TopK(1.0, Qsgd(8, code=Words()), PlainMask()),
    "sparse": Sparse(Lattice(bits=2, code=Words()), PlainMask()),
}


def partly_slow(names, quick):
    """Return the names as parameters, of which some are quick."""
    assert set(quick) <= set(names)
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


def holds(name, leaf):
    """Whether the codec can hold the leaf at all: IEEE half ends at 65504."""
    return (
        name not in {"float16", "float16 entropy", "kernels of top"}
        or not leaf.numel()
        or leaf.abs().max() < 6e4
    )


@pytest.mark.parametrize("what", LEAVES)
@pytest.mark.parametrize("name", CODECS)
def test_every_codec_survives_every_leaf(name, what):
    codec, leaf = CODECS[name], LEAVES[what]
    if not holds(name, leaf):
        with pytest.raises(WireError, match="try Float"):
            encode(codec, leaf)
        return
    before = torch.get_rng_state(), np.random.get_state()[1].tolist(), leaf.detach().clone()
    message = encode(codec, leaf)
    back = decode(codec, message, leaf.shape)
    assert message == encode(codec, leaf)
    assert torch.equal(back, decode(codec, message, leaf.shape))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()
    assert torch.equal(before[2], leaf)
    assert back.shape == leaf.shape
    assert back.dtype is torch.float32
    assert back.is_contiguous()
    assert torch.isfinite(back).all()
    error = (back.double() - leaf.detach().float().double()).abs()
    assert (
        error.max().item() <= bound(codec, leaf)
        if leaf.numel()
        else bound(codec, leaf) == variance(codec, leaf) == 0
    )
    assert error.square().sum().item() <= leaf.numel() * bound(codec, leaf) ** 2 * 1.001
    assert math.isfinite(variance(codec, leaf))
    if not unbiased(codec) and "prob" not in name:
        assert error.square().sum().item() <= variance(codec, leaf) * 1.0001
    back += 1.0  # owns its memory


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e300])
@pytest.mark.parametrize("name", CODECS)
def test_what_is_not_finite_is_refused_with_a_hint(name, bad):
    for shape in [(), (7,), (4, 5), (2, 3, 2, 2)]:
        leaf = torch.ones(shape, dtype=torch.float64)
        leaf.view(-1)[-1] = bad
        with pytest.raises(WireError, match="1 NaN or Inf; try a smaller learning rate"):
            encode(CODECS[name], leaf)
    with pytest.raises(WireError, match="a floating-point leaf"):
        encode(CODECS[name], torch.arange(5))


@pytest.mark.parametrize(
    "name", partly_slow(UNBIASED, ("probabilistic 5", "qsgd buckets", "lattice 2"))
)
def test_the_mean_over_keys_approaches_the_leaf(name):
    """At 64 and 1024 keys the error of the mean is sqrt(variance / keys): a factor of 4."""
    codec, leaf = UNBIASED[name], gaussian(1500)
    leaf[::7] = 0
    assert unbiased(codec)
    total, errors = torch.zeros(1500, dtype=torch.float64), {}
    squared = 0.0
    for i in range(1024):
        back = there_and_back(codec, leaf, KEY.child(i)).double()
        total += back
        squared += (back - leaf).square().sum().item()
        if i + 1 in {64, 1024}:
            errors[i + 1] = (total / (i + 1) - leaf).square().sum().item()
    promised = variance(codec, leaf)
    assert 3.5 < math.sqrt(errors[64] / errors[1024]) < 4.5
    assert errors[1024] == pytest.approx(promised / 1024, rel=0.15)
    assert squared / 1024 == pytest.approx(promised, rel=0.01)


def test_unbiased_codecs_say_so():
    claimed = {name for name, codec in CODECS.items() if unbiased(codec)}
    assert claimed == {
        name
        for name in CODECS
        if name.startswith(("float32", "prob", "qsgd", "fedpaq", "lattice", "sparse", "kernels"))
        and name != "kernels of top"
    }
    assert unbiased(TopK(1.0))
    assert not unbiased(Kernels(Uniform(8)))


@pytest.mark.parametrize("name", CODECS)
def test_garbage_is_refused_or_read_but_never_anything_else(name):
    """Cut, flipped, spliced and invented messages: a finite tensor of the shape, or `WireError`."""
    codec, random = CODECS[name], KEY.child("garbage").numpy()
    refused = 0
    for what in ("(5, 7)", "(2, 3, 4, 4)", "sparse", "ternary", "()", "zeros"):
        leaf = LEAVES[what]
        message = encode(codec, leaf)
        for trial in range(60):
            place = (
                int(random.integers(len(message) + 1))
                if trial % 2
                else int(random.integers(min(24, len(message) + 1)))
            )
            bad = (
                message[:place],
                message[:place] + random.bytes(1) + message[place + 1 :],
                message[:place] + random.bytes(int(random.integers(1, 9))) + message[place:],
                message[:place] + b"\xff" * int(random.integers(1, 12)) + message[place + 4 :],
                random.bytes(int(random.integers(40))),
                message[place:] + message[:place],
            )[trial % 6]
            try:
                back = decode(codec, bad, leaf.shape)
            except WireError:
                refused += 1
                continue
            assert back.shape == leaf.shape
            assert back.dtype is torch.float32
            assert torch.isfinite(back).all()
    assert refused > 60


@pytest.mark.parametrize("name", CODECS)
def test_memory_is_a_small_multiple_of_the_leaf(name):
    codec, leaf, random = CODECS[name], gaussian(250, 400), KEY.child("memory").numpy()
    message = encode(codec, leaf)
    for bad in (
        message,
        message[:100],
        b"\xff" * 100,
        message[:20] + random.bytes(100) + message[120:],
        message[:8] + b"\xff" * 9 + message[8:],
    ):
        tracemalloc.start()
        try:
            decode(codec, bad, leaf.shape)
        except WireError:
            pass
        finally:
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert most < 30 * 4 * leaf.numel()


@pytest.mark.parametrize(
    "name", partly_slow(CODECS, ("float16 entropy", "uniform 8", "qsgd", "lattice 2", "sparse"))
)
def test_a_million_entries(name):
    leaf = gaussian(1000, 1000)
    back = there_and_back(CODECS[name], leaf)
    assert back.shape == leaf.shape
    assert (back.double() - leaf).abs().max().item() <= bound(CODECS[name], leaf)
