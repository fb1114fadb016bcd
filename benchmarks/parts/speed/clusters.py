"""Masks as clusters, what `masks.py` compares with: full rectangles by position and size, all other
entries one by one.

This is the code of D-Turbo-VBI (Xia, Tsang and Lau): "a cluster larger than 3 x 3 is regarded as an
entirety", sent as its location and size. Here the clusters are disjoint rectangles of ones with
sides of at least 3, which cover the support exactly together with single entries, coded as in
`RunMask`. Rectangles are chosen greedily; a rectangle never spans two connected components, so
components need no labels. In messages of this package's methods it was never the shortest code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bayesfed.compress.leaf import Integers, Mask, Reader, Writer
from bayesfed.compress.lossless.bits import varint_bits
from bayesfed.compress.lossless.golomb import Golomb

SIDE = 3
_RANKED = 32  # rows below a corner that its rank depends on
_ROWS = 16  # rows searched at a time
_AREAS = (9, 12, 16, 25, 1 << 62)  # least areas of rectangles to try; the last leaves no rectangles


@dataclass(frozen=True)
class ClusterMask:
    """The cheapest of several exact covers by disjoint full rectangles and single entries.

    Layout: the number of rectangles, varint; their upper left corners in row order as gaps, their
    heights - 3 and their widths - 3, `Golomb` each; the number of other entries, varint; the gaps
    between them, counted in entries outside the rectangles, `Golomb`. A mask without entries takes
    no bytes.
    """

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        if not mask.size:
            return
        rectangles, single = min(
            (_split(mask, cover) for cover in _covers(mask)),
            key=lambda parts: _bits(mask.shape[1], *parts),
        )
        out.varint(len(rectangles))
        _write_places(rectangles[:, 0] * mask.shape[1] + rectangles[:, 1], out)
        Golomb().write(rectangles[:, 2] - SIDE, out)
        Golomb().write(rectangles[:, 3] - SIDE, out)
        out.varint(len(single))
        _write_places(single, out)

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        size = math.prod(shape)
        if not size:
            return np.zeros(shape, np.bool_)
        count = source.varint(size // SIDE**2)
        corner = np.stack(np.divmod(_read_places(source, count), shape[1]), 1)
        sides = np.stack([Golomb().read(source, count), Golomb().read(source, count)], 1)
        mask = _layers(np.hstack([corner, sides + SIDE]), shape).reshape(-1) > 0
        places = _read_places(source, source.varint(size))
        mask[np.flatnonzero(~mask)[places]] = True
        return mask.reshape(shape)


def _squares(mask: Mask) -> Mask:
    """Return the upper left corners of all full squares of side 3."""
    if min(mask.shape) < SIDE:
        return np.zeros((0, 0), np.bool_)
    tall = mask[:-2] & mask[1:-1] & mask[2:]
    return tall[:, :-2] & tall[:, 1:-1] & tall[:, 2:]


def _layers(rectangles: Integers, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Return how many rectangles (row, column, height, width) cover each entry."""
    steps = np.zeros((shape[0] + 1, shape[1] + 1), np.int32)
    row, column, height, width = rectangles.T
    for down, right, sign in ((0, 0, 1), (height, 0, -1), (0, width, -1), (height, width, 1)):
        np.add.at(steps, (row + down, column + right), sign)
    return steps.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32)[:-1, :-1]


def _covers(mask: Mask) -> list[Integers]:
    """Return sets of disjoint full rectangles: greedy in row order and largest first, with and
    without the small ones.
    """
    corners = np.argwhere(_squares(mask))
    if not len(corners):
        return [np.zeros((0, 4), np.int64)]
    largest_first = np.argsort(-_ranks(mask, corners), kind="stable")
    covers = [_greedy(mask, corners), _greedy(mask, corners[largest_first])]
    return [cover[cover[:, 2] * cover[:, 3] >= area] for cover in covers for area in _AREAS]


def _ranks(mask: Mask, corners: Integers) -> Integers:
    """Return the area of the largest rectangle below each corner, within a limited number
    of rows.
    """
    run = np.zeros((len(mask) + _RANKED, mask.shape[1] + 1), np.int64)
    for column in range(mask.shape[1] - 1, -1, -1):
        run[: len(mask), column] = (run[: len(mask), column + 1] + 1) * mask[:, column]
    row, column = corners.T
    width, best = run[row, column], np.zeros(len(corners), np.int64)
    for height in range(1, _RANKED + 1):
        width = np.minimum(width, run[row + height - 1, column])
        best = np.maximum(best, height * width)
    return best


def _greedy(mask: Mask, corners: Integers) -> Integers:
    """Take the largest rectangle that is still free below each corner in turn, and return them in
    row order.
    """
    # The margin of zeros stops every run.
    free = np.pad(np.ascontiguousarray(mask), ((0, 1), (0, 1)))
    flat, taken = free.reshape(-1).data, []
    # Single numbers rather than pairs: creating a list of a million lists would take most of the
    # time.
    for place in (corners[:, 0] * free.shape[1] + corners[:, 1]).tolist():
        if not flat[place]:
            continue
        row, column = divmod(place, free.shape[1])
        height, width = int(free[row:, column].argmin()), int(free[row, column:].argmin())
        best, seen = (0, 0, 0), 0
        # A few rows at a time, as long as a larger rectangle may follow.
        while width >= SIDE and height * width > best[0] and seen < height:
            window = free[row + seen : row + min(seen + _ROWS, height), column : column + width]
            widths = np.minimum.accumulate(np.where(window.all(1), width, window.argmin(1)))
            heights = np.arange(seen + 1, seen + 1 + len(widths))
            areas = heights * widths * (heights >= SIDE) * (widths >= SIDE)
            most = int(areas.argmax())
            best = max(best, (int(areas[most]), int(heights[most]), int(widths[most])))
            width, seen = int(widths[-1]), seen + _ROWS
        if best[0]:
            taken.append((row, column, *best[1:]))
            free[row : row + best[1], column : column + best[2]] = False
    return np.array(sorted(taken), np.int64).reshape(-1, 4)


def _split(mask: Mask, rectangles: Integers) -> tuple[Integers, Integers]:
    """Return the rectangles, and the remaining entries as places among the entries outside the
    rectangles.
    """
    return rectangles, np.flatnonzero(mask[_layers(rectangles, mask.shape) == 0])


def _bits(columns: int, rectangles: Integers, single: Integers) -> float:
    sides = sum(Golomb().predicted_bits(rectangles[:, side] - SIDE) for side in (2, 3))
    corners = _places_bits(rectangles[:, 0] * columns + rectangles[:, 1])
    return (
        varint_bits(len(rectangles))
        + corners
        + sides
        + varint_bits(len(single))
        + _places_bits(single)
    )


def _write_places(places: Integers, out: Writer) -> None:
    """Append ascending places; their number is not written."""
    Golomb().write(np.diff(places, prepend=-1) - 1, out)


def _read_places(source: Reader, count: int) -> Integers:
    return np.cumsum(Golomb().read(source, count) + 1) - 1


def _places_bits(places: Integers) -> float:
    return Golomb().predicted_bits(np.diff(places, prepend=-1) - 1)
