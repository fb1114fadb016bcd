"""Three lattices for vector quantisation: the integers, the hexagonal A2, and E8; nearest points
after Conway and Sloane 1982.

Each lattice has its own spacing (A2: shortest vectors of length 1; E8: of length sqrt(2)). The
integer coordinates of a point are chosen so that each varies as much as the entry it represents:
coordinates along a basis would depend on each other, and coding them one by one would cost more
than a better cell gains. The remaining dependence (odd rows of A2 are shifted by a half, and so are
half the points of E8) is removed by splitting coordinates into streams. In a tie either nearest
point may be returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from bayesfed.compress.leaf import Integers
from bayesfed.compress.quantisers.entries import Reals

Visitor = Callable[[Integers], Integers]


@dataclass(frozen=True)
class Cell:
    """A lattice in `dimension` dimensions, described by its Voronoi cell.

    Attributes
    ----------
    dimension
        L, the number of entries of a sub-vector.
    box
        Sides of a box that is a fundamental region (the diagonal of a triangular generator matrix);
        their product is the volume of the cell.
    moment
        Mean squared distance from the centre over the cell, per dimension, in units of the spacing
        squared.
    nearest
        Integer coordinates ``(m, L)`` of the lattice points nearest to points ``(m, L)``.
    points
        Lattice points ``(m, L)`` of integer coordinates.
    streams
        Pass coordinates to a visitor, one stream of identically distributed, independent integers
        at a time, and replace them by what the visitor returns. A visitor that writes and one that
        reads thus take the same path.
    """

    dimension: int
    box: tuple[float, ...]
    moment: float
    nearest: Callable[[Reals], Integers]
    points: Callable[[Integers], Reals]
    streams: Callable[[Integers, Visitor], None]

    @property
    def side(self) -> float:
        """Side of the cube with the volume of the cell."""
        return math.prod(self.box) ** (1 / self.dimension)

    def uniform(self, count: int, random: np.random.Generator) -> Reals:
        """Draw points uniformly from the cell around 0: uniform points in the box minus their
        nearest lattice points.
        """
        drawn = random.random((count, self.dimension)) * self.box
        return drawn - self.points(self.nearest(drawn))


_ROOT3 = math.sqrt(3)


def _nearest_integers(points: Reals) -> Integers:
    return np.rint(points).astype(np.int64)


def _nearest_hexagonal(points: Reals) -> Integers:
    # A2 is the rectangular lattice of sides 1 and sqrt(3), together with its copy shifted to the
    # centres of its cells. Rows: twice y / sqrt(3).
    x, y = points[:, 0], points[:, 1] / _ROOT3
    column, row = np.rint(x), np.rint(y)
    right, up = x - column, y - row
    # The distances to the shifted lattice are 1/2 - |right| and 1/2 - |up|; in the comparison of
    # squared distances the squares cancel.
    moved = np.abs(right) + 3 * np.abs(up) > 1
    coordinates = np.empty(points.shape, np.int64)
    coordinates[:, 0] = column - (moved & (right < 0))
    coordinates[:, 1] = 2 * row + np.copysign(moved, up)
    return coordinates


def _hexagonal(coordinates: Integers) -> Reals:
    column, row = coordinates[:, 0], coordinates[:, 1]
    return np.stack([column + (row & 1) / 2, row * (_ROOT3 / 2)], axis=1)


def _hexagonal_streams(coordinates: Integers, visit: Visitor) -> None:
    coordinates[:, 1] = visit(coordinates[:, 1])
    for shifted in (0, 1):
        rows = np.flatnonzero(coordinates[:, 1] & 1 == shifted)
        coordinates[rows, 0] = visit(coordinates[rows, 0])


def _nearest_even(points: Reals) -> Integers:
    # D8, integers with an even sum: if the sum is odd, the entry furthest from its integer is
    # rounded the other way.
    nearest = np.rint(points)
    rest = points - nearest
    wrong = np.flatnonzero(nearest.sum(axis=1) % 2)
    worst = np.abs(rest[wrong]).argmax(axis=1)
    nearest[wrong, worst] += np.where(rest[wrong, worst] < 0, -1, 1)
    return nearest.astype(np.int64)


def _nearest_e8(points: Reals) -> Integers:
    # E8 is D8 together with D8 shifted by a half in every coordinate.
    even, odd = _nearest_even(points), _nearest_even(points - 0.5)
    moved = ((points - even) ** 2).sum(axis=1) > ((points - odd - 0.5) ** 2).sum(axis=1)
    coordinates = np.where(moved[:, None], odd, even)
    # The parity of the last integer follows from the sum of the others; its bit says instead
    # whether the point is a shifted one.
    coordinates[:, 7] = (coordinates[:, 7] >> 1 << 1) + moved
    return coordinates


def _e8(coordinates: Integers) -> Reals:
    moved = coordinates[:, 7:] & 1
    whole = coordinates - np.pad(moved, ((0, 0), (7, 0)))
    whole[:, 7] += whole[:, :7].sum(axis=1) & 1
    return whole + moved / 2


def _e8_streams(coordinates: Integers, visit: Visitor) -> None:
    moved, last = visit(coordinates[:, 7] & 1), coordinates[:, 7] >> 1
    for half in (0, 1):
        rows = np.flatnonzero(moved == half)
        coordinates[rows, :7] = visit(coordinates[rows, :7].reshape(-1)).reshape(-1, 7)
    parity = coordinates[:, :7].sum(axis=1) & 1
    for half, odd in ((0, 0), (0, 1), (1, 0), (1, 1)):
        rows = np.flatnonzero((moved == half) & (parity == odd))
        last[rows] = visit(last[rows])
    coordinates[:, 7] = 2 * last + moved


def _one_stream(coordinates: Integers, visit: Visitor) -> None:
    coordinates[:] = visit(coordinates.reshape(-1)).reshape(coordinates.shape)


CELLS: dict[int, Cell] = {
    1: Cell(
        1,
        (1.0,),
        1 / 12,
        _nearest_integers,
        lambda coordinates: coordinates.astype(np.float64),
        _one_stream,
    ),
    2: Cell(2, (1.0, _ROOT3 / 2), 5 / 72, _nearest_hexagonal, _hexagonal, _hexagonal_streams),
    8: Cell(8, (2.0, *[1.0] * 6, 0.5), 929 / 12960, _nearest_e8, _e8, _e8_streams),
}
"""Cells by dimension. Normalised second moments (moment over side squared): 1/12, 5 / (36 sqrt(3))
and 929/12960.
"""
