"""Schedules: functions from the number of the round to a factor on the learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable

from bayesfed.errors.checks import checked, number, whole

Schedule = Callable[[int], float]
"""``round -> factor on the learning rate``."""


def constant(round: int) -> float:
    """Return 1: the learning rate stays the same."""
    return 1.0


@checked(floor=number("(0, 1]", "0.1"), rounds=whole(1, "40"))
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
    last = max(1, rounds - 1)
    return lambda round: floor + (1 - floor) * (1 + math.cos(math.pi * min(round, last) / last)) / 2


@checked(scale=number("(0, inf]", "20"))
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
    return lambda round: 1 / (1 + round / scale)
