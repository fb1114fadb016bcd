"""The laws of codecs, leaf codecs, integer codes and mask codes, run on everything that is shipped;
and that they can fail.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from bayesfed.compress import Cast, Coded, ErrorFeedback, Float, PosteriorGrid, Ternary, Uniform
from bayesfed.compress.lossless.bits import Fixed
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.masks.runs import PlainMask, RunMask
from bayesfed.errors import WireError
from bayesfed.keys import Key
from bayesfed.testing import LawError, check_codec
from tests.support.codecs import promises
from tests.support.codecs.integers_and_masks import check_integer_code, check_mask_code
from tests.support.codecs.leaves import check_leaf_codec
from tests.support.codecs.shipped import INTEGER_CODES, LEAF_CODECS, MASK_CODES, message_codecs

# Composed of others, or of one kind with others.
COSTLY = ("sparse lattice", "lattice 2", "lattice 8", "probabilistic")


@pytest.mark.parametrize(
    "codec",
    [
        pytest.param(codec, id=name, marks=[pytest.mark.slow] * (name in COSTLY))
        for name, codec in LEAF_CODECS.items()
    ],
)
def test_leaf_codecs(codec):
    check_leaf_codec(codec)


@pytest.mark.parametrize("code", INTEGER_CODES.values(), ids=INTEGER_CODES)
def test_integer_codes(code):
    check_integer_code(code, entropy=1.02 if code == Range() else None)


@pytest.mark.parametrize("code", MASK_CODES.values(), ids=MASK_CODES)
def test_mask_codes(code):
    check_mask_code(code, largest=1000 if code in (PlainMask(), RunMask()) else 300)


def posterior_trees():
    generator = Key(0, "posterior").generator()
    mean, sd = torch.randn(6, 7, generator=generator), 0.1 + torch.rand(6, 7, generator=generator)
    support = torch.rand(6, 7, generator=generator) < 0.3
    return {
        "one sd": {"mean/a": mean, "shared/sd": torch.tensor(0.1), "bias": mean[0]},
        "an sd a layer": {
            "mean/a": mean,
            "sd/a": torch.tensor(0.1),
            "mean/b": mean[0],
            "sd/b": torch.tensor([0.2]),
        },
        "an sd a weight": {"mean/a": mean, "sd/a": sd},
        "active entries": {
            "mean/a": mean[support],
            "support/a": support,
            "shared/sd": torch.tensor(0.1),
        },
        "nothing": {
            "mean/a": mean[:0],
            "sd/a": sd[:0],
            "mean/b": mean[:0],
            "shared/sd": torch.tensor(0.1),
        },
    }


@pytest.mark.parametrize("leaf", LEAF_CODECS.values(), ids=LEAF_CODECS)
def test_messages_of_coded_leaves(leaf):
    check_codec(
        Coded(leaf, exceptions={"b.*": Float(32)}),
        bound=lambda name, tree: 0.0 if name == "b.c" else promises.bound(leaf, tree[name]),
        damages=50,
    )


@pytest.mark.parametrize(
    ("codec", "leaf"),
    [
        (Cast(32), Float(32)),
        (Cast(16), Float(16)),
        (ErrorFeedback(Coded(Ternary(0.1))), Ternary(0.1)),
    ],
    ids=["cast 32", "cast 16", "feedback"],
)
def test_messages(codec, leaf):
    check_codec(
        codec, bound=lambda name, tree: promises.bound(leaf, tree[name]), further=posterior_trees()
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [*message_codecs(), "cast 64"])
def test_leaves_come_back_in_their_type(name, dtype):
    """What a receiver adds to its own model has the model's type, whatever codec was asked for."""
    codec, key = (message_codecs() | {"cast 64": Cast(64)})[name], Key(0, "types")
    noise = torch.randn(6, 7, generator=key.generator(), dtype=torch.float64).to(dtype)
    mixed = {"a": noise, "b": noise[0].float(), "mean/a": noise, "sd/a": noise.abs() + 0.125}
    tree = mixed | {"empty": noise[:0], "n": torch.arange(9, dtype=torch.int16)}
    back, meta = codec.decode(codec.encode(tree, {"round": 1}, key), key)
    assert meta == {"round": 1}
    lossless = {"cast 64": 64, "cast 32": 32, "cast 16": 0}.get(name, -1) >= 8 * dtype.itemsize
    for leaf, value in tree.items():
        # IEEE half comes back from `Cast(16)` as float32, as float32 does.
        halved = name == "cast 16" and value.dtype is torch.float16
        assert back[leaf].dtype is (torch.float32 if halved else value.dtype), leaf
        assert back[leaf].shape == value.shape
        assert torch.isfinite(back[leaf]).all()
        if lossless or not value.is_floating_point():
            assert torch.equal(back[leaf], value)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("leaf", LEAF_CODECS.values(), ids=LEAF_CODECS)
