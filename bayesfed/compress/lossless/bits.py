"""Arrays of bits: packed integers of any widths, unary planes, zigzag; and `Fixed`, the code that
needs nothing else.

Bits run from the most significant of the first byte to the least significant of the last; unused
bits of the last byte are zero. All codes write their unary parts in one plane and their binary
parts in another, rather than symbol by symbol: the length is the same, and writing and reading are
array operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.leaf import Integers, Reader, Writer
from bayesfed.errors import WireError

Unsigned = NDArray[np.uint64]
Number = TypeVar("Number", int, Integers)

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
_BLOCK = 1 << 16  # values at a time, so that temporary arrays fit in the cache
_ONE, _LAST = np.uint64(1), np.uint64(63)


def damaged(where: str, expected: object, actual: object) -> WireError:
    """Return the error of a reader that finds something other than what it expects."""
    return WireError(where, expected, actual, "sending it again")


def whole(bits: int) -> int:
    """Return the number of bits rounded up to whole bytes."""
    return -(-bits // 8) * 8


def varint_bits(value: int) -> int:
    """Return the length in bits of `Writer.varint`."""
    return 8 * max(1, -(-value.bit_length() // 7))


def bit_length(values: Unsigned) -> Integers:
    """Return ``int.bit_length`` of each value."""
    # The bit below the highest is cleared, so that rounding to a float cannot reach the next power
    # of two.
    exponents: Integers = (
        (values & ~(values >> _ONE)).astype(np.float64).view(np.int64) >> 52
    ) - 1022
    return np.maximum(exponents, 0)


def zigzag(values: Number) -> Number:
    """Map 0, -1, 1, -2, ... to 0, 1, 2, 3, ...; for 64-bit integers, in arrays below 2**62."""
    return (values << 1) ^ (values >> 63)


def unzigzag(values: Number) -> Number:
    """Return the inverse of `zigzag`."""
    return (values >> 1) ^ -(values & 1)


def read_signed(source: Reader) -> int:
    """Read one 64-bit integer, the varint of its zigzag."""
    return unzigzag(source.varint((1 << 64) - 1))


def take_bits(source: Reader, count: int) -> bytes:
    """Read the bytes of `count` bits; unused bits of the last byte must be zero."""
    raw = bytes(source.raw(whole(count) // 8))
    if count % 8 and raw[-1] & 0xFF >> count % 8:
        raise damaged("packed bits", "zeros after the last", f"{raw[-1]:#x}")
    return raw


def pack(values: Unsigned, widths: Integers | int, out: Writer) -> None:
    """Append each value with its own number of bits, 0 to 64; a value must fit its width."""
    total = _total(widths, len(values))
    words = np.zeros(total // 64 + 2, np.uint64)
    for block, width, start in _blocks(widths, len(values)):
        # A shift by 64 is undefined: with a width of 0 the value, which is zero, is shifted by 0
        # instead. So too in `unpack`.
        top = values[block] << (64 - width & _LAST)
        word = start >> 6
        offset = (start & 63).astype(np.uint64)
        # Values have at most 64 bits and no gaps, so some value starts in every word from the first
        # to the last.
        first, last = int(word[0]), int(word[-1])
        words[first : last + 1] |= np.bitwise_or.reduceat(
            top >> offset, np.searchsorted(word, np.arange(first, last + 1))
        )
        over = np.flatnonzero(offset + width > 64)
        words[word[over] + 1] |= top[over] << (64 - offset[over])
    out.raw(words.astype(">u8").tobytes()[: whole(total) // 8])


def unpack(source: Reader, widths: Integers | int, count: int) -> Unsigned:
    """Read `count` values of these widths; nothing is allocated before their bytes are present."""
    total = _total(widths, count)
    raw = take_bits(source, total)
    words = np.frombuffer(raw + bytes(-len(raw) % 8 + 16), ">u8").astype(np.uint64)
    values = np.empty(count, np.uint64)
    for block, width, start in _blocks(widths, count):
        word, offset = start >> 6, (start & 63).astype(np.uint64)
        top = words[word] << offset | words[word + 1] >> _ONE >> (_LAST - offset)
        values[block] = np.where(width > 0, top >> (64 - width & _LAST), 0)
    return values


def write_unary(values: Integers, out: Writer) -> None:
    """Append the length of the plane, then each value as that many zeros and a one."""
    stops = np.cumsum(values + 1)
    plane = np.zeros(int(stops[-1]), np.uint8)
    plane[stops - 1] = 1
    out.varint(len(plane))
    out.raw(np.packbits(plane).tobytes())


def read_unary(source: Reader, count: int, most: int) -> Integers:
    """Read `count` >= 1 values from a plane of at most `most` bits."""
    total = source.varint(most)
    plane = np.unpackbits(np.frombuffer(source.raw(whole(total) // 8), np.uint8))
    ones = np.flatnonzero(plane)
    if len(ones) != count or ones[-1] != total - 1:
        raise damaged(
            "unary plane", f"{count} ones, the last in place {total - 1}", f"{len(ones)} ones"
        )
    return np.diff(ones, prepend=-1) - 1


def unary_bits(total: int) -> int:
    """Return the length in bits of `write_unary` for a plane of `total` bits."""
    return varint_bits(total) + whole(total)


@dataclass(frozen=True)
class Fixed:
    """Distances from the least value, each with as many bits as the largest distance needs.

    Layout: the width, one byte; the least value, zigzag varint; the distances, packed.
    """

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        if len(values):
            least, width = _extent(values)
            out.byte(width)
            out.varint(zigzag(least))
            pack((values - np.int64(least)).view(np.uint64), width, out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        if not count:
            return np.zeros(0, np.int64)
        width, least = source.byte(), read_signed(source)
        if width > 64:
            raise damaged("Fixed", "a width of at most 64 bits", width)
        distances = unpack(source, width, count)
        if width and int(distances.max()) + least > HIGHEST:
            raise damaged("Fixed", "values of 64 bits", f"{least} + {distances.max()}")
        distances += np.array(least, np.int64).view(np.uint64)
        return distances.view(np.int64)

    def predicted_bits(self, values: Integers, counts: Integers | None = None) -> float:
        """Return the exact length in bits of a sequence, or of one in which each value occurs
        `counts` times.
        """
        if not len(values):
            return 0.0
        least, width = _extent(values)
        count = len(values) if counts is None else int(counts.sum())
        return float(8 + varint_bits(zigzag(least)) + whole(count * width))


def _extent(values: Integers) -> tuple[int, int]:
    least = int(values.min())
    return least, (int(values.max()) - least).bit_length()


def _total(widths: Integers | int, count: int) -> int:
    return count * widths if isinstance(widths, int) else int(widths.sum())


def _blocks(widths: Integers | int, count: int) -> Iterator[tuple[slice, Unsigned, Integers]]:
    base, every = 0, np.broadcast_to(widths, count)
    for at in range(0, count, _BLOCK):
        block = slice(at, min(at + _BLOCK, count))
        width = every[block]
        stops = base + np.cumsum(width)
        yield block, width.astype(np.uint64), stops - width
        base = int(stops[-1])
