"""What a posterior meets that counts as near its reference, for `exact.py` and README's figures."""

from __future__ import annotations

# Error of the worst mean in sds, and how far ratios of sds are from 1.
ERROR, WIDTH = 0.05, 0.03
# Statuses that say that a posterior is right.
CERTAIN = ("exact", "adapted")
# What it meets beside being near: rounds, kB up a client.
ROUNDS, KILOBYTES = 25, 50.0


def is_near(error: float, low: float, high: float) -> bool:
    """Return whether means and sds are near the reference's.

    Parameters
    ----------
    error
        Error of the worst mean in sds.
    low, high
        Range of ratios of sds.
    """
    return error <= ERROR and 1 - WIDTH <= low <= high <= 1 + WIDTH
