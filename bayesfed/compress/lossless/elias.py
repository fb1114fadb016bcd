"""Elias' universal codes: without parameters, and never much longer than the best code for any
decreasing distribution.

x >= 0 is coded as N = x + 1 of L bits. Gamma writes L in unary and delta writes L in gamma; both
then write the L - 1 bits below the highest. (P. Elias, "Universal codeword sets and representations
of the integers", 1975.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import Integers
from bayesfed.compress.lossless.bits import (
    HIGHEST,
    Unsigned,
    bit_length,
    damaged,
    once,
    pack,
    read_unary,
    unary_bits,
    unpack,
    whole,
    write_unary,
)
from bayesfed.compress.lossless.golomb import require_counts


@dataclass(frozen=True)
class EliasGamma:
    """Integers >= 0 with 2 L - 1 bits each.

    Layout: all L - 1 as a unary plane; the bits below the highest, packed.
    """

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        require_counts("EliasGamma", values)
        if len(values):
            numbers, tails = _split(values)
            write_unary(tails, out)
            pack(_below(numbers, tails), tails, out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        if not count:
            return np.zeros(0, np.int64)
        return _join(source, read_unary(source, count, 64 * count), "EliasGamma")

    def predicted_bits(self, values: Integers) -> float:
        """Return the exact length in bits; infinite if an integer is negative."""
        return self.counted_bits(values, once(values))

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return `predicted_bits` of a sequence in which each symbol occurs `counts` times."""
        if not len(symbols):
            return 0.0
        if symbols.min() < 0:
            return math.inf
        total = int(_split(symbols)[1] @ counts)
        return float(unary_bits(total + int(counts.sum())) + whole(total))


@dataclass(frozen=True)
class EliasDelta:
    """Integers >= 0 with L - 1 bits each plus the gamma code of L; shorter than gamma from 31 on.

    Layout: all L as in `EliasGamma`; the bits of N below the highest, packed.
    """

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        require_counts("EliasDelta", values)
        if len(values):
            numbers, tails = _split(values)
            EliasGamma().write(tails, out)
            pack(_below(numbers, tails), tails, out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        if not count:
            return np.zeros(0, np.int64)
        return _join(source, EliasGamma().read(source, count), "EliasDelta")

    def predicted_bits(self, values: Integers) -> float:
        """Return the exact length in bits; infinite if an integer is negative."""
        return self.counted_bits(values, once(values))

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return `predicted_bits` of a sequence in which each symbol occurs `counts` times."""
        if not len(symbols):
            return 0.0
        if symbols.min() < 0:
            return math.inf
        tails = _split(symbols)[1]
        return EliasGamma().counted_bits(tails, counts) + whole(int(tails @ counts))


def _split(values: Integers) -> tuple[Unsigned, Integers]:
    """Return N and L - 1."""
    numbers = values.view(np.uint64) + np.uint64(1)
    return numbers, bit_length(numbers) - 1


def _below(numbers: Unsigned, tails: Integers) -> Unsigned:
    return numbers ^ np.uint64(1) << tails.view(np.uint64)


def _join(source: Reader, tails: Integers, where: str) -> Integers:
    if int(tails.max()) > 63:
        raise damaged(where, "numbers of at most 64 bits", f"{tails.max() + 1} bits")
    values = unpack(source, tails, len(tails)) + (
        (np.uint64(1) << tails.view(np.uint64)) - np.uint64(1)
    )
    if int(values.max()) > HIGHEST:
        raise damaged(where, "values of 64 bits", values.max())
    return values.view(np.int64)
