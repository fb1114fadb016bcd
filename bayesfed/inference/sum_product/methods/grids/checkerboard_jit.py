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


@numba.njit(inline="always")
def around(g: Any, own: Any, other: Any, parity: int, b: int, i: int) -> Any:
    """Return whether row i is shifted, its odds, the messages into it from each side, and those out
    of it.
    """
    flag = (i - 1 + parity) % 2
    into = own[0, b, i], own[1, b, i], own[2, b, i], own[3, b, i]
    out = other[0, b, i], other[1, b, i][2 * flag :], other[3, b, i - 1], other[2, b, i + 1]
    return flag, g[parity, b, i], into, out


def sweeps(
    count: int, g: Any, m: Any, columns: int, a_row: Any, a_column: Any, one: Any, cap: Any
) -> None:
    """Make `count` sweeps over `g` ``(2, B, K + 2, W + 2)`` and `m` ``(2, 4, B, K + 2, W + 2)`` in
    place.
    """
    rows = g.shape[2] - 2
    for turn in range(2 * count):
        parity = turn % 2
        own, other = m[parity], m[1 - parity]
        for number in numba.prange(g.shape[1] * rows):
            b, i = number // rows, number % rows + 1
            flag, field, into, out = around(g, own, other, parity, b, i)
            left, right, up, down = into
            to_same, to_other, to_up, to_down = out
            for c in range(1, (columns + 1 - flag) // 2 + 1):
                across, along = field[c] * (up[c] * down[c]), field[c] * (left[c] * right[c])
                to_same[c], to_other[c - 1] = send(
                    across * right[c], across * left[c], a_row, one, cap
                )
                to_up[c], to_down[c] = send(along * down[c], along * up[c], a_column, one, cap)


def careful_sweep(
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
    """Make one damped sweep, and write the largest change of a message from each cell into `change`
    ``(B K, W + 2)``.
    """
    rows = g.shape[2] - 2
    for parity in range(2):
        own, other = m[parity], m[1 - parity]
        for number in numba.prange(g.shape[1] * rows):
            b, i = number // rows, number % rows + 1
            flag, field, into, out = around(g, own, other, parity, b, i)
            left, right, up, down = into
            to_same, to_other, to_up, to_down = out
            # The maximum is taken afterwards: with a reduction in here, the loop would not be
            # vectorised.
            worst = change[number]
            for c in range(1, (columns + 1 - flag) // 2 + 1):
                across, along = field[c] * (up[c] * down[c]), field[c] * (left[c] * right[c])
                same, far = send(across * right[c], across * left[c], a_row, one, cap)
                above, below = send(along * down[c], along * up[c], a_column, one, cap)
                to_same[c], moved = blend(same, to_same[c], damping, worst[c])
                to_other[c - 1], moved = blend(far, to_other[c - 1], damping, moved)
                to_up[c], moved = blend(above, to_up[c], damping, moved)
                to_down[c], worst[c] = blend(below, to_down[c], damping, moved)


_sweeps, _careful_sweep = both(sweeps), both(careful_sweep)


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
    typed = [odds.dtype.type(value) for value in (*a, 1.0, cap)]
    amount = odds.dtype.type(damping)
    plain, careful = (
        chosen(variants, odds.size, PARALLEL) for variants in (_sweeps, _careful_sweep)
    )
    # In numpy: after a maximum, torch's threads would keep spinning on the cores that the kernel
    # needs.
    change = np.zeros((odds.shape[1] * (odds.shape[2] - 2), odds.shape[3]), odds.dtype)

    def step(count: int) -> float:
        if not damping:
            plain(count - 1, odds, m, columns, *typed)
        for _ in range(count if damping else 1):
            change[:] = 0
            careful(odds, m, columns, *typed, amount, change)
        return math.log1p(float(change.max()))

    return step
