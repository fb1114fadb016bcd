"""Additions of `bayesfed.federated.core.limbs` as numba kernels.

Without ``fastmath`` nothing is reordered, so that the bits are those of torch.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from bayesfed.kernels import compile_kernel

# Entries that are looked at together.
BLOCK = 1024


@compile_kernel
def add(values: Any, limbs: Any, start: int) -> None:
    """Add numbers ``(n,)`` to limbs ``(L, N)``, from entry `start` on."""
    for i in range(len(values)):
        rest = np.float64(values[i]) * 2.0**-10
        for limb in range(len(limbs)):
            digit = np.rint(rest)
            limbs[limb, start + i] += np.int64(digit)
            rest = (rest - digit) * 2.0**40


@numba.njit(inline="always")
def lowest(value: Any) -> Any:
    """Return a number as three limbs have it: rounded to a multiple of 2^-70."""
    return np.rint(np.float64(value) * 2.0**70) * 2.0**-70


@compile_kernel
def add_to_floats(values: Any, floats: Any, limbs: Any, start: int) -> None:
    """Add numbers ``(n,)`` to floats ``(N,)``, from entry `start` on. A block of which a bit would
    be lost goes to three limbs ``(3, N)``, and its floats are NaN from then on.
    """
    for first in range(0, len(values), BLOCK):
        block = values[first : first + BLOCK]
        total = floats[start + first : start + first + len(block)]
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
                add(total, limbs, start + first)
                total[:] = np.nan
            add(block, limbs, start + first)
