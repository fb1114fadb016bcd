"""The model of `Range`: counts rounded to a few bits, how they are written, and how both sides turn
them into shares of 2**24.
"""

from __future__ import annotations

import math

import numpy as np

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import Integers
from bayesfed.compress.lossless.bits import (
    bit_length,
    damaged,
    pack,
    unpack,
    unzigzag,
    whole,
    zigzag,
)
from bayesfed.compress.lossless.golomb import Golomb

PRECISION = 24


def rounded(counts: Integers) -> tuple[Integers, int]:
    """Return the counts with only those bits below the highest that are worth sending, and the
    number of these bits.
    """
    # Rounding up adds at most half, so the sum stays below 2**24.
    counts = np.maximum(counts >> max(0, int(counts.sum()).bit_length() - PRECISION + 2), 1)
    exponents = _exponents(counts)
    best, least = (counts, 0), math.inf
    for kept in range(min(int(exponents.max()), 10)):
        dropped = np.maximum(exponents - 1 - kept, 0)
        frequencies = counts + (1 << dropped >> 1) >> dropped << dropped
        trial = cross_entropy(counts, frequencies) + float(np.minimum(exponents - 1, kept).sum())
        # Each further bit saves less than the one before.
        if trial >= least:
            break
        best, least = (frequencies, kept), trial
    return best


def cross_entropy(counts: Integers, frequencies: Integers) -> float:
    """Return the length in bits of symbols with these counts under the model of these
    frequencies.
    """
    return float(counts @ (PRECISION - np.log2(weights_of(frequencies))))


def weights_of(frequencies: Integers) -> Integers:
    """Return shares >= 1 that sum to 2**24, in integer arithmetic, so that the reader computes the
    same.
    """
    stops = np.cumsum(frequencies)
    shares: Integers = (stops << PRECISION) // stops[-1]
    return np.diff(shares, prepend=0)


def write_model(frequencies: Integers, kept: int, out: Writer) -> None:
    """Append the number of bits kept below the highest, one byte; the lengths, Golomb of the zigzag
    of differences; the kept bits.
    """
    exponents = _exponents(frequencies)
    widths = np.minimum(exponents - 1, kept)
    out.byte(kept)
    Golomb().write(zigzag(np.diff(exponents, prepend=0)), out)
    pack(((frequencies >> exponents - 1 - widths) ^ (1 << widths)).view(np.uint64), widths, out)


def model_bits(frequencies: Integers, kept: int) -> float:
    """Return the length in bits of `write_model`."""
    exponents = _exponents(frequencies)
    return (
        8
        + Golomb().predicted_bits(zigzag(np.diff(exponents, prepend=0)))
        + whole(int(np.minimum(exponents - 1, kept).sum()))
    )


def read_model(source: Reader, size: int) -> Integers:
    """Read the frequencies of `size` symbols."""
    kept = source.byte()
    exponents = unzigzag(Golomb().read(source, size)).cumsum()
    if kept >= PRECISION or exponents.min() < 1 or exponents.max() > PRECISION:
        raise damaged(
            "Range",
            f"frequencies of 1 to {PRECISION} bits",
            f"{exponents.min()} to {exponents.max()}, {kept} kept",
        )
    widths = np.minimum(exponents - 1, kept)
    frequencies: Integers = (
        unpack(source, widths, size).view(np.int64) | 1 << widths
    ) << exponents - 1 - widths
    if int(frequencies.sum()) > 1 << PRECISION:
        raise damaged(
            "Range", f"frequencies that sum to at most {1 << PRECISION}", frequencies.sum()
        )
    return frequencies


def _exponents(numbers: Integers) -> Integers:
    return bit_length(numbers.view(np.uint64))
