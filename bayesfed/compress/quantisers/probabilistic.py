"""Random rounding of magnitudes between the smallest and the largest: AnycostFL's probabilistic
quantisation.

All random quantisers here have the same form: a magnitude between two points of an even grid is
rounded to one of them, with the probability that keeps the mean (`entries.round_either_way`), and
its index and sign are sent as one integer. They differ in the grid:

=================  =================================  =======================  ====================
Name               Source                             Grid of magnitudes       Zeros
=================  =================================  =======================  ====================
`Probabilistic`    AnycostFL (3)(4)                   u_min to u_max, L steps  stay zero, by a mask
`Qsgd`             Alistarh et al. 2017, section 3.1  0 to the norm, s steps   level 0
`FedPaqQuantiser`  Reisizadeh et al. 2020, example 1  the same                 the same
=================  =================================  =======================  ====================

In AnycostFL, (3) numbers the points from 1. An entry at u_min also needs ``Q_0 = u_min``, so there
are L + 1 points here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import IntegerCode, Mask, MaskCode
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.quantisers.entries import (
    LARGEST,
    SMALLEST,
    Reals,
    Singles,
    as_matrix,
    check_levels,
    check_range,
    entries,
    grid_places,
    peak,
    read_positions,
    round_either_way,
    rounding,
    spread,
    tensor,
    write_positions,
)
from bayesfed.compress.quantisers.qsgd import FedPaqQuantiser, Qsgd
from bayesfed.errors import WireError
from bayesfed.keys import Key

__all__ = ["FedPaqQuantiser", "Probabilistic", "Qsgd"]

MOST_LEVELS = 1 << 24


@dataclass(frozen=True)
class Probabilistic:
    """Round magnitudes of the non-zero entries at random to the grid
    ``Q_l = u_min + l (u_max - u_min) / L``, ``l = 0 .. L``.

    AnycostFL (3)(4). Unbiased, up to the rounding of the result to float32. Leaves of zeros and
    leaves with ``u_min = u_max`` are exact.

    Parameters
    ----------
    levels
        L, 1 to 2**24.
    code
        Code of the signed indices ``sgn(u) (l + 1)``.
    mask
        Code of the positions of the non-zero entries. A leaf without zeros sends no positions.

    Raises
    ------
    ArgumentError
        If `levels` is out of range.
    """

    levels: int = 16
    code: IntegerCode = Cheapest()
    mask: MaskCode = CheapestMask()

    def __post_init__(self) -> None:
        check_levels("Probabilistic", "levels", self.levels, MOST_LEVELS)

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append positions, u_min, u_max and the signed indices."""
        flat, active, low, high = self._grid(leaf)
        if not len(flat):
            return
        write_positions(active, as_matrix(tuple(leaf.shape)), self.mask, out)
        if not active.any():
            return
        out.f32(low)
        out.f32(high)
        values = flat[active]
        index = round_either_way(self._places(values, low, high), key.child("rounding").numpy())
        self.code.write(np.where(values < 0, -1 - index, 1 + index), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        dense = np.zeros(math.prod(shape))
        if len(dense) and (active := read_positions(source, as_matrix(shape), self.mask)).any():
            low = source.f32(SMALLEST, LARGEST)
            high = source.f32(low, LARGEST)
            signed = check_range(
                self.code.read(source, int(active.sum())), -1 - self.levels, 1 + self.levels
            )
            if not signed.all():
                raise WireError("section", "signed levels", "a zero", "sending it again")
            dense[active] = np.sign(signed) * (
                low + (np.abs(signed) - 1) * ((high - low) / self.levels)
            )
        return tensor(dense, shape)

    def bound(self, leaf: Tensor) -> float:
        """Return one step, ``(u_max - u_min) / L``, plus the rounding of the result to float32."""
        _, _, low, high = self._grid(leaf)
        return (high - low) / self.levels + rounding(high) if low < high else 0.0

    def variance(self, leaf: Tensor) -> float:
        """Return the exact value, the sum of ``(|u| - Q_l)(Q_{l+1} - |u|)``, plus the rounding of
        the result to float32.
        """
        flat, active, low, high = self._grid(leaf)
        if low == high:
            return 0.0
        exact = ((high - low) / self.levels) ** 2 * float(
            spread(self._places(flat[active], low, high)).sum()
        )
        return exact + len(flat) * rounding(high) ** 2

    def _grid(self, leaf: Tensor) -> tuple[Singles, Mask, float, float]:
        flat = entries(leaf, "Probabilistic")
        active = flat != 0
        if not active.any():
            return flat, active, 0.0, 0.0
        return flat, active, float(np.abs(flat[active]).min()), peak(flat)

    def _places(self, values: Singles, low: float, high: float) -> Reals:
        return grid_places(np.abs(values).astype(np.float64) - low, high - low, self.levels)
