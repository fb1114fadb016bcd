"""`Uniform`: deterministic rounding to an even grid between the smallest and the largest entry."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import IntegerCode
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.quantisers.entries import (
    LARGEST,
    check_levels,
    check_range,
    entries,
    rounding,
    tensor,
)
from bayesfed.keys import Key


@dataclass(frozen=True)
class Uniform:
    """Round each entry to the nearest of ``2**bits`` evenly spaced numbers from the leaf's minimum
    to its maximum.

    Minimum and maximum are sent as float32 and are exact; a leaf of equal entries is exact and
    costs eight bytes. Biased; for random rounding see `Probabilistic` and `Qsgd`.

    Parameters
    ----------
    bits
        Bits of a grid index, 1 to 24.
    code
        Code of the grid indices, ``0`` to ``2**bits - 1``.

    Raises
    ------
    ArgumentError
        If `bits` is out of range.
    """

    bits: int = 8
    code: IntegerCode = Cheapest()

    def __post_init__(self) -> None:
        check_levels("Uniform", "bits", self.bits, 24)

    @property
    def unbiased(self) -> bool:
        """False: an entry is always rounded in the same direction."""
        return False

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append minimum, maximum and, unless they are equal, the indices."""
        flat = entries(leaf, "Uniform")
        if not len(flat):
            return
        low, high = float(flat.min()), float(flat.max())
        out.f32(low)
        out.f32(high)
        if low < high:
            # By rounding, the quotient may exceed the last grid point in its last bit.
            ratios = (flat.astype(np.float64) - low) / ((high - low) / self._top)
            self.code.write(np.minimum(np.rint(ratios), self._top).astype(np.int64), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read minimum, maximum and indices."""
        count = math.prod(shape)
        if not count:
            return tensor(np.empty(0), shape)
        low = source.f32()
        high = source.f32(low, LARGEST)
        if low == high:
            return tensor(np.full(count, low), shape)
        indices = check_range(self.code.read(source, count), 0, self._top)
        return tensor(np.clip(low + indices * ((high - low) / self._top), low, high), shape)

    def bound(self, leaf: Tensor) -> float:
        """Return half the grid step, ``(max - min) / (2**bits - 1) / 2``, plus the rounding of the
        result to float32.
        """
        flat = entries(leaf, "Uniform")
        if not len(flat) or flat.min() == flat.max():
            return 0.0
        low, high = float(flat.min()), float(flat.max())
        return (high - low) / self._top / 2 + rounding(max(-low, high))

    def variance(self, leaf: Tensor) -> float:
        """Return the number of entries times the square of `bound`."""
        return leaf.numel() * self.bound(leaf) ** 2

    @property
    def _top(self) -> int:
        return int(2**self.bits - 1)
