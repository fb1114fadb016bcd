"""Bombs in sections: small messages whose headers keep to the limit but whose sections promise
much. Each must be refused before it costs anything.

A code that spends no bits on constant values may validly fill the whole limit from a few bytes;
such messages are not among these.
"""

from __future__ import annotations

import struct

import numpy as np
import torch

from bayesfed.compress.codecs import Cast, Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.leaf import IntegerCode, LeafCodec, MaskCode, Writer
from bayesfed.compress.lossless.bits import Fixed
from bayesfed.compress.lossless.cheapest import STANDARD
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.masks.contexts import ContextMask
from bayesfed.compress.masks.runs import PlainMask, RunMask
from bayesfed.compress.posterior import PosteriorGrid
from bayesfed.compress.quantisers.floats import Float, Uniform
from bayesfed.compress.quantisers.lattice import Lattice
from bayesfed.compress.quantisers.probabilistic import Probabilistic, Qsgd
from bayesfed.compress.quantisers.sparsify import Kernels, Sparse, Ternary, TopK
from bayesfed.compress.wire import Leaf, seal
from bayesfed.keys import Key

Part = bytes | int
Parts = dict[str, list[Part]]
_KEY = Key(0, "bombs")


def section_bombs(limit: int = 1 << 20) -> dict[str, tuple[Codec, bytes]]:
    """Return codecs with this limit and messages that they must refuse because of their
    sections.
    """
    count, listed = limit // 8 - 200, dict[str, tuple[Codec, bytes]]()

    def promise(what: str, codec: Codec, dtype: str, *parts: Part) -> None:
        shape = (count // 100, 10, 10) if dtype == "f4" else (count // 100, 100)
        listed[what] = codec, seal([Leaf("a", dtype, shape, _section(*parts))], {})

    for tag, code in STANDARD.items():
        few = _written(code)
        lies: Parts = {
            "64 for many": [few],
            "nothing": [],
            "large counts": [bytes([tag]), b"\xff" * 60],
            "a tail": [few[:4], b"\x80" * 60],
        }
        for what, parts in {**lies, **_hostile_integers(code, count)}.items():
            promise(f"{code}: {what}", Coded(integers=code, limit=limit), "i8", *parts)
    for name, leaf in _LEAVES.items():
        few = _leaf_written(leaf)
        lies = {"64 for many": [few], "nothing": [], "large counts": [b"\xff" * 60]}
        for what, parts in lies.items():
            promise(f"{name}: {what}", Coded(leaf, limit=limit), "f4", *parts)
    for what, mask, parts in _hostile_masks(count):
        promise(f"{type(mask).__name__}: {what}", Coded(masks=mask, limit=limit), "b1", *parts)
    zero, one = bytes(4), struct.pack("<f", 1.0)
    for what, promises in {
        "no sd for one mean": [("mean/a", "i8", (1,), b"\0\0\0"), ("shared/sd", "f4", (0,), b"")],
        "an sd of another shape": [
            ("mean/a", "i8", (2,), b"\0\0\0"),
            ("sd/a", "i8", (3,), b"\0\0\0"),
        ],
        "an sd beyond float32": [
            ("mean/a", "i8", (2,), b"\0\0\0"),
            ("sd/a", "i8", (2,), _section(b"\0\0", (1 << 64) - 2)),
        ],
        "an sd of zero": [("mean/a", "i8", (2,), b"\0\0\0"), ("shared/sd", "f4", (1,), zero)],
        "means that are booleans": [("mean/a", "b1", (2,), b"\0"), ("shared/sd", "f4", (1,), one)],
    }.items():
        listed[f"PosteriorGrid: {what}"] = (
            PosteriorGrid(inner=Coded(Float(32), limit=limit)),
            seal([Leaf(*leaf) for leaf in promises], {}),
        )
    for what, dtype, raw in (
        ("NaN", "f4", struct.pack("<f", float("nan"))),
        ("Inf of float64", "f8", struct.pack("<d", float("inf"))),
        ("Inf", "f2", b"\0\x7c"),
    ):
        listed[f"Cast: {what}"] = Cast(limit=limit), seal([Leaf("a", dtype, (1,), raw)], {})
    return listed


_LEAVES: dict[str, LeafCodec] = {
    "Float(32)": Float(32),
    "Float(16)": Float(16),
    "Float(16, Range())": Float(16, Range()),
    "Uniform(8)": Uniform(8),
    "Probabilistic(4)": Probabilistic(4),
    "Qsgd(4, bucket=1)": Qsgd(4, bucket=1),
    "Lattice(bits=3)": Lattice(bits=3),
    "Ternary(1)": Ternary(1.0, PlainMask()),
    "TopK(0.5)": TopK(0.5),
    "Kernels(Float(32))": Kernels(Float(32)),
    "Sparse()": Sparse(),
}


def _hostile_integers(code: IntegerCode, count: int) -> Parts:
    match code:
        case Fixed():
            return {
                "a width of 64 bits": [b"\x40\0"],
                "a width of 65 bits": [b"\x41\0", bytes(100)],
            }
        case Golomb():
            return {
                "a plane of three bits each": [b"\0", 3 * count],
                "a count without end": [b"\0", b"\xff" * 10_000],
            }
        case Range():
            return {
                "65536 symbols": [b"\0", 1 << 17, b"\0\0", 1 << 16],
                "words without end": [_written(code)[:9], 1 << 60],
            }
        case _:
            return {}


def _hostile_masks(count: int) -> list[tuple[str, MaskCode, list[Part]]]:
    contexts = b"\x04" + b"\0\x80" * 4
    return [
        ("nothing", PlainMask(), []),
        ("half of all places", RunMask(), [count // 100 * 100, b"\0", 3 * count // 2]),
        ("words without end", ContextMask(), [contexts, 1 << 62]),
        ("more words than a mask has bits", ContextMask(), [contexts, 50_000, b"\x55" * 50_000]),
        ("no words", ContextMask(), [contexts[:5]]),
    ]


def _written(code: IntegerCode) -> bytes:
    out = Writer()
    code.write(np.arange(64) % 7, out)
    return out.bytes()


def _leaf_written(codec: LeafCodec) -> bytes:
    out = Writer()
    codec.write(torch.randn(64, 1, 1, generator=_KEY.generator()), _KEY, out)
    return out.bytes()


def _section(*parts: Part) -> bytes:
    out = Writer()
    for part in parts:
        if isinstance(part, int):
            out.varint(part)
        else:
            out.raw(part)
    return out.bytes()
