"""Messages of codecs: of one leaf, of trees, of budgets, of posteriors, and of the wire format."""

import json
import struct
from dataclasses import dataclass

import numpy as np
import torch

import bayesfed as bf
from bayesfed.compress import (
    Cast,
    Coded,
    Flexible,
    FlexibleMap,
    Float,
    PosteriorGrid,
    Probabilistic,
    Qsgd,
    Setting,
    fit_flexible,
    pack,
    scatter_active,
    unpack,
)
from bayesfed.compress.described import describe, described
from bayesfed.compress.flexible import LEVELS
from bayesfed.compress.leaf import Reader, Writer
from bayesfed.compress.lossless.bits import Fixed
from bayesfed.compress.masks.runs import PlainMask
from bayesfed.compress.posterior import KINDS
from bayesfed.compress.wire import MAGIC, Leaf, seal, unseal, with_digest
from tests.support.hints.rooms.compress import lossless

# With those of the codes, whose files these share a folder with.
COMPLETE = ("bayesfed/compress",)
KEY, AGAIN, LIMIT = bf.Key(0), "sending it again", "a higher limit if it is honest"
TREE = {"a": torch.linspace(-1, 1, 12).reshape(4, 3)}
FLAT = {"a": torch.ones(100)}
SETTINGS = Setting(0.2, 0.2, 4, 0.5), Setting(0.3, 0.3, 5, 0.4)
SPREAD = "sds as floats, a single one or one for each entry of the mean"


@dataclass(frozen=True)
class Own:
    """A user's own codec."""

    inner: Cast = Cast(16)

    def encode(self, tree, meta, key):
        """Encode."""
        return self.inner.encode(tree, meta, key)

    def decode(self, message, key):
        """Decode."""
        return self.inner.decode(message, key)


def encoded(codec, value, meta=None):
    """Encode a leaf."""
    leaf = torch.tensor(value) if isinstance(value, list) else value
    return codec.encode({"a": leaf}, meta or {}, KEY)


def decoded(codec, *leaves, meta=None):
    """Decode a message of these leaves."""
    return codec.decode(seal(leaves, meta or {}), KEY)


def again(codec, *leaves, tree=None, meta=None):
    """Return the case of a damaged message, which is sent again."""
    return (
        lambda: decoded(codec, *leaves, meta=meta),
        AGAIN,
        lambda: codec.decode(codec.encode(TREE if tree is None else tree, {}, KEY), KEY),
    )


