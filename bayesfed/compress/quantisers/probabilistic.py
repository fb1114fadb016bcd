"""Random rounding of magnitudes: between the smallest and the largest, AnycostFL's probabilistic
quantisation, or to multiples of a norm, QSGD and FedPAQ's quantiser, which is the same.

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
from typing import Literal

import numpy as np
from torch import Tensor

from bayesfed.compress.leaf import IntegerCode, Integers, Mask, MaskCode, Reader, Writer
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.quantisers.entries import (
    LARGEST,
    SMALLEST,
    Reals,
    Singles,
    as_matrix,
    check_range,
    entries,
    grid_places,
    peak,
    read_positions,
    read_singles,
    round_either_way,
    rounding,
    spread,
    tensor,
    write_positions,
    write_singles,
)
from bayesfed.errors import WireError
from bayesfed.errors.checks import checked_class, whole
from bayesfed.keys import Key

# Role of a number of levels.
MANY = whole(1, "16", 1 << 24)


@checked_class(levels=MANY)
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


@checked_class(levels=MANY, bucket=whole(1, "1024", 1 << 40))
@dataclass(frozen=True)
class Qsgd:
    """Round each ``|x_i|`` at random to a multiple of ``norm / s``, and send sign and level.

    Alistarh et al. 2017, section 3.1, and, under the name `FedPaqQuantiser`, Reisizadeh et al.
    2020, example 1. Unbiased, up to the rounding of the result to float32.

    Parameters
    ----------
    levels
        s, 1 to 2**24.
    bucket
        Number of entries that share a norm, in row order. None: the whole leaf. Each norm costs
        four bytes.
    norm
        ``"l2"`` as in both papers, or ``"max"``, the largest magnitude, which uses more of the
        levels in long buckets: the Euclidean norm grows with the length of a bucket, the entries do
        not.
    code
        Code of the signed levels, ``-s .. s``.

    Raises
    ------
    ArgumentError
        If `levels`, `bucket` or `norm` is out of range.
    WireError
        On encoding a leaf whose norm is outside the range of float32.
    """

    levels: int = 16
    bucket: int | None = None
    norm: Literal["l2", "max"] = "l2"
    code: IntegerCode = Cheapest()

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the norms and, unless all are zero, the signed levels."""
        flat = entries(leaf, "Qsgd")
        norms = self._norms(flat)
        write_singles(norms, out)
        if norms.any():
            places = self._places(flat, self._each(norms, len(flat)))
            level = round_either_way(places, key.child("rounding").numpy())
            self.code.write(np.where(flat < 0, -level, level), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        count = math.prod(shape)
        norms = read_singles(source, len(self._starts(count)), low=0.0)
        if not norms.any():
            return tensor(np.zeros(count), shape)
        signed = check_range(self.code.read(source, count), -self.levels, self.levels)
        return tensor(signed * (self._each(norms, count).astype(np.float64) / self.levels), shape)

    def _starts(self, count: int) -> Integers:
        return np.arange(0, count, self.bucket or max(count, 1))

    def _norms(self, flat: Singles) -> Singles:
        if not len(flat):
            return flat
        starts = self._starts(len(flat))
        norms = np.maximum.reduceat(np.abs(flat), starts).astype(np.float64)
        if self.norm == "l2":
            # Never below the largest entry, however the square root is rounded, so that levels do
            # not exceed s.
            norms = np.maximum(
                norms, np.sqrt(np.add.reduceat(flat.astype(np.float64) ** 2, starts))
            )
        if norms.max() > LARGEST:
            raise WireError(
                "Qsgd", "a norm float32 can hold", f"{norms.max():g}", "norm='max' or a bucket"
            )
        return norms.astype(np.float32)

    def _each(self, norms: Singles, count: int) -> Singles:
        return np.repeat(norms, min(self.bucket or count, count))[:count] if count else norms

    def _places(self, flat: Singles, each: Singles) -> Reals:
        return grid_places(
            np.abs(flat), np.where(each > 0, each, 1.0).astype(np.float64), self.levels
        )


FedPaqQuantiser = Qsgd
"""FedPAQ's low-precision quantiser (Reisizadeh et al. 2020, example 1) is QSGD's: one class, two
names.
"""
