"""Random rounding of magnitudes to multiples of a norm: QSGD, and FedPAQ's quantiser, which is the
same.

For the relation to `Probabilistic` see the table in its module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import IntegerCode, Integers
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.quantisers.entries import (
    LARGEST,
    Reals,
    Singles,
    assembled,
    check_levels,
    check_range,
    entries,
    grid_places,
    parts,
    peak,
    read_singles,
    round_either_way,
    rounding,
    spread,
    tensor,
    write_singles,
)
from bayesfed.errors import ArgumentError, WireError
from bayesfed.keys import Key


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

    def __post_init__(self) -> None:
        check_levels("Qsgd", "levels", self.levels, 1 << 24)
        if self.bucket is not None:
            check_levels("Qsgd", "bucket", self.bucket, 1 << 40)
        if self.norm not in {"l2", "max"}:
            raise ArgumentError(
                "Qsgd", "norm 'l2' or 'max'", repr(self.norm), "Qsgd(16, norm='l2')"
            )

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the norms and, unless all are zero, the signed levels."""
        flat = entries(leaf, "Qsgd")
        norms = self._norms(flat)
        write_singles(norms, out)
        if norms.any():
            random, each = key.child("rounding").numpy(), self._each(norms, len(flat))
            signed = np.empty(len(flat), np.int64)
            for part in parts(len(flat)):
                level = round_either_way(self._places(flat[part], each[part]), random)
                signed[part] = np.where(flat[part] < 0, -level, level)
            self.code.write(signed, out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        count = math.prod(shape)
        norms = read_singles(source, len(self._starts(count)), low=0.0)
        if not norms.any():
            return tensor(np.zeros(count), shape)
        signed, each = (
            check_range(self.code.read(source, count), -self.levels, self.levels),
            self._each(norms, count),
        )
        return assembled(
            lambda part: signed[part] * (each[part].astype(np.float64) / self.levels), count, shape
        )

    def bound(self, leaf: Tensor) -> float:
        """Return the step ``norm / s`` of the bucket with the largest norm, plus the rounding of
        the result to float32.
        """
        largest = peak(self._norms(entries(leaf, "Qsgd")))
        return largest / self.levels + rounding(largest) if largest else 0.0

    def variance(self, leaf: Tensor) -> float:
        """Return the exact value plus the rounding of the result to float32.

        With f the fractional part of ``s |x_i| / norm``, it is the sum of
        ``(norm / s)**2 f (1 - f)``. For a bucket of d entries and the Euclidean norm it is at most
        ``min(d / s**2, sqrt(d) / s) ||x||**2`` (lemma 3.1 of QSGD).
        """
        flat = entries(leaf, "Qsgd")
        norms = self._norms(flat)
        if not norms.any():
            return 0.0
        each = self._each(norms, len(flat))
        steps = each.astype(np.float64) / self.levels
        return (
            float((steps**2 * spread(self._places(flat, each))).sum())
            + len(flat) * rounding(peak(norms)) ** 2
        )

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
