"""Numbers as sums of 64-bit integers, so that the order in which they are added does not matter.

A number x with ``|x| < 2^50`` is written as ``x = 2^10 d_0 + 2^-30 d_1 + 2^-70 d_2 (+ 2^-110 d_3)``
with integer digits of at most 40 bits; what is left is rounded. Digits are added as int64, which is
exact and has room for `ROOM` numbers: any order and any partition of the numbers gives the same
digits, or digits that `normalised` makes the same.

==================  ======  ========================
numbers             limbs   exact down to
==================  ======  ========================
integers            1       themselves
float32 and lower   3       2^-70, about 8.5e-22
float64             4       2^-110, about 7.7e-34
==================  ======  ========================

Large arrays on the CPU are added by numba's kernels, small ones and those elsewhere by torch. Both
round to even, and all their steps are exact, so that both give the same bits.

A running sum of many float32 numbers is kept as floats of 64 bits (`floats_for`), block by block,
for as long as no addition loses a bit: a third of the memory of limbs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

# Bits of a digit, the numbers' upper bound, and how many numbers can be added before digits are
# carried.
DIGIT, TOP, ROOM = 40, 2.0**50, 1 << 22
# Exponents of the limbs.
EXPONENTS = (10, -30, -70, -110)
# Entries from which on numba's kernels are worth their import.
LARGE = 1 << 14


def limbs_of(dtype: torch.dtype) -> int:
    """Return the number of limbs for leaves of a dtype: 4 for float64, 3 for other floating-point
    numbers, 1 for integers.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        return 1
    return 4 if dtype in (torch.float64, torch.complex128) else 3


def refused(leaves: Sequence[Tensor]) -> int | None:
    """Return the index of the first leaf with a number that is not finite or 2^50 or more in size,
    for integers 2^40; None if there is none.
    """
    kernels = _kernels(leaves)
    if (
        kernels is None
        and len({leaf.dtype for leaf in leaves}) == 1
        and _is_below(torch.cat(list(leaves)))
    ):
        # The usual case of small leaves, in one call.
        return None
    for number, leaf in enumerate(leaves):
        if not (_is_below(leaf) if kernels is None else kernels.below(_array(leaf), _top(leaf))):
            return number
    return None


def zeros(number: int, size: int, device: torch.device | None = None) -> Tensor:
    """Return limbs of zeros, ``(number, size)`` int64. On the CPU they take no memory until they
    are written to.
    """
    if device is not None and device.type != "cpu":
        return torch.zeros(number, size, dtype=torch.int64, device=device)
    return torch.from_numpy(np.zeros((number, size), np.int64))


def floats_for(limbs: Tensor) -> Tensor | None:
    """Return zeros ``(n,)`` in float64 to add numbers to in place of these limbs; None for limbs of
    few numbers, or of another type than float32.
    """
    large = len(limbs) == 3 and _kernels([limbs])
    return torch.from_numpy(np.full(limbs.shape[1], 0.0)) if large else None


def add(leaves: Sequence[Tensor], limbs: Tensor, floats: Tensor | None = None) -> None:
    """Add numbers to limbs, in place.

    Parameters
    ----------
    leaves
        Numbers of which none is `refused`, in pieces ``(n_1,)``, ``(n_2,)``, ... of n together.
    limbs
        ``(L, n)`` int64.
    floats
        Of `floats_for`: numbers are added to these where no bit is lost. Blocks that are in the
        limbs are NaN.
    """
    kernels = _kernels([limbs])
    if len(limbs) == 1:
        limbs[0] += torch.cat(list(leaves))
    elif kernels is None:
        _add(torch.cat(list(leaves)), limbs)
    else:
        start, rows = 0, limbs.numpy()
        for leaf in leaves:
            at = slice(start, start := start + leaf.shape[0])
            if floats is None:
                kernels.ADD[len(limbs)](_array(leaf), *rows[:, at])
            else:
                kernels.add_to_floats(_array(leaf), floats[at].numpy(), *rows[:, at])


