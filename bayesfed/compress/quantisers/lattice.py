"""Lattice quantisation with subtractive dither: UVeQFed (Shlezinger et al. 2021, section III-A,
steps E1-E4 and D1-D3).

Encoder and decoder draw the same dither from the key, so only lattice points are sent. The error is
uniform over the cell of the lattice and independent of the entries; its variance is known before
anything is sent. Notation:

==============  ==============  ====================================================================
Paper           Here            Meaning
==============  ==============  ====================================================================
L               dimension       entries of a sub-vector; the last one is padded with zeros
zeta ||h||      spacing         scale of the lattice, in units of the entries, sent as float32
z               dither          uniform over the cell
sigma_L^2       Cell.moment     second moment of the cell, here per entry
==============  ==============  ====================================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from bayesfed.compress.leaf import IntegerCode, Integers, Reader, Writer
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.quantisers.cells import CELLS, Cell
from bayesfed.compress.quantisers.entries import (
    LARGEST,
    SMALLEST,
    Singles,
    check_range,
    energy,
    entries,
    parts,
    tensor,
)
from bayesfed.errors.checks import checked_class, number, one_of
from bayesfed.keys import Key

_LARGE = 1 << 14  # number of coordinates from which the heads of several streams are negligible


@checked_class(bits=number("[1, 20]", "Lattice(bits=4)"), dimension=one_of((1, 2), "dimension=2"))
@dataclass(frozen=True)
class Lattice:
    """Add a dither to sub-vectors, quantise them to the nearest lattice point, and subtract the
    dither after decoding.

    Unbiased, up to the rounding of the result to float32. The lattice is infinite, so nothing
    overloads. A leaf of zeros is exact.

    Parameters
    ----------
    bits
        Bits per entry, from 1 to 20, of an ideal code of independent symbols for Gaussian entries.
        The step s solves ``2**(2 bits) = 2 pi e (1 + 2 G s**2) / s**2``, with G
        the normalised second moment of the cell: an upper bound on the entropy of entry plus dither
        in cells of side s. Leaves with other distributions cost more or less.
    dimension
        1 (integers) or 2 (hexagonal, G smaller by 3.8 %).
    code
        Code of the integer coordinates of the points: of the hexagonal lattice three sequences, or
        in a small leaf a single one if that is predicted to be shorter.

    Raises
    ------
    ArgumentError
        If `bits` or `dimension` is out of range.
    WireError
        On encoding a leaf with entries so large that the spacing is outside the range of float32.
    """

    bits: float
    dimension: int = 2
    code: IntegerCode = Cheapest()

    @property
    def relative_step(self) -> float:
        """Side of the cube with the volume of the cell, in units of the leaf's root mean square. At
        equal steps all dimensions cost about the same, and the error falls with the dimension.
        """
        spread = 2 * math.pi * math.e
        return math.sqrt(
            spread / (4.0**self.bits - 2 * spread * self._cell.moment / self._cell.side**2)
        )

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the spacing and, unless it is zero, the points."""
        flat = entries(leaf, "Lattice")
        if not len(flat):
            return
        spacing = self._spacing(flat)
        out.f32(spacing)
        if spacing:
            random = key.child("dither").numpy()
            points = np.pad(flat, (0, -len(flat) % self.dimension)).reshape(-1, self.dimension)
            coordinates = self._empty(len(points))
            for part in parts(len(points)):
                moved = np.divide(points[part], spacing, order="F", dtype=np.float64)
                coordinates[part] = self._cell.nearest(
                    moved + self._cell.uniform(len(moved), random)
                )
            self._write_points(coordinates, out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the points and subtract the dither."""
        count = math.prod(shape)
        spacing = source.f32(0.0, LARGEST) if count else 0.0
        if not spacing:
            return tensor(np.zeros(count), shape)
        # An entry is at most sqrt(n) root mean squares; coordinates are at most twice that in
        # spacings, plus a few.
        most = math.ceil(2 * math.sqrt(count) / self.relative_step * self._cell.side) + 8
        coordinates = self._read_points(source, -(-count // self.dimension))
        check_range(coordinates, -most, most)
        random, points = key.child("dither").numpy(), np.empty(coordinates.shape, np.float32)
        for part in parts(len(points)):
            integers = coordinates[part]
            moved = self._cell.points(integers) - self._cell.uniform(len(integers), random)
            points[part] = np.clip(moved * spacing, -LARGEST, LARGEST)
        return tensor(points.reshape(-1)[:count], shape)

    def _write_points(self, coordinates: Integers, out: Writer) -> None:
        streams = list[Integers]()
        if self.dimension == 2:
            # Odd rows are shifted by a half, so that the columns depend on the parity of the row.
            columns, rows = coordinates.T
            odd = (rows & 1).astype(bool)
            streams = [rows, *(np.compress(chosen, columns) for chosen in (~odd, odd))]
        # In a small leaf the heads of several streams can cost more than the streams save.
        if coordinates.size < _LARGE or not streams:
            whole = [coordinates.reshape(-1)]
            if not streams or self._bits(streams) >= self._bits(whole):
                streams = whole
        out.byte(len(streams) > 1)
        for values in streams:
            self.code.write(values, out)

    def _read_points(self, source: Reader, count: int) -> Integers:
        coordinates = self._empty(count)
        if source.varint(self.dimension - 1):
            rows = coordinates[:, 1] = self.code.read(source, len(coordinates))
            for odd in (0, 1):
                places = np.flatnonzero(rows & 1 == odd)
                coordinates[places, 0] = self.code.read(source, len(places))
        else:
            flat = self.code.read(source, coordinates.size)
            coordinates[:] = flat.reshape(coordinates.shape)
        return coordinates

    def _bits(self, streams: list[Integers]) -> float:
        return sum(self.code.predicted_bits(values) for values in streams)

    @property
    def _cell(self) -> Cell:
        return CELLS[self.dimension]

    def _empty(self, count: int) -> Integers:
        # Column-major, since the streams take columns of coordinates.
        return np.zeros((count, self.dimension), np.int64, order="F")

    def _spacing(self, flat: Singles) -> float:
        size = math.sqrt(energy(flat) / max(len(flat), 1))
        # Rounded to float32, as the decoder reads it. The writer refuses larger numbers; smaller
        # ones become the smallest spacing.
        wanted = size * self.relative_step / self._cell.side
        return max(float(np.float32(wanted)), SMALLEST) if 0 < wanted <= LARGEST else wanted
