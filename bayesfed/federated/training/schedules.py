"""Schedules: functions from the number of the round to a factor on the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from bayesfed.errors import ArgumentError

Schedule = Callable[[int], float]
"""``round -> factor on the learning rate``."""


def constant(round: int) -> float:
    """Return 1: the learning rate stays the same."""
    return 1.0


def cosine(floor: float, rounds: int) -> Schedule:
    """Return half a cosine from 1 in the first round to `floor` in the last (Loshchilov and Hutter,
    2017, without restarts).

    Parameters
    ----------
    floor
        Factor in the last round and after it, in (0, 1].
    rounds
        Number of rounds.

    Raises
    ------
    ArgumentError
        If `floor` is not in (0, 1], or `rounds` is below 1.
    """
    if not (0 < floor <= 1 and rounds >= 1):
        raise ArgumentError(
            "cosine", "floor in (0, 1] and rounds >= 1", (floor, rounds), "cosine(0.1, 40)"
        )
    last = max(1, rounds - 1)
    return lambda round: floor + (1 - floor) * (1 + math.cos(math.pi * min(round, last) / last)) / 2


def inverse(scale: float) -> Schedule:
    """Return the schedule ``1 / (1 + round / scale)``, whose sum diverges and whose sum of squares
    converges (D-Turbo-VBI (25)).

    Parameters
    ----------
    scale
        Number of the round at which the factor is 1/2.

    Raises
    ------
    ArgumentError
        If `scale` is not above 0.
    """
    if not scale > 0:
        raise ArgumentError("inverse", "scale > 0", scale, "inverse(20)")
    return lambda round: 1 / (1 + round / scale)