def forged(header, *sections):
    """Return a message with this header and a good digest."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return with_digest(MAGIC + struct.pack("<I", len(text)) + text + b"".join(sections))


def parts(codec, *raw):
    """Return a section of a leaf codec: bytes, float32 numbers, and integers."""
    out = Writer()
    for part in raw:
        if isinstance(part, bytes):
            out.raw(part)
        elif isinstance(part, float):
            out.raw(struct.pack("<f", part))
        else:
            codec.code.write(np.array(part), out)
    return out.bytes()


def bad_leaf(codec, raw):
    """Return the case of a damaged section of a leaf codec, which is sent again."""
    leaf, out = torch.linspace(1, 2, 4), Writer()
    codec.write(leaf, KEY, out)
    return (
        lambda: codec.read(Reader(raw), (4,), KEY),
        AGAIN,
        lambda: codec.read(Reader(out.bytes()), (4,), KEY),
    )


def wrote(codec, leaf):
    """Write a leaf."""
    codec.write(leaf, KEY, Writer())


def grid(mean, spread, **sent):
    """Code a mean on a grid."""
    return PosteriorGrid(**sent).encode({"mean/a": mean, **spread}, {}, KEY)


def ungridded(tree, meta=None):
    """Read grid numbers."""
    codec = PosteriorGrid()
    codec.decode(codec.inner.encode(tree, meta or {}, KEY.child("inner")), KEY)


def off_grid(tree, meta=None):
    """Return the case of damaged grid numbers, which are sent again."""
    return (
        lambda: ungridded(tree, meta),
        AGAIN,
        lambda: PosteriorGrid().decode(grid(torch.ones(2), SHARED), KEY),
    )


SHARED = {"shared/sd": torch.tensor(0.1)}
WHOLE = torch.tensor([3, 4])
HEADER = {"meta": {}, "leaves": [["a", "f4", [1], 4]]}
DOUBLE = torch.full((2,), 1e300, dtype=torch.float64)
MASK = torch.tensor([True, False, True])
CASES = [
    *lossless.CASES,
    # The wire format.
    (
        lambda: seal([], {"x": [1.0]}),
        "a leaf",
        lambda: pack({"x": torch.ones(1)}, {}),
    ),
    (lambda: unpack(pack(FLAT, {}), limit=50), LIMIT, lambda: unpack(pack(FLAT, {}))),
    (lambda: unseal(b"nonsense" * 9), "a message from seal", lambda: unseal(seal([], {}))),
    (lambda: unseal(b""), "a message from seal", lambda: unseal(seal([], {}))),
    (
        lambda: unseal(seal([], {})[:-1] + b"x"),
        AGAIN,
        lambda: unseal(seal([], {})),
    ),
    (
        lambda: unseal(pack({}, {"x": "y" * 70_000}), limit=100_000),
        LIMIT,
        lambda: unseal(pack({}, {"x": "y" * 70_000})),
    ),
    (lambda: unseal(forged(HEADER)), AGAIN, lambda: unseal(forged(HEADER, b"abcd"))),
    (lambda: unpack(pack(FLAT, {}), limit=1000), LIMIT, lambda: unpack(pack(FLAT, {}))),
    (
        lambda: pack({"a": torch.zeros(2, dtype=torch.complex64)}, {}),
        "a cast first",
        lambda: pack({"a": torch.view_as_real(torch.zeros(2, dtype=torch.complex64))}, {}),
    ),
    (
        lambda: unpack(seal([Leaf("a", "f4", (2,), b"abcd")], {})),
        AGAIN,
        lambda: unpack(seal([Leaf("a", "f4", (1,), b"abcd")], {})),
    ),
    (lambda: unseal(forged(b"[")), "a message from seal", lambda: unseal(seal([], {}))),
    # Codecs of trees.
    (
        lambda: encoded(Cast(32), [float("nan")]),
        "a smaller step",
        lambda: encoded(Cast(32), [1.0]),
    ),
    (lambda: encoded(Cast(16), [1e6]), "Cast(64)", lambda: encoded(Cast(64), [1e6])),
    (lambda: encoded(Cast(32), DOUBLE), "Cast(64)", lambda: encoded(Cast(64), DOUBLE)),
    again(Cast(32), Leaf("a", "f4", (1,), struct.pack("<f", float("nan")))),
    (
        lambda: Coded(limit=4000).decode(encoded(Coded(), torch.zeros(1000) > 0), KEY),
        LIMIT,
        lambda: Coded().decode(encoded(Coded(), torch.zeros(1000) > 0), KEY),
    ),
    (lambda: encoded(Coded(), [1e6]), "Float(32)", lambda: encoded(Coded(Float(32)), [1e6])),
    (
        lambda: decoded(Coded(integers=Fixed()), Leaf("a", "i1", (1,), b"\x00\xff\x7f")),
        AGAIN,
        lambda: Coded().decode(encoded(Coded(), [3]), KEY),
    ),
    (
        lambda: describe(Own()),
        "your class in `also` on both sides",
        lambda: described(describe(Own(), [Own]), [Own]),
    ),
    (lambda: describe(Own()), "bayesfed's codecs", lambda: describe(Cast(16))),
    (
        lambda: described(pack({}, {"codec": "nonsense"})),
        "a message from describe",
        lambda: described(describe(Cast(16))),
    ),
    (
        lambda: encoded(Flexible(), [1.0], {LEVELS: 5}),
        "another name",
        lambda: encoded(Flexible(), [1.0], {"mine": 5}),
    ),
    (
        lambda: decoded(Flexible(), meta={LEVELS: 0}),
        "a message of this codec",
        lambda: Flexible().decode(encoded(Flexible(), [1.0]), KEY),
    ),
    (
        lambda: scatter_active(torch.ones(3), MASK),
        "the mask they were gathered with",
        lambda: scatter_active(torch.ones(3)[MASK], MASK),
    ),
    # Budgets.
    (
        lambda: FlexibleMap(()),
        "fit_flexible",
        lambda: fit_flexible([TREE], KEY, shares=(1.0,), levels=(4,)),
    ),
    (
        lambda: FlexibleMap(SETTINGS[::-1]),
        "fit_flexible",
        lambda: fit_flexible([TREE], KEY, shares=(0.2, 1.0), levels=(4,)),
    ),
    (
        lambda levels: FlexibleMap((SETTINGS[0]._replace(levels=levels),)),
        0,
    ),
    (
        lambda: fit_flexible([{"a": torch.zeros(3)}], KEY),
        "an update after a few local steps",
        lambda: fit_flexible([TREE], KEY, shares=(1.0,), levels=(4,)),
    ),
    # Codecs of leaves.
    (
        lambda: wrote(Float(16), WHOLE),
        "Coded, which codes integers and masks losslessly",
        lambda: encoded(Coded(), WHOLE),
    ),
    (
        lambda: wrote(Float(16), torch.tensor([float("nan")])),
        "a smaller learning rate",
        lambda: wrote(Float(16), torch.ones(1)),
    ),
    (
        lambda: wrote(Float(16), torch.tensor([1e6])),
        "Float(32)",
        lambda: wrote(Float(32), torch.tensor([1e6])),
    ),
    bad_leaf(Float(32), struct.pack("<4f", 1.0, 2.0, 3.0, float("inf"))),
    bad_leaf(Probabilistic(), parts(Probabilistic(), b"\x04", 1.0, 2.0, [1, 2, 0, 1])),
    bad_leaf(Probabilistic(), parts(Probabilistic(), b"\x04", 1.0, 2.0, [1, 2, 99, 1])),
    bad_leaf(Qsgd(), parts(Qsgd(), -1.0)),
    bad_leaf(Probabilistic(mask=PlainMask()), b"\x02\xf0"),
    (
        lambda: wrote(Qsgd(), torch.full((9,), 3e38)),
        "norm='max'",
        lambda: wrote(Qsgd(norm="max"), torch.full((9,), 3e38)),
    ),
    (
        lambda: wrote(Qsgd(), torch.full((9,), 3e38)),
        "a bucket",
        lambda: wrote(Qsgd(bucket=1), torch.full((9,), 3e38)),
    ),
    # Posteriors.
    (
        lambda: grid(torch.ones(2), {"shared/sd": torch.tensor(0.0)}),
        "a smaller step",
        lambda: grid(torch.ones(2), SHARED),
    ),
    off_grid({"mean/a": WHOLE, **SHARED}, {KINDS: "f4 f4 f4"}),
    off_grid({"mean/a": WHOLE * 10**8, "shared/sd": torch.tensor(1.0)}, {KINDS: "f2"}),
    (
        lambda: ungridded({"mean/a": WHOLE, "shared/sd": torch.tensor(1)}),
        SPREAD,
        lambda: grid(torch.ones(2), SHARED),
    ),
    off_grid({"mean/a": WHOLE, "shared/sd": torch.tensor(0.0)}),
    (
        lambda: grid(torch.ones(3), {"sd/a": torch.ones(2)}),
        SPREAD,
        lambda: grid(torch.ones(3), {"sd/a": torch.ones(3)}),
    ),
    (
        lambda: grid(torch.ones(3), {}),
        "Coded for models without posterior sd",
        lambda: encoded(Coded(), torch.ones(3)),
    ),
    (
        lambda: grid(torch.ones(3), {"shared/sd": torch.tensor(1e-14)}),
        "a larger nats",
        lambda: grid(torch.ones(3), {"shared/sd": torch.tensor(1e-14)}, nats=1e9),
    ),
    (
        lambda: grid(torch.ones(3) / 0, SHARED),
        "a smaller learning rate",
        lambda: grid(torch.ones(3), SHARED),
    ),
    (
        lambda: ungridded({"mean/a": torch.ones(2), **SHARED}),
        "a message of this codec",
        lambda: PosteriorGrid().decode(grid(torch.ones(2), SHARED), KEY),
    ),
]
