"""Schedules: a factor on the learning rate for each round."""

from __future__ import annotations

import math
from collections.abc import Callable

from bayesfed.errors import ArgumentError, complain

Schedule = Callable[[int], float]


def constant(round: int) -> float:
    """Keep the learning rate."""
    return 1.0


def cosine(floor: float, rounds: int) -> Schedule:
    """Shrink the learning rate along half a cosine from 1 to `floor` at the last of `rounds` (Loshchilov and Hutter, 2017, without restarts).

    Raises
    ------
    ArgumentError
        If the floor is not above 0 and at most 1, or there are no rounds.
    """
    if not (0 < floor <= 1 and rounds >= 1):
        raise ArgumentError(complain("cosine", expected="floor in (0, 1] and rounds >= 1", actual=(floor, rounds), hint="cosine(0.1, 40)"))
    last = max(1, rounds - 1)
    return lambda round: floor + (1 - floor) * (1 + math.cos(math.pi * min(round, last) / last)) / 2


def inverse(scale: float) -> Schedule:
    """Shrink it as ``1 / (1 + round / scale)``: sums diverge, squares converge (D-Turbo-VBI (25))."""
    if not scale > 0:
        raise ArgumentError(complain("inverse", expected="scale > 0", actual=scale, hint="inverse(20)"))
    return lambda round: 1 / (1 + round / scale)
