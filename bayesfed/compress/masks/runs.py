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
            gaps, inverted = _gaps(mask)
            out.varint(2 * len(gaps) + inverted)
            Golomb().write(gaps, out)

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        size = math.prod(shape)
        if not size:
            return np.zeros(shape, np.bool_)
        count, inverted = divmod(source.varint(size // 2 * 2 + 1), 2)
        gaps = Golomb().read(source, count)
        # In floating point, since a sum of 64-bit integers could wrap around.
        if float(gaps.sum(dtype=np.float64)) + count > size:
            raise damaged("places", f"{count} of them below {size}", "one beyond")
        mask = np.full(size, bool(inverted))
        mask[np.cumsum(gaps + 1) - 1] = not inverted
        return mask.reshape(shape)

    def predicted_bits(self, mask: Mask) -> float:
        """Return the exact length in bits, without writing."""
        gaps, inverted = _gaps(mask)
        return varint_bits(2 * len(gaps) + inverted) + Golomb().predicted_bits(gaps)


def require_matrix(mask: Mask) -> None:
    """Raise `WireError` unless the mask is a boolean matrix."""
    if mask.ndim != 2 or mask.dtype != np.bool_:
        raise WireError(
            "mask",
            "a boolean matrix",
            f"{mask.dtype} of shape {mask.shape}",
            "mask.reshape(len(mask), -1)",
        )


def _gaps(mask: Mask) -> tuple[Integers, bool]:
    """Return the gaps between the places of the rarer symbol, and whether that is the zero."""
    inverted = 2 * int(np.count_nonzero(mask)) > mask.size
    return np.diff(np.flatnonzero(~mask if inverted else mask), prepend=-1) - 1, inverted