def test_bounds_hold_for_leaves_of_any_type(leaf, dtype):
    key = Key(1, "types")
    noise = torch.randn(40, generator=key.generator(), dtype=torch.float64).to(dtype)
    back, _ = Coded(leaf).decode(Coded(leaf).encode({"a": noise}, {}, key), key)
    most = promises.bound(leaf, noise)
    error = float((back["a"].double() - noise.double()).abs().max())
    # What is decoded is rounded to the leaf's own type.
    own = torch.finfo(dtype).eps / 2 * (float(noise.abs().max()) + most)
    assert error <= most + own * (dtype is torch.bfloat16 and most > 0)
    if leaf == Float(32):
        assert (error > 0) == (most > 0) == (dtype is torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_cast_sends_a_leaf_as_it_is_unless_it_is_wider(dtype):
    """A float64 number takes eight bytes under 64 bits, four under 32 and two under 16."""
    leaf, key = torch.zeros(1000, dtype=dtype), Key(0)
    for bits in (64, 32, 16):
        width = min(bits // 8, dtype.itemsize)
        assert 0 < len(Cast(bits).encode({"a": leaf}, {}, key)) - 1000 * width < 120


@pytest.mark.parametrize("nats", [0.001, 0.1])
def test_messages_of_posteriors(nats):
    def bound(name, tree):
        if name == "shared/sd" or name.startswith("sd/"):
            # Half a step of the logarithm, if it is one sd a weight.
            return (
                0.0
                if tree[name].numel() <= 1
                else tree[name].double() * (np.exp((12 * nats) ** 0.5 / 2) - 1) * 1.001
            )
        if not name.startswith("mean/"):
            return promises.bound(Float(16), tree[name])
        sd = tree.get(name.replace("mean/", "sd/"), tree.get("shared/sd")).double()
        wider = np.exp((12 * nats) ** 0.5 / 2) if sd.numel() > 1 else 1.0
        return (
            sd.reshape(()) * (6 * nats) ** 0.5 * 1.00001
            if sd.numel() == 1
            else sd * wider * (6 * nats) ** 0.5 * 1.00001
        )

    check_codec(PosteriorGrid(nats), bound=bound, further=posterior_trees())


@pytest.mark.parametrize("code", [Fixed(), Range()], ids=lambda code: type(code).__name__)
def test_messages_of_integers_and_masks(code):
    check_codec(Coded(Float(32), masks=PlainMask(), integers=code), damages=20)


# Laws that cannot be broken say nothing.


@dataclass(frozen=True)
class Wrong:
    """Float(32) with one thing wrong."""

    what: str

    @property
    def unbiased(self):
        return self.what == "biased"

    def write(self, leaf, key, out):
        if self.what == "takes NaN":
            leaf = leaf.nan_to_num(0.0, 0.0, 0.0)
        if self.what == "draws":
            torch.rand(1)
        Float(32).write(leaf + 0.01 * (self.what in ("biased", "off")), key, out)
        out.raw(b"x" * (self.what == "longer"))

    def read(self, source, shape, key):
        if self.what == "crashes" and len(source) < 4 * int(np.prod(shape)):
            raise ValueError("reshape")
        back = Float(32).read(source, shape, key)
        return back.double() if self.what == "double" else back

    def bound(self, leaf):
        return 0.02 if self.what == "biased" else 0.0

    def variance(self, leaf):
        return leaf.numel() * self.bound(leaf) ** 2


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("off", "above the bound"),
        ("biased", "divide the error of the mean"),
        ("takes NaN", "nan in shape .*accepted"),
        ("draws", "global generator"),
        ("longer", "no more and no less"),
        ("double", "float64"),
        ("crashes", "ValueError in place of WireError"),
    ],
)
def test_the_law_of_leaf_codecs_can_fail(what, words):
    with pytest.raises(LawError, match=words):
        check_leaf_codec(Wrong(what), largest=0)


class Loose(Golomb):
    """Golomb codes that are not what they say."""

    def predicted_bits(self, values):
        return 0.9 * super().predicted_bits(values)


class Unchecked(RunMask):
    """Believes what it reads."""

    def read(self, source, shape):
        try:
            return super().read(source, shape)
        except WireError as problem:
            raise KeyError from problem


def test_the_laws_of_codes_can_fail():
    with pytest.raises(LawError, match="predicted"):
        check_integer_code(Loose(), largest=100)
    with pytest.raises(LawError, match="entropy"):
        check_integer_code(Golomb(), entropy=1.02, largest=100)
    with pytest.raises(LawError, match="KeyError in place of WireError"):
        check_mask_code(Unchecked(), largest=0)
    with pytest.raises(LawError, match="differs by up to"):
        check_codec(Coded(Uniform(4)), bound=lambda name, tree: 1e-3)
