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
def first_is_zero(values: Any) -> Any:
    """Return whether the first digit of all numbers ``(n,)`` is 0, to which half a step of 2^10 is
    rounded.
    """
    small = 0
    for i in range(len(values)):
        small += abs(values[i]) <= 2.0**9
    return small == len(values)


@numba.njit(**EXACT)
def add_three(values: Any, first: Any, second: Any, third: Any) -> None:
    """Add numbers ``(n,)`` to three limbs ``(n,)``. Blocks whose first digits are all 0 leave the
    first limb: memory is what costs.
    """
    for start in range(0, len(values), BLOCK):
        stop = min(start + BLOCK, len(values))
        block, a, b, c = (
            values[start:stop],
            first[start:stop],
            second[start:stop],
            third[start:stop],
        )
        if first_is_zero(block):
            for i in range(len(block)):
                one, rest = digit(np.float64(block[i]), -30)
                b[i] += one
                c[i] += digit(rest, -70)[0]
        else:
            for i in range(len(block)):
                one, rest = digit(np.float64(block[i]), 10)
                a[i] += one
                one, rest = digit(rest, -30)
                b[i] += one
                c[i] += digit(rest, -70)[0]


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
