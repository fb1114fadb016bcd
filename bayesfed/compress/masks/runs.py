"""Masks as plain bits and as run lengths.

The place of an entry is its number in row order. Ascending places are written as the gaps between
them in a Golomb-Rice code, which is optimal if entries are independent (S. W. Golomb, "Run-length
encodings", 1966).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.leaf import Integers, Mask, Reader, Writer
from bayesfed.compress.lossless.bits import damaged, take_bits, varint_bits
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.errors import WireError


@dataclass(frozen=True)
class PlainMask:
    """One bit per entry in row order; the last byte is filled with zeros."""

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        require_matrix(mask)
        out.raw(np.packbits(mask).tobytes())

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        size = math.prod(shape)
        raw = np.frombuffer(take_bits(source, size), np.uint8)
        return np.unpackbits(raw, count=size).view(np.bool_).reshape(shape)


@dataclass(frozen=True)
class RunMask:
    """The places of the rarer symbol, as gaps.

    Layout: twice the number of places, plus one if they are places of zeros, varint; the gaps,
    `Golomb`. A mask without entries takes no bytes.
    """

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        require_matrix(mask)
        if mask.size:
            places, inverted = _rarer(mask)
            out.varint(2 * len(places) + inverted)
            write_places(places, out)

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        size = math.prod(shape)
        if not size:
            return np.zeros(shape, np.bool_)
        count, inverted = divmod(source.varint(size // 2 * 2 + 1), 2)
        mask = np.full(size, bool(inverted))
        mask[read_places(source, count, size)] = not inverted
        return mask.reshape(shape)

    def predicted_bits(self, mask: Mask) -> float:
        """Return the exact length in bits, without writing."""
        places, inverted = _rarer(mask)
        return varint_bits(2 * len(places) + inverted) + places_bits(places) if mask.size else 0.0


def require_matrix(mask: Mask) -> None:
    """Raise `WireError` unless the mask is a boolean matrix."""
    if mask.ndim != 2 or mask.dtype != np.bool_:
        raise WireError(
            "mask",
            "a boolean matrix",
            f"{mask.dtype} of shape {mask.shape}",
            "mask.reshape(len(mask), -1)",
        )


def write_places(places: Integers, out: Writer) -> None:
    """Append ascending places; their number is not written."""
    Golomb().write(np.diff(places, prepend=-1) - 1, out)


def read_places(source: Reader, count: int, size: int) -> Integers:
    """Read `count` ascending places, all below `size`."""
    gaps = Golomb().read(source, count)
    # In floating point, since a sum of 64-bit integers could wrap around.
    if float(gaps.sum(dtype=np.float64)) + count > size:
        raise damaged("places", f"{count} of them below {size}", "one beyond")
    return np.cumsum(gaps + 1) - 1


def places_bits(places: Integers) -> float:
    """Return the length in bits of `write_places`."""
    return Golomb().predicted_bits(np.diff(places, prepend=-1) - 1)


def _rarer(mask: Mask) -> tuple[Integers, bool]:
    inverted = 2 * int(np.count_nonzero(mask)) > mask.size
    return np.flatnonzero(~mask if inverted else mask), inverted
