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

Large arrays are added by numba's kernels, small ones by torch. Both round to even, and all their
steps are exact, so that both give the same bits.

A running sum of many float32 numbers is kept as floats of 64 bits (`floats_for`), block by block,
for as long as no addition loses a bit: a third of the memory of limbs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from mmap import mmap

import torch
from torch import Tensor

# Bits of a digit, the numbers' upper bound, and how many numbers can be added before digits are
# carried.
DIGIT, TOP, ROOM = 40, 2.0**50, 1 << 22
# Exponents of the limbs.
EXPONENTS = (10, -30, -70, -110)
# Entries from which on numba's kernels are worth their import, and that are read at a time.
LARGE, CHUNK = 1 << 14, 1 << 16


def limbs_of(dtype: torch.dtype) -> int:
    """Return the number of limbs for leaves of a dtype: 4 for float64, 3 for other floating-point
    numbers, 1 for integers.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        return 1
    return 4 if dtype in (torch.float64, torch.complex128) else 3


def fits(leaf: Tensor) -> bool:
    """Return whether all numbers are finite and below 2^50 in size, for integers 2^40."""
    top = TOP if leaf.is_floating_point() else float(1 << DIGIT)
    low, high = leaf.aminmax() if leaf.numel() else (0, 0)
    # NaN compares as false.
    return -top < float(low) and float(high) < top


def zeros(number: int, size: int) -> Tensor:
    """Return limbs of zeros, ``(number, size)`` int64. They take no memory until they are written
    to.
    """
    # Fresh pages: those that were freed before have to be written with zeros.
    pages = mmap(-1, max(8, 8 * number * size))
    return torch.frombuffer(pages, dtype=torch.int64)[: number * size].view(number, size)


def floats_for(limbs: Tensor) -> Tensor | None:
    """Return zeros ``(n,)`` in float64 to add numbers to in place of these limbs; None for limbs of
    few numbers, or of another type than float32.
    """
    large = len(limbs) == 3 and limbs.shape[1] >= LARGE
    return torch.zeros(limbs.shape[1], dtype=torch.float64) if large else None


def add(leaves: Sequence[Tensor], limbs: Tensor, floats: Tensor | None = None) -> None:
    """Add numbers to limbs, in place.

    Parameters
    ----------
    leaves
        Numbers that `fits` takes, in pieces ``(n_1,)``, ``(n_2,)``, ... of n together.
    limbs
        ``(L, n)`` int64.
    floats
        Of `floats_for`: numbers are added to these where no bit is lost. Blocks that are in the
        limbs are NaN.
    """
    if len(limbs) == 1:
        limbs[0] += torch.cat(list(leaves))
    elif limbs.shape[1] < LARGE:
        # All of this is exact, as multiples of powers of 2.
        rest = torch.cat(list(leaves)).to(torch.float64) * 2.0 ** -EXPONENTS[0]
        for limb in limbs:
            digits = rest.round()
            limb.add_(digits.long())
            rest = (rest - digits) * 2.0**DIGIT
    else:
        from bayesfed.federated.core import limbs_jit

        start, rows = 0, limbs.numpy()
        for leaf in leaves:
            values = leaf if leaf.dtype is torch.float64 else leaf.float()
            if floats is None:
                limbs_jit.add(values.contiguous().numpy(), rows, start)
            else:
                limbs_jit.add_to_floats(values.contiguous().numpy(), floats.numpy(), rows, start)
            start += len(leaf)


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
        # A sum is NaN if a term is; all others are finite.
        if not floats.sum().isnan():
            return floats
        inside = floats.isnan()
        return floats.masked_scatter(inside, value(limbs[:, inside]))
    return torch.cat([_value(part) for part in limbs.split(CHUNK, 1)])


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