def value(limbs: Tensor, floats: Tensor | None = None) -> Tensor:
    """Return the numbers that limbs stand for, ``(n,)``: float64 within 0.50001 units in the last
    place, or int64 for one limb.

    Parameters
    ----------
    limbs
        ``(L, n)`` int64, normalised or not.
    floats
        Numbers that are not in the limbs, or NaN, ``(n,)``.
    """
    if len(limbs) == 1:
        return limbs[0]
    if floats is not None:
        inside = floats.isnan()
        return floats.masked_scatter(inside, value(limbs[:, inside])) if inside.any() else floats
    if (kernels := _kernels([limbs])) is None:
        return _value(limbs)
    result = torch.empty(limbs.shape[1], dtype=torch.float64)
    digits = [*limbs.numpy(), np.broadcast_to(np.int64(0), len(result))]
    kernels.read(*digits[:4], result.numpy())
    return result


def normalised(limbs: Tensor) -> Tensor:
    """Return limbs of the same numbers with all digits but the first in [-2^39, 2^39): equal
    numbers have equal limbs then.
    """
    result = limbs.clone()
    for number in range(len(limbs) - 1, 0, -1):
        carry = (result[number] + (1 << (DIGIT - 1))) >> DIGIT
        result[number] -= carry << DIGIT
        result[number - 1] += carry
    return result


def quanta(number: float) -> int:
    """Return a number as a count of 2^-110, rounded to even. It must be finite and below 2^50 in
    size.
    """
    return round(math.ldexp(number, -EXPONENTS[-1]))


def from_quanta(count: int) -> float:
    """Return the float nearest to a count of 2^-110."""
    return count / (1 << -EXPONENTS[-1])


def _add(values: Tensor, limbs: Tensor) -> None:
    steps = torch.tensor(
        [[0.0], *([2.0**exponent] for exponent in EXPONENTS[: len(limbs)])],
        dtype=torch.float64,
        device=limbs.device,
    )
    scales = steps.reciprocal()
    scales[0] = 0.0
    # Numbers rounded to multiples of 2^10, of 2^-30, ...: what one adds to the one before are the
    # digits. All of this is exact.
    rounded = (values.to(torch.float64) * scales).round_().mul_(steps)
    limbs += (rounded[1:] - rounded[:-1]).mul_(scales[1:]).long()


def _value(limbs: Tensor) -> Tensor:
    # The first digit has up to 64 bits: a further one is split off, so that each is exact as a
    # float.
    digits = normalised(torch.cat([torch.zeros_like(limbs[:1]), limbs]))
    terms = [
        digit.double() * 2.0**exponent
        for digit, exponent in zip(digits, (50, *EXPONENTS), strict=False)
    ]
    total, errors = terms[0], []
    for term in terms[1:]:
        # The error of a sum is a float (Knuth's TwoSum).
        added = total + term
        part = added - total
        errors.append((total - (added - part)) + (term - part))
        total = added
    lost = errors[-1]
    for error in reversed(errors[:-1]):
        lost = lost + error
    result: Tensor = total + lost
    return result


def _kernels(arrays: Sequence[Tensor]) -> ModuleType | None:
    if sum(array.shape[-1] for array in arrays) < LARGE or any(
        array.device.type != "cpu" for array in arrays
    ):
        return None
    from bayesfed.federated.core import limbs_jit

    return limbs_jit


def _top(leaf: Tensor) -> float:
    return TOP if leaf.is_floating_point() else float(1 << DIGIT)


def _is_below(leaf: Tensor) -> bool:
    low, high = leaf.aminmax() if leaf.numel() else (0, 0)
    # NaN compares as false.
    return -_top(leaf) < float(low) and float(high) < _top(leaf)


def _array(leaf: Tensor) -> Any:
    """Return an array of a type that kernels are compiled for."""
    known = leaf.dtype in (torch.float32, torch.float64, torch.int64)
    return (
        (leaf if known else leaf.float() if leaf.is_floating_point() else leaf.long())
        .contiguous()
        .numpy()
    )
