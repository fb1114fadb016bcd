"""Alphabets: the distinct integers of a sequence, how often they occur, and how they are
written.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import Integers
from bayesfed.compress.lossless.bits import (
    HIGHEST,
    damaged,
    read_signed,
    signed_bits,
    varint_bits,
    write_signed,
)
from bayesfed.compress.lossless.golomb import Golomb

MOST_SYMBOLS = 1 << 16


def histogram(values: Integers) -> tuple[Integers, Integers]:
    """Return the integers that occur, in ascending order, and how often each occurs."""
    if not len(values):
        return values, values
    least, span = int(values.min()), int(values.max()) - int(values.min())
    if span > 4 * len(values) + 1024:
        symbols, counts = np.unique(values, return_counts=True)
        return symbols, counts.astype(np.int64)
    dense = np.bincount(values - least)
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
    write_signed(int(symbols[0]), out)
    if not dense:
        Golomb().write(gaps, out)


def alphabet_bits(symbols: Integers) -> float:
    """Return the length in bits of `write_alphabet`."""
    gaps = np.diff(symbols) - 1
    return (
        varint_bits(2 * len(symbols) + 1)
        + signed_bits(int(symbols[0]))
        + (Golomb().predicted_bits(gaps) if gaps.any() else 0)
    )


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


def is_alphabet(symbols: Integers) -> bool:
    """Return whether `write_alphabet` can write these symbols."""
    return len(symbols) <= MOST_SYMBOLS and int(symbols[-1]) - int(symbols[0]) <= HIGHEST
