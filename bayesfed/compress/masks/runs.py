"""Masks as plain bits, and as runs: how far from one entry that is set to the next.

An entry's place is its number in row order, and ascending places travel as the gaps between them, Golomb-Rice coded: optimal
for entries set independently of one another (S. W. Golomb, "Run-length encodings", 1966).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import Integers, Mask
from bayesfed.compress.lossless.bits import damaged, varint_bits
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.errors import WireError, complain


@dataclass(frozen=True)
class PlainMask:
    """One bit an entry, in row order, the last byte filled with zeros."""

    def write(self, mask: Mask, out: Writer) -> None:
        """Append it."""
        require_matrix(mask)
        out.raw(np.packbits(mask).tobytes())

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Take a mask of this shape."""
        size = math.prod(shape)
        raw = source.raw(-(-size // 8))
        if size % 8 and raw[-1] & (0xFF >> size % 8):
            raise damaged("PlainMask", "zeros after the last entry", f"{raw[-1]:#x}")
        return np.unpackbits(np.frombuffer(raw, np.uint8), count=size).view(np.bool_).reshape(shape)


@dataclass(frozen=True)
class RunMask:
    """The places of the rarer symbol, as gaps.

    Layout: twice the number of places, and one more if they are those of the zeros, varint; the gaps, `Golomb`. A mask without
    entries is nothing.
    """

    def write(self, mask: Mask, out: Writer) -> None:
        """Append it."""
        require_matrix(mask)
        if mask.size:
            places, inverted = _rarer(mask)
            out.varint(2 * len(places) + inverted)
            write_places(places, out)

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Take a mask of this shape."""
        size = math.prod(shape)
        if not size:
            return np.zeros(shape, np.bool_)
        count, inverted = divmod(source.varint(size // 2 * 2 + 1), 2)
        mask = np.full(size, bool(inverted))
        mask[read_places(source, count, size)] = not inverted
        return mask.reshape(shape)

    def predicted_bits(self, mask: Mask) -> float:
        """Return the exact length without writing."""
        places, inverted = _rarer(mask)
        return varint_bits(2 * len(places) + inverted) + places_bits(places) if mask.size else 0.0


def require_matrix(mask: Mask) -> None:
    """Refuse to write what is not a boolean matrix."""
    if mask.ndim != 2 or mask.dtype != np.bool_:
        raise WireError(
            complain("mask", expected="a boolean matrix", actual=f"{mask.dtype} of shape {mask.shape}", hint="mask.reshape(len(mask), -1)")
        )


def write_places(places: Integers, out: Writer) -> None:
    """Append ascending places; the count is not written."""
    Golomb().write(np.diff(places, prepend=-1) - 1, out)


def read_places(source: Reader, count: int, size: int) -> Integers:
    """Take `count` ascending places, all of them below `size`."""
    gaps = Golomb().read(source, count)
    # In floating point first: a sum of integers of 64 bits could wrap around.
    if float(gaps.sum(dtype=np.float64)) + count > size:
        raise damaged("places", f"{count} of them below {size}", "one beyond")
    return np.cumsum(gaps + 1) - 1


def places_bits(places: Integers) -> float:
    """Return what `write_places` needs."""
    return Golomb().predicted_bits(np.diff(places, prepend=-1) - 1)


def _rarer(mask: Mask) -> tuple[Integers, bool]:
    inverted = 2 * int(np.count_nonzero(mask)) > mask.size
    return np.flatnonzero(~mask if inverted else mask), inverted
