"""Golomb-Rice codes, for integers whose probabilities fall geometrically.

With the parameter k, x >= 0 is coded as the quotient x >> k in unary and its k low bits. k is the
optimum, computed exactly. (S. W. Golomb, "Run-length encodings", 1966; R. F. Rice, 1979.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import Integers
from bayesfed.compress.lossless.bits import (
    HIGHEST,
    damaged,
    once,
    pack,
    read_unary,
    unary_bits,
    unpack,
    whole,
    write_unary,
)
from bayesfed.errors import WireError


@dataclass(frozen=True)
class Golomb:
    """Integers >= 0, best for geometric distributions.

    Layout: k, one byte; the quotients, a unary plane; the remainders, packed.
    """

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        require_counts("Golomb", values)
        if len(values):
            k, _ = _best(values, once(values))
            out.byte(k)
            write_unary(values >> k, out)
            pack((values & (1 << k) - 1).view(np.uint64), k, out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        if not count:
            return np.zeros(0, np.int64)
        k = source.byte()
        if k > 63:
            raise damaged("Golomb", "a parameter of at most 63", k)
        # The best k has quotients that sum to at most twice the count: see `_best`.
        quotients = read_unary(source, count, 3 * count)
        if int(quotients.max()) > HIGHEST >> k:
            raise damaged("Golomb", "values of 64 bits", f"{quotients.max()} << {k}")
        return quotients << k | unpack(source, k, count).view(np.int64)

    def predicted_bits(self, values: Integers) -> float:
        """Return the exact length in bits; infinite if an integer is negative."""
        return self.counted_bits(values, once(values))

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return `predicted_bits` of a sequence in which each symbol occurs `counts` times."""
        if not len(symbols):
            return 0.0
        if symbols.min() < 0:
            return math.inf
        k, total = _best(symbols, counts)
        count = int(counts.sum())
        return float(8 + unary_bits(total + count) + whole(k * count))


def require_counts(where: str, values: Integers) -> None:
    """Raise `WireError` if an integer is negative."""
    if len(values) and values.min() < 0:
        raise WireError(where, "integers >= 0", values.min(), f"Signed({where}())")


def _best(symbols: Integers, counts: Integers) -> tuple[int, int]:
    """Return the best parameter and the sum of its quotients, given how often each number occurs.

    Increasing k by one costs one bit per value and saves D(k), the sum of ceil((x >> k) / 2), which
    falls with k. The best k is therefore the first with D(k) <= n, and its quotients sum to at most
    2 D(k).
    """
    count = int(counts.sum())
    # Below this k the largest value alone saves more than n; from it on no sum overflows.
    k = max(0, int(symbols.max()).bit_length() - count.bit_length() - 1)
    quotients = symbols >> k
    total = int(quotients @ counts)
    while True:
        quotients >>= 1
        half = int(quotients @ counts)
        if total - half <= count:
            return k, total
        k, total = k + 1, half
