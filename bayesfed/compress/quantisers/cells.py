"""Two lattices for vector quantisation: the integers and the hexagonal A2; nearest points after
Conway and Sloane 1982.

Each lattice has its own spacing (A2: shortest vectors of length 1). The integer coordinates of a
point are chosen so that each varies as much as the entry it represents: coordinates along a basis
would depend on each other, and coding them one by one would cost more than a better cell gains. In
a tie either nearest point may be returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.leaf import Integers
from bayesfed.compress.quantisers.entries import Reals


@dataclass(frozen=True)
class Cell:
    """A lattice, described by its Voronoi cell.

    Attributes
    ----------
    box
        L sides of a box that is a fundamental region (the diagonal of a triangular generator
        matrix); their product is the volume of the cell.
    moment
        Mean squared distance from the centre over the cell, per dimension, in units of the spacing
        squared.
    nearest
        Integer coordinates ``(m, L)`` of the lattice points nearest to points ``(m, L)``.
    points
        Lattice points ``(m, L)`` of integer coordinates.
    rest
        What is left of points ``(m, L)`` without the nearest lattice points.
    """

    box: tuple[float, ...]
    moment: float
    nearest: Callable[[Reals], Integers]
    points: Callable[[Integers], Reals]
    rest: Callable[[Reals], Reals]

    @property
    def side(self) -> float:
        """Side of the cube with the volume of the cell."""
        return math.prod(self.box) ** (1 / len(self.box))

    def uniform(self, count: int, random: np.random.Generator) -> Reals:
        """Draw points uniformly from the cell around 0: uniform points in the box minus their
        nearest lattice points.
        """
        return self.rest(np.multiply(random.random((count, len(self.box))), self.box, order="F"))


_ROOT3 = math.sqrt(3)


def _nearest_integers(points: Reals) -> Integers:
    return np.rint(points).astype(np.int64)


def _nearest_hexagonal(points: Reals) -> Integers:
    column, row, right, up, moved = _split(points)
    coordinates = np.empty_like(points, np.int64)
    coordinates[:, 0] = column - (moved & (right < 0))
    coordinates[:, 1] = 2 * row + np.copysign(moved, up)
    return coordinates


def _rest_hexagonal(points: Reals) -> Reals:
    *_, right, up, moved = _split(points)
    half, rest = 0.5 * moved, np.empty_like(points)
    np.subtract(right, np.copysign(half, right), out=rest[:, 0])
    np.multiply(up - np.copysign(half, up), _ROOT3, out=rest[:, 1])
    return rest


def _split(points: Reals) -> tuple[Reals, Reals, Reals, Reals, NDArray[np.bool_]]:
    """Return the nearest point of a rectangle's lattice, what is left, and whether a centre is
    nearer.
    """
    # A2 is the rectangular lattice of sides 1 and sqrt(3), together with its copy shifted to the
    # centres of its cells. Rows: twice y / sqrt(3).
    x, y = points[:, 0], points[:, 1] / _ROOT3
    column, row = np.rint(x), np.rint(y)
    right, up = x - column, y - row
    # The distances to the shifted lattice are 1/2 - |right| and 1/2 - |up|; in the comparison of
    # squared distances the squares cancel.
    return column, row, right, up, np.abs(right) + 3 * np.abs(up) > 1


def _hexagonal(coordinates: Integers) -> Reals:
    column, row = coordinates[:, 0], coordinates[:, 1]
    return np.stack([column + (row & 1) / 2, row * (_ROOT3 / 2)], axis=1)


CELLS: dict[int, Cell] = {
    1: Cell(
        (1.0,),
        1 / 12,
        _nearest_integers,
        lambda coordinates: coordinates.astype(np.float64),
        lambda points: points - np.rint(points),
    ),
    2: Cell((1.0, _ROOT3 / 2), 5 / 72, _nearest_hexagonal, _hexagonal, _rest_hexagonal),
}
"""Cells by dimension. Normalised second moments (moment over side squared): 1/12 and
5 / (36 sqrt(3)).
"""
