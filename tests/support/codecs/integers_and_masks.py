"""Laws of the lossless codes: integers and masks are unchanged, lengths are as predicted, and
damage is survived.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from bayesfed.compress.leaf import IntegerCode, Integers, Mask, MaskCode, Reader, Writer
from bayesfed.errors import WireError
from bayesfed.keys import Key
from bayesfed.testing.law import law, refuses
from tests.support.codecs.damage import damaged, survives

SHAPES = ((1, 1), (0, 3), (5, 0), (1, 9), (9, 1), (13, 40), (40, 13), (200, 150))


def sequences(key: Key, largest: int) -> dict[str, Integers]:
    """Return sequences to try an integer code on; the last has `largest` integers."""
    random = key.numpy()
    return {
        "empty": np.zeros(0, np.int64),
        "one zero": np.zeros(1, np.int64),
        "one integer": np.array([5]),
        "all equal": np.full(1000, 7),
        "all zero": np.zeros(1000, np.int64),
        "two integers": random.integers(0, 2, 999) * 12345,
        "geometric": random.geometric(0.2, 2000) - 1,
        "bytes": random.integers(0, 256, 30_000),
        "signed": np.rint(random.normal(0, 4, 3000)).astype(np.int64),
        "far off": np.rint(random.normal(1e9, 1000, 2500)).astype(np.int64),
        "heavy tails": np.rint(random.standard_cauchy(3000) * 50).astype(np.int64),
        f"{largest} integers": random.geometric(0.3, largest) - 1,
    }


def check_integer_code(
    code: IntegerCode, *, entropy: float | None = None, largest: int = 1_000_000, damages: int = 200
) -> None:
    """Check that an integer code is lossless, predicts its length within 1 %, refuses what it
    cannot represent and survives damage.

    Parameters
    ----------
    code
        The integer code to check.
    entropy
        Largest cost of a sequence a hundred times as long as its alphabet, in multiples of its
        empirical entropy, plus 64 bytes. None: not checked.
    largest
        Number of integers of the largest sequence.
    damages
        Number of damaged sections, each of which it must refuse or read as the right number of
        integers.

    Raises
    ------
    LawError
        If a law is broken.
    """
    key = Key(0, "integer-law")
    random = key.child("damage").numpy()
    for what, values in sequences(key, largest).items():
        predicted = code.predicted_bits(values)
        if math.isinf(predicted):
            refuses(
                partial(code.write, values, Writer()),
                WireError,
                f"{what}: a length that is not finite is predicted, and writing",
            )
            continue
        out = Writer()
        code.write(values, out)
        raw = out.bytes()
        source = Reader(raw + b"next")
        back = code.read(source, len(values))
        law(
            back.dtype == np.int64 and np.array_equal(back, values),
            f"{what}: other integers came back",
        )
        law(
            bytes(source.raw(len(source))) == b"next",
            f"{what}: a reader takes what the writer wrote, no more and no less",
        )
        law(
            abs(8 * len(raw) - predicted) <= 0.01 * predicted + 64,
            f"{what}: {8 * len(raw)} bits, predicted {predicted:.0f}",
        )
        if entropy is not None and 100 * len(np.unique(values)) <= len(values):
            law(
                8 * len(raw) <= entropy * entropy_bits(values) + 512,
                f"{what}: {8 * len(raw)} bits, entropy {entropy_bits(values):.0f}",
            )
        for _ in range(damages // 10 if len(values) < largest else 0):
            survives(
                partial(code.read, Reader(damaged(raw, random)), len(values)),
                partial(_is_like, values),
                f"{what}, damaged",
            )


def check_mask_code(code: MaskCode, *, largest: int = 1000, damages: int = 200) -> None:
    """Check that a mask code is lossless for all shapes and densities, takes no bytes for empty
    masks, refuses non-masks and survives damage.

    Parameters
    ----------
    code
        The mask code to check.
    largest
        Side of the largest mask; 0 for no large mask.
    damages
        Number of damaged sections, each of which it must refuse or read as a mask of the right
        shape.

    Raises
    ------
    LawError
        If a law is broken.
    """
    key = Key(0, "mask-law")
    random, damage = key.numpy(), key.child("damage").numpy()
    for shape in (*SHAPES, *([(largest, largest)] if largest else [])):
        masks: dict[str, Mask] = {
            f"density {density:g}": random.random(shape) < density
            for density in (0.0, 0.02, 0.5, 1.0)
        }
        masks["blocks"] = np.kron(
            random.random((-(-shape[0] // 5), -(-shape[1] // 5))) < 0.2, np.ones((5, 5), np.bool_)
        )[: shape[0], : shape[1]]
        for density, mask in masks.items():
            what, out = f"{shape}, {density}", Writer()
            code.write(mask, out)
            raw = out.bytes()
            law(bool(mask.size) or not raw, f"{what}: a mask without entries is nothing")
            source = Reader(raw + b"next")
            back = code.read(source, shape)
            law(
                back.dtype == np.bool_ and back.shape == shape and np.array_equal(back, mask),
                f"{what}: another mask came back",
            )
            law(
                bytes(source.raw(len(source))) == b"next",
                f"{what}: a reader takes what the writer wrote, no more and no less",
            )
            turned = Writer()
            code.write(np.asfortranarray(mask), turned)
            law(turned.bytes() == raw, f"{what}: the bytes depend on the order in memory")
            for _ in range(damages // 40 if max(shape) != largest else 0):
                survives(
                    partial(code.read, Reader(damaged(raw, damage)), shape),
                    partial(_is_like, mask),
                    f"{what}, damaged",
                )
    refuses(partial(code.write, np.zeros(3, np.bool_), Writer()), WireError, "a vector")
    refuses(
        partial(code.write, np.zeros((2, 2), np.uint8).view(np.int8), Writer()),
        WireError,
        "a matrix of numbers",
    )


def entropy_bits(values: Integers) -> float:
    """Return the empirical entropy of a sequence, in bits."""
    counts = np.unique(values, return_counts=True)[1]
    return float(counts @ np.log2(max(len(values), 1) / counts))


def _is_like(expected: Integers | Mask, actual: Integers | Mask) -> bool:
    return actual.shape == expected.shape and actual.dtype == expected.dtype
