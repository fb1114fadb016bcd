"""`bayesfed.federated.core.limbs` as numba kernels, with the loop over limbs unrolled.

Without ``fastmath`` nothing is reordered, so that the bits are those of torch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

EXACT: dict[str, Any] = {"error_model": "numpy", "cache": True}
HALF = 1 << 39
# Entries that are looked at together.
BLOCK = 1024


@numba.njit(**EXACT)
def below(values: Any, top: float) -> Any:
    """Return whether all numbers ``(n,)`` are below `top` in size; NaN is not."""
    sound = 0
    for i in range(len(values)):
        sound += abs(values[i]) < top
    return sound == len(values)


@numba.njit(inline="always")
def digit(rest: Any, exponent: Any) -> Any:
    """Return the digit of a number at an exponent of 2, and what it leaves."""
    rounded = np.rint(rest * 2.0**-exponent)
    return np.int64(rounded), rest - rounded * 2.0**exponent


@numba.njit(inline="always")
def lowest(value: Any) -> Any:
    """Return a number as three limbs have it: rounded to a multiple of 2^-70."""
    return np.rint(np.float64(value) * 2.0**70) * 2.0**-70


@numba.njit(**EXACT)
def add_three(values: Any, first: Any, second: Any, third: Any) -> None:
    """Add numbers ``(n,)`` to three limbs ``(n,)``."""
    for i in range(len(values)):
        one, rest = digit(np.float64(values[i]), 10)
        first[i] += one
        one, rest = digit(rest, -30)
        second[i] += one
        third[i] += digit(rest, -70)[0]


@numba.njit(**EXACT)
def add_to_floats(values: Any, floats: Any, first: Any, second: Any, third: Any) -> None:
    """Add numbers ``(n,)`` to floats ``(n,)``. A block of which a bit would be lost goes to three
    limbs ``(n,)``, and its floats are NaN from then on.
    """
    for start in range(0, len(values), BLOCK):
        stop = min(start + BLOCK, len(values))
        block, total = values[start:stop], floats[start:stop]
        a, b, c = first[start:stop], second[start:stop], third[start:stop]
        lost = 0
        for i in range(len(block)):
            number = lowest(block[i])
            added = total[i] + number
            # A sum is exact if both of its terms can be had back. No NaN can.
            lost += (added - total[i] != number) | (added - number != total[i])
        if lost == 0:
            for i in range(len(block)):
                total[i] += lowest(block[i])
        else:
            if not np.isnan(total[0]):
                add_three(total, a, b, c)
                total[:] = np.nan
            add_three(block, a, b, c)


@numba.njit(**EXACT)
def add_four(values: Any, first: Any, second: Any, third: Any, fourth: Any) -> None:
    """Add numbers ``(n,)`` to four limbs ``(n,)``."""
    for i in range(len(values)):
        one, rest = digit(np.float64(values[i]), 10)
        first[i] += one
        one, rest = digit(rest, -30)
        second[i] += one
        one, rest = digit(rest, -70)
        third[i] += one
        fourth[i] += digit(rest, -110)[0]


@numba.njit(inline="always")
def carried(low: Any, high: Any) -> Any:
    """Return two digits after what exceeds 40 bits of the lower one is carried."""
    carry = (low + HALF) >> 40
    return low - (carry << 40), high + carry


@numba.njit(inline="always")
def two_sum(total: Any, term: Any) -> Any:
    """Return a sum and its rounding error (Knuth)."""
    added = total + term
    part = added - total
    return added, (total - (added - part)) + (term - part)


@numba.njit(**EXACT)
def read(first: Any, second: Any, third: Any, fourth: Any, result: Any) -> None:
    """Write the numbers that four limbs stand for, the last of them zeros if there are three."""
    for i in range(len(result)):
        d, c = carried(fourth[i], third[i])
        c, b = carried(c, second[i])
        b, a = carried(b, first[i])
        a, top = carried(a, np.int64(0))
        total, error_a = two_sum(np.float64(top) * 2.0**50, np.float64(a) * 2.0**10)
        total, error_b = two_sum(total, np.float64(b) * 2.0**-30)
        total, error_c = two_sum(total, np.float64(c) * 2.0**-70)
        total, error_d = two_sum(total, np.float64(d) * 2.0**-110)
        result[i] = total + (((error_d + error_c) + error_b) + error_a)


ADD = {3: add_three, 4: add_four}
