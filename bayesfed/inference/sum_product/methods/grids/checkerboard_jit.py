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
# Rows of a block.
BLOCK = 32


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
def renew(
    turn: int,
    place: int,
    i: int,
    g: Any,
    m: Any,
    columns: int,
    constants: Any,
    worst: Any,
) -> None:
    """Renew the messages that row `i` sends in a turn.

    With `worst` ``(W + 2)`` they are damped, and it is raised to the change of any message from a
    cell. With None, which numba compiles apart, this takes half as long.
    """
    parity, (a_row, a_column, one, cap, damping) = turn % 2, constants
    own, other, flag, field = m[parity], m[1 - parity], (i - 1 + parity) % 2, g[parity, place, i]
    left, right, up, down = own[0, place, i], own[1, place, i], own[2, place, i], own[3, place, i]
    to_same, to_other = other[0, place, i], other[1, place, i, 2 * flag :]
    to_up, to_down = other[3, place, i - 1], other[2, place, i + 1]
    for c in range(1, (columns + 1 - flag) // 2 + 1):
        across, along = field[c] * (up[c] * down[c]), field[c] * (left[c] * right[c])
        same, far = send(across * right[c], across * left[c], a_row, one, cap)
        above, below = send(along * down[c], along * up[c], a_column, one, cap)
        if worst is not None:
            # The maximum is taken afterwards: with a reduction in here, the loop would not be
            # vectorised.
            same, moved = blend(same, to_same[c], damping, worst[c])
            far, moved = blend(far, to_other[c - 1], damping, moved)
            above, moved = blend(above, to_up[c], damping, moved)
            below, worst[c] = blend(below, to_down[c], damping, moved)
        to_same[c], to_other[c - 1] = same, far
        to_up[c], to_down[c] = above, below


def sweeps(
    count: int,
    g: Any,
    m: Any,
    columns: int,
    constants: Any,
    change: Any,
) -> None:
    """Make `count` sweeps over `g` ``(2, B, K + 2, W + 2)`` and `m` ``(2, 4, B, K + 2, W + 2)`` in
    place, and raise `change` ``(2, blocks, W + 2)`` to the changes of messages in the last one.

    A row may take its turn as soon as its neighbours have taken the one before. So blocks of rows,
    which a core's cache holds, take all turns, each time without their outermost rows, and then the
    rows between the blocks take those they missed. This changes no bit.
    """
    rows, turns = g.shape[2] - 2, 2 * count
    blocks = max(rows // max(BLOCK, 2 * turns), 1)
    for between in range(2):
        for block in numba.prange(g.shape[1] * blocks):
            place, number, worst = block // blocks, block % blocks, change[between, block]
            top, bottom = number * rows // blocks, (number + 1) * rows // blocks
            for turn in range(turns):
                inner = turn if top else 0
                first, last = top + inner, bottom - (turn if bottom < rows else 0)
                if between:
                    first, last = top - inner, top + inner
                if turn == turns - 2:
                    worst[:] = 0
                for i in range(first + 1, last + 1):
                    if constants[-1] or turn >= turns - 2:
                        renew(turn, place, i, g, m, columns, constants, worst)
                    else:
                        renew(turn, place, i, g, m, columns, constants, None)


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
    constants = tuple(odds.dtype.type(value) for value in (*a, 1.0, cap, damping))
    kernel = chosen(_SWEEPS, odds.size, PARALLEL)
    # In numpy: after a maximum, torch's threads would keep spinning on the cores that the kernel
    # needs.
    change = np.empty((2, odds.shape[1] * (odds.shape[2] // BLOCK + 1), odds.shape[3]), odds.dtype)

    def step(count: int) -> float:
        change[:] = 0
        kernel(count, odds, m, columns, constants, change)
        return math.log1p(float(change.max()))

    return step
