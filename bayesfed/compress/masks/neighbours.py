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
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.leaf import Integers, Mask

ONE, STRENGTH, STRIP = 1 << 16, 16, 128
Cells = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Template:
    """The known entries around an entry in order of importance, and how many of them each estimate
    uses.

    Parameters
    ----------
    cells
        Triples (which, up, left): an entry of the mask itself (0) or of the reference (1), `up`
        rows above and `left` columns to the left.
    levels
        Sizes of the neighbourhoods in ascending order. The table has a probability for every
        pattern of the first.
    """

    cells: Cells
    levels: tuple[int, ...]


ALONE = Template(
    (
        (0, 0, 1),
        (0, 1, 0),
        (0, 1, -1),
        (0, 0, 2),
        (0, 1, 1),
        (0, 1, -2),
        (0, 0, 3),
        (0, 2, 0),
        (0, 1, 2),
        (0, 2, -1),
    ),
    (2, 4, 6, 10),
)
CHANGED = Template(
    (
        (1, 0, 0),
        (0, 0, 1),
        (0, 1, 0),
        (1, 0, -1),
        (1, -1, 0),
        (1, 0, 1),
        (1, 1, 0),
        (0, 1, -1),
        (0, 0, 2),
    ),
    (1, 3, 5, 9),
)


def shares(pattern: NDArray[Any], mask: Mask, count: int) -> Integers:
    """Return the share of ones among the entries with each of `count` patterns, in units of
    2**-16.
    """
    met, ones = (
        np.bincount(pattern.reshape(-1), minlength=count),
        np.bincount(pattern[mask], minlength=count),
    )
    shares: Integers = np.clip((2 * ones + 1) * ONE // (2 * met + 2), 1, ONE - 1)
    return shares


def chances(table: Integers, counts: Integers, levels: tuple[int, ...]) -> list[Integers]:
    """Return the probabilities of a 1 at each level ``(S, 2^level)``, given the numbers of zeros
    and ones after each pattern ``(S, patterns, 2)``.
    """
    parent, result = np.broadcast_to(table, (len(counts), len(table))), []
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


def patterns(mask: Mask, reference: Mask | None, height: int, cells: Cells) -> NDArray[np.uint16]:
    """Return the pattern around every entry ``(M, N)``, with one bit for each cell."""
    rows, columns = mask.shape
    inner = np.zeros((-(-rows // height) * height, columns), np.uint16)
    inner[:rows] = mask
    own = np.pad(inner.reshape(-1, height, columns), ((0, 0), (2, 0), (3, 2)))
    other = np.pad(inner[:rows] if reference is None else reference.astype(np.uint16), 1)
    result = np.zeros((rows, columns), np.uint16)
    for number, (which, up, left) in enumerate(cells):
        if which:
            result |= other[1 - up : 1 - up + rows, 1 - left : 1 - left + columns] << number
        else:
            result |= (
                own[:, 2 - up : 2 - up + height, 3 - left : 3 - left + columns].reshape(
                    -1, columns
                )[:rows]
                << number
            )
    return result


@lru_cache(maxsize=16)
def order(template: Template, depth: int) -> tuple[Integers, Cells]:
    """Return the pattern for each word of the decoder, of the first `depth` cells, and the cells of
    the reference in the words.
    """
    others = tuple(cell for cell in template.cells if cell[0])
    words = np.arange(1 << 10 + len(others))
    straight = (-1, 5, 9)  # the bit of the entry straight above, by rows up
    bits = [
        10 + others.index(cell) if cell[0] else straight[cell[1]] + cell[2]
        for cell in template.cells[:depth]
    ]
    return np.array([(words >> bit & 1) << number for number, bit in enumerate(bits)]).sum(
        0
    ), others
