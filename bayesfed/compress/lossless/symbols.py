"""`Signed`, codes of negative integers, and `Cheapest`, the choice of the shortest code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, cast

import numpy as np

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import IntegerCode, Integers
from bayesfed.compress.lossless.alphabet import histogram
from bayesfed.compress.lossless.bits import Fixed, damaged, unzigzag, zigzag
from bayesfed.compress.lossless.elias import EliasDelta, EliasGamma
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.huffman import Huffman
from bayesfed.compress.lossless.ranges import Range
from bayesfed.errors import ArgumentError, WireError

_LIMIT = 1 << 62


class Counted(IntegerCode, Protocol):
    """A code whose length depends only on how often each integer occurs."""

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return `predicted_bits` of a sequence with this histogram: integers in ascending order,
        and how often each occurs.
        """
        ...


@dataclass(frozen=True)
class Signed:
    """A code of integers >= 0 extended to negative ones by zigzag: 0, -1, 1, -2, ... become 0, 1,
    2, 3, ...

    Parameters
    ----------
    code
        Code of the folded integers. Magnitudes of 2**62 and more are refused.
    """

    code: IntegerCode

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        if _too_large(values):
            actual = f"{values.min()} to {values.max()}"
            raise WireError("Signed", "magnitudes below 2**62", actual, "Fixed() or Range()")
        self.code.write(zigzag(values), out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        return unzigzag(self.code.read(source, count))

    def predicted_bits(self, values: Integers) -> float:
        """Return the prediction of the inner code; infinite if an integer would be refused."""
        return math.inf if _too_large(values) else self.code.predicted_bits(zigzag(values))

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return the prediction of the inner code, which must be `Counted`, for a histogram."""
        if _too_large(symbols):
            return math.inf
        folded = zigzag(symbols)
        order = np.argsort(folded)
        return cast(Counted, self.code).counted_bits(folded[order], counts[order])


# Part of the format: the tag of a code is its position here. Append only.
STANDARD: tuple[Counted, ...] = (
    Fixed(),
    Golomb(),
    Signed(Golomb()),
    EliasGamma(),
    Signed(EliasGamma()),
    EliasDelta(),
    Signed(EliasDelta()),
    Huffman(),
    Range(),
)


@dataclass(frozen=True)
class Cheapest:
    """The code that is predicted to be shortest; of equal ones the first in `codes`.

    Layout: the tag, one byte; then the output of that code. An empty sequence takes no bytes. The
    tags:

    === ====================
    tag code
    === ====================
    0   Fixed()
    1   Golomb()
    2   Signed(Golomb())
    3   EliasGamma()
    4   Signed(EliasGamma())
    5   EliasDelta()
    6   Signed(EliasDelta())
    7   Huffman()
    8   Range()
    === ====================

    Parameters
    ----------
    codes
        Codes to try, all of them in `STANDARD`. A reader accepts every tag of the format.

    Raises
    ------
    ArgumentError
        If there are no codes, or one has no tag.
    """

    codes: tuple[Counted, ...] = STANDARD

    def __post_init__(self) -> None:
        if not self.codes or any(code not in STANDARD for code in self.codes):
            raise ArgumentError("Cheapest", f"codes among {STANDARD}", self.codes, "Cheapest()")

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        if not len(values):
            return
        predicted, code = self._best(values)
        if math.isinf(predicted):
            actual = f"{values.min()} to {values.max()}"
            raise WireError(
                "Cheapest", f"integers that one of {self.codes} can hold", actual, "Cheapest()"
            )
        out.byte(STANDARD.index(code))
        code.write(values, out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        if not count:
            return np.zeros(0, np.int64)
        tag = source.byte()
        if tag >= len(STANDARD):
            raise damaged("Cheapest", f"a tag below {len(STANDARD)}", tag)
        return STANDARD[tag].read(source, count)

    def predicted_bits(self, values: Integers) -> float:
        """Return the least of the predictions plus the tag."""
        return 8 + self._best(values)[0] if len(values) else 0.0

    def _best(self, values: Integers) -> tuple[float, Counted]:
        # Counting is most of the work of a prediction, so it is done once for all codes.
        symbols, counts = histogram(values)
        return min(
            ((code.counted_bits(symbols, counts), code) for code in self.codes),
            key=lambda pair: pair[0],
        )


def _too_large(values: Integers) -> bool:
    return bool(len(values)) and not (values.min() >= -_LIMIT and values.max() < _LIMIT)
