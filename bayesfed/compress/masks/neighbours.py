"""Neighbourhoods of the entries of a mask: the neighbours that are known when an entry is read, the
order of reading, and the probability of a 1.

Entries are read in waves, each an array operation. The longer side of the mask is vertical and is
cut into strips of `height` rows; entry (i, j) belongs to wave ``j + 3 (i % height)``. Its
neighbours, at most two rows up and two columns to the right, belong to earlier waves. The first
rows of a strip see zeros above them. After certain waves, which depend on the shape only, both
sides update the probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.leaf import Integers, Mask

ONE, STRENGTH, STRIP = 1 << 16, 16, 128
# The known entries around an entry in order of importance: how many rows above and how many columns
# to the left each is.
CELLS = ((0, 1), (1, 0), (1, -1), (0, 2), (1, 1), (1, -2), (0, 3), (2, 0), (1, 2), (2, -1))
# How many of them each estimate uses, in ascending order; the table has a probability for every
# pattern of the first.
LEVELS = (2, 4, 6, 10)
TABLE = 1 << LEVELS[0]


def shares(pattern: NDArray[Any], mask: Mask) -> Integers:
    """Return the share of ones among the entries with each pattern of the table, in units of
    2**-16.
    """
    met = np.bincount(pattern.reshape(-1), minlength=TABLE)
    ones = np.bincount(pattern[mask], minlength=TABLE)
    shares: Integers = np.clip((2 * ones + 1) * ONE // (2 * met + 2), 1, ONE - 1)
    return shares


def chances(table: Integers, counts: Integers, levels: tuple[int, ...]) -> list[Integers]:
    """Return the probabilities of a 1 by the table and at each level ``(S, 2^level)``, given the
    numbers of zeros and ones after each pattern ``(S, patterns, 2)``.
    """
    parent = np.broadcast_to(table, (len(counts), len(table)))
    result = [parent]
    for level in levels:
        met = counts.reshape(len(counts), -1, 1 << level, 2).sum(1)
        prior = np.tile(parent, (1, (1 << level) // parent.shape[1]))
        parent = (STRENGTH * prior + ONE * met[..., 1]) // (STRENGTH + met.sum(-1))
        result.append(np.clip(parent, 1, ONE - 1))
    return result


def surprise(met: Integers, chances: Integers) -> float:
    """Return the code length in bits of the zeros and ones after each pattern ``(S, patterns, 2)``
    at these probabilities ``(S, patterns)``.
    """
    return float(
        16 * met.sum()
        - (met[..., 1] * np.log2(chances) + met[..., 0] * np.log2(ONE - chances)).sum()
    )


@dataclass(frozen=True)
class Waves:
    """The order in which entries are read.

    Parameters
    ----------
    height
        Rows of a strip.
    cells
        Entries in the order of reading, as positions in row order.
    stops
        Where each wave ends, as positions in `cells`.
    updates
        Those stops after which the probabilities are updated.
    """

    height: int
    cells: Integers
    stops: list[int]
    updates: list[int]

    @staticmethod
    def of(rows: int, columns: int) -> Waves:
        """Return the waves of a mask."""
        height = -(-rows // -(-rows // STRIP))
        count = columns + 3 * (height - 1)
        # Sorting 16-bit numbers takes linear time.
        time = (
            (np.arange(rows)[:, None] % height * 3 + np.arange(columns))
            .reshape(-1)
            .astype(np.uint16 if count <= ONE else np.int64)
        )
        stops, updates, due = np.bincount(time, minlength=count).cumsum().tolist(), [], 64
        for stop in stops:
            if stop >= due:
                updates.append(stop)
                due = stop + max(64, stop // 16)
        return Waves(height, np.argsort(time, kind="stable"), stops, updates)


def room(shape: tuple[int, ...], height: int) -> NDArray[np.uint16]:
    """Return zeros for the strips of a mask, each with the zeros above it and at its sides,
    ``(strips, height + 2, N + 5)``.
    """
    return np.zeros((-(-shape[0] // height), height + 2, shape[1] + 5), np.uint16)


def patterns(mask: Mask, height: int) -> NDArray[np.uint16]:
    """Return the pattern around every entry ``(M, N)``, with one bit for each cell."""
    rows, columns = mask.shape
    padded = room(mask.shape, height)
    strips = np.zeros((len(padded) * height, columns), np.uint16)
    strips[:rows] = mask
    padded[:, 2:, 3:-2] = strips.reshape(-1, height, columns)
    result = np.zeros((len(padded), height, columns), np.uint16)
    for number, (up, left) in enumerate(CELLS):
        result |= padded[:, 2 - up : 2 - up + height, 3 - left : 3 - left + columns] << number
    return result.reshape(-1, columns)[:rows]
