"""`Cheapest`: the integer code with the shortest result, named by a tag."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bayesfed.compress.leaf import Integers, Reader, Writer
from bayesfed.compress.lossless.bits import Fixed, damaged
from bayesfed.compress.lossless.golomb import Golomb
from bayesfed.compress.lossless.ranges import Range
from bayesfed.compress.lossless.splits import histogram

# Part of the format: the tag of each code. Tags 3 to 7 were those of codes that are gone.
STANDARD: dict[int, Fixed | Golomb | Range] = {
    0: Fixed(),
    1: Golomb(),
    2: Golomb(signed=True),
    8: Range(),
}


@dataclass(frozen=True)
class Cheapest:
    """The code of `STANDARD` that is predicted to be shortest; of equal ones the first.

    Layout: the tag, one byte; then the output of that code. An empty sequence takes no bytes.
    """

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        if len(values):
            _, tag = _best(values)
            out.byte(tag)
            STANDARD[tag].write(values, out)

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        if not count:
            return np.zeros(0, np.int64)
        tag = source.byte()
        if tag not in STANDARD:
            raise damaged("Cheapest", f"a tag among {[*STANDARD]}", tag)
        return STANDARD[tag].read(source, count)

    def predicted_bits(self, values: Integers) -> float:
        """Return the least of the predictions plus the tag."""
        return 8 + _best(values)[0] if len(values) else 0.0


def _best(values: Integers) -> tuple[float, int]:
    # Counting is most of the work of a prediction, so it is done once for all codes.
    seen = histogram(values)
    return min((code.predicted_bits(*seen), tag) for tag, code in STANDARD.items())
