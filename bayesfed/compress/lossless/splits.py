"""Alphabets: the distinct integers of a sequence, how often they occur, and how they are written;
splits of integers into tokens and low bits, by which `Range` reduces any span to a small alphabet,
like JPEG XL's hybrid integers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.leaf import Integers, Reader, Writer
from bayesfed.compress.lossless.bits import (
    HIGHEST,
    Unsigned,
    bit_length,
    damaged,
    read_signed,
    unpack,
    zigzag,
)
from bayesfed.compress.lossless.golomb import Golomb

MOST_SYMBOLS = 1 << 16


def histogram(values: Integers, counts: Integers | None = None) -> tuple[Integers, Integers]:
    """Return the integers that occur, in ascending order, and how often each occurs; each of the
    values is met `counts` times, or once.
    """
    if not len(values):
        return values, values
    least, span = int(values.min()), int(values.max()) - int(values.min())
    if span > 4 * len(values) + 1024:
        symbols, ranks = np.unique(values, return_inverse=True)
        return symbols, np.bincount(ranks, counts).astype(np.int64)
    dense = np.bincount(values - least, counts)
    places = np.flatnonzero(dense)
    return places + least, dense[places].astype(np.int64)


def rank(values: Integers, symbols: Integers) -> NDArray[np.int32]:
    """Return the position of each value among the ascending symbols."""
    least, span = symbols[0], int(symbols[-1]) - int(symbols[0])
    if span > 4 * len(values) + 1024:
        return np.searchsorted(symbols, values).astype(np.int32)
    places = np.zeros(span + 1, np.int32)
    places[symbols - least] = np.arange(len(symbols))
    ranks: NDArray[np.int32] = places[values - least]
    return ranks


def write_alphabet(symbols: Integers, out: Writer) -> None:
    """Append ascending integers: twice their number, plus 1 if they are consecutive, varint; the
    least; else the gaps by Golomb.
    """
    gaps = np.diff(symbols) - 1
    dense = not gaps.any()
    out.varint(2 * len(symbols) + dense)
    out.varint(zigzag(int(symbols[0])))
    if not dense:
        Golomb().write(gaps, out)


def read_alphabet(source: Reader, count: int) -> Integers:
    """Read ascending integers, at most `count`, the number of values in the sequence."""
    size, dense = divmod(source.varint(2 * min(count, MOST_SYMBOLS) + 1), 2)
    least = read_signed(source)
    gaps = (
        np.zeros(max(size - 1, 0), np.int64) if dense else Golomb().read(source, max(size - 1, 0))
    )
    if not size or least + sum(gaps.tolist()) + len(gaps) > HIGHEST:
        raise damaged("alphabet", "at least one integer, and of 64 bits", f"{size} from {least}")
    return np.concatenate([[0], np.cumsum(gaps + 1)]) + least


_LEADING = (0, 1, 2, 3, 4, 6, 8)
_MOST_TRIED = 1 << 14  # distinct integers that the choice is based on
_SMALL_TABLE = 128.0  # bits


@dataclass(frozen=True)
class Split:
    """A split of integers: tokens hold the sign, the position and the m + 1 leading bits of the
    distance from the centre, modulo 2**64.

    Parameters
    ----------
    leading
        m.
    centre
        The integer that distances are measured from.
    """

    leading: int
    centre: int

    def tokens(self, values: Integers) -> Integers:
        """Return the tokens: the distance itself below 2**(m + 1), then 2**m tokens for every
        further bit.
        """
        distance, below = self._distance(values)
        shift = np.maximum(bit_length(distance) - 1 - self.leading, 0)
        token = (distance >> shift.view(np.uint64)).view(np.int64) + (shift << self.leading)
        return np.where(below, -token, token)

    def widths(self, tokens: Integers) -> Integers:
        """Return the number of low bits that each token leaves out."""
        further: Integers = np.abs(tokens) >> self.leading
        return np.maximum(further - 1, 0)

    def low(self, values: Integers, tokens: Integers) -> Unsigned:
        """Return the low bits that the tokens leave out."""
        return self._distance(values)[0] & (
            np.uint64(1) << self.widths(tokens).view(np.uint64)
        ) - np.uint64(1)

    def join(self, source: Reader, tokens: Integers) -> Integers:
        """Read the low bits and return the values."""
        widths = self.widths(tokens)
        if int(widths.max()) > 63 - self.leading:
            raise damaged(
                "Range", "distances of 64 bits", f"tokens {tokens.min()} to {tokens.max()}"
            )
        high = (np.abs(tokens) - (widths << self.leading)).view(np.uint64) << widths.view(np.uint64)
        distance = high | unpack(source, widths, len(tokens))
        offset: Integers = np.where(tokens < 0, -distance, distance).view(np.int64)
        return offset + np.int64(self.centre)

    def _distance(self, values: Integers) -> tuple[Unsigned, NDArray[np.bool_]]:
        offset = values - np.int64(self.centre)
        return np.abs(offset).view(np.uint64), offset < 0


def choose_split(symbols: Integers, counts: Integers) -> Split | None:
    """Return the split with about the shortest code for a sequence with this histogram; None for
    the integers themselves.
    """
    best, length = None, math.inf
    span = int(symbols[-1]) - int(symbols[0])
    if len(symbols) <= MOST_SYMBOLS and span <= HIGHEST:
        table, length = _table(symbols, counts), _entropy(counts)
        # A split saves less than the table takes, so with a small table the search is not worth it.
        if table < max(_SMALL_TABLE, length / 1000):
            return None
        length += table
    centres = {int(symbols[0]), int(symbols[np.searchsorted(counts.cumsum(), counts.sum() // 2)])}
    step = -(-len(symbols) // _MOST_TRIED)
    few, often = symbols[::step], counts[::step]
    # With more leading bits no low bits would be left, and tokens would be the integers themselves.
    for split in (
        Split(leading, centre)
        for centre in sorted(centres)
        for leading in _LEADING
        if 2 << leading <= span
    ):
        tokens = split.tokens(few)
        kinds, numbers = histogram(tokens, often)
        trial = step * (float(split.widths(tokens) @ often) + _entropy(numbers)) + _table(
            kinds, numbers
        )
        if trial < length:
            best, length = split, trial
    return best


def _entropy(counts: Integers) -> float:
    """Return the empirical entropy of the sequence, in bits."""
    return float(counts @ np.log2(counts.sum() / counts))


def _table(symbols: Integers, counts: Integers) -> float:
    """Return about how many bits the alphabet and the model take."""
    gaps, differences = np.diff(symbols) - 1, zigzag(np.diff(bit_length(counts.view(np.uint64))))
    return Golomb().predicted_bits(gaps) + Golomb().predicted_bits(differences) + 3 * len(symbols)


def write_split(split: Split | None, out: Writer) -> None:
    """Append a split: 0 for None, else 1 + m and the centre, the varint of its zigzag."""
    out.byte(0 if split is None else 1 + split.leading)
    if split is not None:
        out.varint(zigzag(split.centre))


def read_split(source: Reader) -> Split | None:
    """Read a split."""
    head = source.byte()
    if head > 1 + max(_LEADING):
        raise damaged("Range", f"at most {max(_LEADING)} leading bits", head - 1)
    return Split(head - 1, read_signed(source)) if head else None
