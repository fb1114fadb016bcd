"""Golomb-Rice codes, for integers whose probabilities fall geometrically.

With the parameter k, x >= 0 is coded as the quotient x >> k in unary and its k low bits. k is the
optimum, computed exactly. (S. W. Golomb, "Run-length encodings", 1966; R. F. Rice, 1979.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.leaf import Integers, Reader, Writer
from bayesfed.compress.lossless.bits import (
    HIGHEST,
    damaged,
    pack,
    read_unary,
    unary_bits,
    unpack,
    unzigzag,
    whole,
    write_unary,
    zigzag,
)
from bayesfed.errors import WireError

_LIMIT = 1 << 62


@dataclass(frozen=True)
class Golomb:
    """Integers >= 0, best for geometric distributions.

    Layout: k, one byte; the quotients, a unary plane; the remainders, packed.

    Parameters
    ----------
    signed
        Whether integers of either sign are coded, by zigzag: 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
        Magnitudes of 2**62 and more are refused then.
    """

    signed: bool = False

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        if not len(values):
            return
        if not self._holds(values):
            raise WireError(
                "Golomb",
                "magnitudes below 2**62" if self.signed else "integers >= 0",
                f"{values.min()} to {values.max()}",
                "Range()" if self.signed else "Golomb(signed=True)",
            )
        if self.signed:
            values = zigzag(values)
        k, _ = _best(values, np.ones(len(values), np.int64))
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
        values: Integers = quotients << k | unpack(source, k, count).view(np.int64)
        return unzigzag(values) if self.signed else values

    def predicted_bits(self, values: Integers, counts: Integers | None = None) -> float:
        """Return the exact length in bits of a sequence, or of one in which each value occurs
        `counts` times; infinite if one of them would be refused.
        """
        if not len(values):
            return 0.0
        if not self._holds(values):
            return math.inf
        counts = np.ones(len(values), np.int64) if counts is None else counts
        k, total = _best(zigzag(values) if self.signed else values, counts)
        count = int(counts.sum())
        return float(8 + unary_bits(total + count) + whole(k * count))

    def _holds(self, values: Integers) -> bool:
        low, high = (-_LIMIT, _LIMIT - 1) if self.signed else (0, HIGHEST)
        return bool(low <= values.min() and values.max() <= high)


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
