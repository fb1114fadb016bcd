"""Negative integers, and the cheapest of all codes."""

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
from bayesfed.errors import ArgumentError, WireError, complain

_LIMIT = 1 << 62


class Counted(IntegerCode, Protocol):
    """A code whose length depends on how often each integer occurs and on nothing else."""

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return `predicted_bits` of a sequence with this histogram: rising integers, and how often each occurs."""
        ...


@dataclass(frozen=True)
class Signed:
    """A code for integers >= 0, extended to negative ones by zigzag: 0, -1, 1, -2, ... become 0, 1, 2, 3, ...

    Parameters
    ----------
    code
        Takes the folded integers. Magnitudes of 2**62 and more are refused.
    """

    code: IntegerCode

    def write(self, values: Integers, out: Writer) -> None:
        """Append them; the count is not written."""
        if _too_large(values):
            actual = f"{values.min()} to {values.max()}"
            raise WireError(complain("Signed", expected="magnitudes below 2**62", actual=actual, hint="Fixed() or Range()"))
        self.code.write(zigzag(values), out)

    def read(self, source: Reader, count: int) -> Integers:
        """Take `count` of them."""
        return unzigzag(self.code.read(source, count))

    def predicted_bits(self, values: Integers) -> float:
        """Return the code's prediction; infinite for an integer that is refused."""
        return math.inf if _too_large(values) else self.code.predicted_bits(zigzag(values))

    def counted_bits(self, symbols: Integers, counts: Integers) -> float:
        """Return the code's prediction for a histogram; the code must be `Counted`."""
        if _too_large(symbols):
            return math.inf
        folded = zigzag(symbols)
        order = np.argsort(folded)
        return cast(Counted, self.code).counted_bits(folded[order], counts[order])


# The format: a code's tag is its place here. Append only.
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
    """Whichever code is predicted to be shortest; of equals, the first of `codes`.

    Layout: the tag, one byte; what that code writes. Nothing for an empty sequence. The tags:

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
        Those that are tried, all of them in `STANDARD`. A reader takes any tag of the format. ``Range()`` is passed over where its
        package is not installed.

    Raises
    ------
    ArgumentError
        If there is no code, or one without a tag.
    """

    codes: tuple[Counted, ...] = STANDARD

    def __post_init__(self) -> None:
        if not self.codes or any(code not in STANDARD for code in self.codes):
            raise ArgumentError(complain("Cheapest", expected=f"codes among {STANDARD}", actual=self.codes, hint="Cheapest()"))

    def write(self, values: Integers, out: Writer) -> None:
        """Append them; the count is not written."""
        if not len(values):
            return
        predicted, code = self._best(values)
        if math.isinf(predicted):
            actual = f"{values.min()} to {values.max()}"
            raise WireError(complain("Cheapest", expected=f"integers that one of {self.codes} can hold", actual=actual, hint="Cheapest()"))
        out.byte(STANDARD.index(code))
        code.write(values, out)

    def read(self, source: Reader, count: int) -> Integers:
        """Take `count` of them."""
        if not count:
            return np.zeros(0, np.int64)
        tag = source.byte()
        if tag >= len(STANDARD):
            raise damaged("Cheapest", f"a tag below {len(STANDARD)}", tag)
        return STANDARD[tag].read(source, count)

    def predicted_bits(self, values: Integers) -> float:
        """Return the least of the predictions, and the tag."""
        return 8 + self._best(values)[0] if len(values) else 0.0

    def _best(self, values: Integers) -> tuple[float, Counted]:
        # Counting is most of the work of a prediction: it is done once for all of them.
        symbols, counts = histogram(values)
        return min(((code.counted_bits(symbols, counts), code) for code in self.codes), key=lambda pair: pair[0])


def _too_large(values: Integers) -> bool:
    return bool(len(values)) and not (values.min() >= -_LIMIT and values.max() < _LIMIT)
