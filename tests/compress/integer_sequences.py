"""Sequences of integers that tests of lossless codes write and read."""

import numpy as np
import pytest

from bayesfed.compress.leaf import Writer
from bayesfed.compress.lossless.bits import Fixed
from bayesfed.compress.lossless.cheapest import STANDARD, Cheapest
from bayesfed.compress.lossless.ranges import Range

CODES = (*STANDARD.values(), Cheapest())


WIDE = (Fixed(), Range(), Cheapest())


LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1


def name(code):
    return getattr(code, "__name__", str(code)).replace("()", "").replace("signed=False", "")[:28]


def every(codes):
    return pytest.mark.parametrize("code", codes, ids=name)


def written(code, values):
    out = Writer()
    code.write(values, out)
    return out.bytes()


def sequences():
    draw = np.random.default_rng(7)
    tails = np.rint(draw.standard_cauchy(3000) * 50).astype(np.int64)
    tails[:4] = (1 << 40, -(1 << 40), (1 << 40) - 1, 0)
    return {
        "empty": np.zeros(0, np.int64),
        "zero": np.zeros(1, np.int64),
        "one": np.array([5]),
        "large": np.array([1 << 61]),
        "edge of a byte": np.array([-64]),
        "equal": np.full(1000, 7),
        "two values": draw.integers(0, 2, 999) * 12345,
        "two of two": np.array([3, 9]),
        "geometric": draw.geometric(0.2, 2000) - 1,
        "slow geometric": draw.geometric(0.0005, 2000) - 1,
        "bytes": draw.integers(0, 256, 5000),
        "signed": np.rint(draw.normal(0, 4, 5000)).astype(np.int64),
        "far off": np.rint(draw.normal(1e9, 1000, 2500)).astype(np.int64),
        "powers": np.concatenate([1 << np.arange(62), (1 << np.arange(62)) - 1]),
        "few and far": draw.choice(draw.integers(-(1 << 60), 1 << 60, 9), 1000),
        "heavy tails": tails,
        "nearly equal": (np.arange(100000) == 777).astype(np.int64),
        "long": np.rint(draw.normal(0, 3, 70001)).astype(np.int64),
    }


SEQUENCES = sequences()


def as_varint(value):
    out = Writer()
    out.varint(value)
    return out.bytes()
