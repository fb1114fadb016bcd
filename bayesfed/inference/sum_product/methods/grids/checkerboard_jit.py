"""The checkerboard sweep as numba kernels.

Rows are independent within a half sweep, so the number of threads changes no bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from torch import Tensor

from bayesfed.inference.sum_product.methods.jit import both, chosen

# With fewer variables, threads cost more than they save.
PARALLEL = 16_384


@numba.njit(inline="always")
def send(x: Any, y: Any, a: Any, one: Any, cap: Any) -> Any:
    """Return (a x + 1) / (x + a) for two cavities, with one division."""
    x, y = min(x, cap), min(y, cap)
    dx, dy = x + a, y + a
    inverse = one / (dx * dy)
    return (a * x + one) * (dy * inverse), (a * y + one) * (dx * inverse)


@numba.njit(inline="always")
def blend(new: Any, old: Any, damping: Any, worst: Any) -> Any:
    """Return the damped message, and the larger of `worst` and its change: the ratio of larger to
    smaller, less 1.
    """
    mixed = new + damping * (old - new)
    moved = abs(mixed - old) / (mixed if mixed < old else old)
    return mixed, moved if moved > worst else worst


def sweeps(
    count: int,
    g: Any,
    m: Any,
    columns: int,
    a_row: Any,
    a_column: Any,
    one: Any,
    cap: Any,
    damping: Any,
    change: Any,
) -> None:
    """Make `count` sweeps over `g` ``(2, B, K + 2, W + 2)`` and `m` ``(2, 4, B, K + 2, W + 2)`` in
    place.

    With `change` ``(B K, W + 2)`` they are damped, and the largest change of a message from each
    cell is written into it. With None, which numba compiles apart, a sweep takes half as long.
    """
    rows = g.shape[2] - 2
    for turn in range(2 * count):
        parity = turn % 2
        own, other = m[parity], m[1 - parity]
        for number in numba.prange(g.shape[1] * rows):
            b, i = number // rows, number % rows + 1
            flag, field = (i - 1 + parity) % 2, g[parity, b, i]
            left, right, up, down = own[0, b, i], own[1, b, i], own[2, b, i], own[3, b, i]
            to_same, to_other = other[0, b, i], other[1, b, i, 2 * flag :]
            to_up, to_down = other[3, b, i - 1], other[2, b, i + 1]
            for c in range(1, (columns + 1 - flag) // 2 + 1):
                across, along = field[c] * (up[c] * down[c]), field[c] * (left[c] * right[c])
                same, far = send(across * right[c], across * left[c], a_row, one, cap)
                above, below = send(along * down[c], along * up[c], a_column, one, cap)
                if change is not None:
                    # The maximum is taken afterwards: with a reduction in here, the loop would not
                    # be vectorised.
                    worst = change[number]
                    same, moved = blend(same, to_same[c], damping, worst[c])
                    far, moved = blend(far, to_other[c - 1], damping, moved)
                    above, moved = blend(above, to_up[c], damping, moved)
                    below, worst[c] = blend(below, to_down[c], damping, moved)
                to_same[c], to_other[c - 1] = same, far
                to_up[c], to_down[c] = above, below


_SWEEPS = both(sweeps)


def sweeper(
    g: Tensor, messages: Tensor, columns: int, a: list[float], cap: float, damping: float
) -> Callable[[int], float]:
    """Return the step for `settle`, which changes `messages` in place.

    Parameters
    ----------
    g
        Packed unary odds ``(2, B, K + 2, W + 2)``.
    messages
        Packed odds ``(2, 4, B, K + 2, W + 2)``.
    columns
        M.
    a
        exp(coupling / 2) of rows and of columns.
    cap
        Largest cavity odds.
    damping
        Share of the old message that is kept.
    """
    odds, m = g.numpy(), messages.numpy()
    typed = [odds.dtype.type(value) for value in (*a, 1.0, cap, damping)]
    kernel = chosen(_SWEEPS, odds.size, PARALLEL)
    # In numpy: after a maximum, torch's threads would keep spinning on the cores that the kernel
    # needs.
    change = np.zeros((odds.shape[1] * (odds.shape[2] - 2), odds.shape[3]), odds.dtype)

    def step(count: int) -> float:
        kernel(count - 1, odds, m, columns, *typed, change if damping else None)
        change[:] = 0
        kernel(1, odds, m, columns, *typed, change)
        return math.log1p(float(change.max()))

    return step
