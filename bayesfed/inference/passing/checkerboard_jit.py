"""The checkerboard sweep as numba kernels. Imported only where numba is installed (extra ``fast``).

Operation for operation what `checkerboard.half_sweep` does in torch, so the two agree bit for bit: no fused
multiply-add, no reordering. Rows are independent within a half sweep, so the number of threads changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from torch import Tensor

# Below this many variables starting threads costs more than they save.
PARALLEL = 16_384


@numba.njit(inline="always")
def send(x: Any, y: Any, a: Any, one: Any, cap: Any) -> Any:
    """Return (a x + 1) / (x + a) for two cavities at the price of one division."""
    x, y = min(x, cap), min(y, cap)
    dx, dy = x + a, y + a
    inverse = one / (dx * dy)
    return (a * x + one) * (dy * inverse), (a * y + one) * (dx * inverse)


@numba.njit(inline="always")
def blend(new: Any, old: Any, damping: Any) -> Any:
    """Return the damped message and how much it changed: the ratio of larger to smaller, less 1."""
    mixed = new + damping * (old - new)
    return mixed, abs(mixed - old) / min(mixed, old)


def _half(g: Any, own: Any, other: Any, columns: int, parity: int, a_row: Any, a_column: Any, one: Any, cap: Any) -> None:
    rows = g.shape[1] - 2
    for number in numba.prange(g.shape[0] * rows):
        b, i = number // rows, number % rows + 1
        flag = (i - 1 + parity) % 2
        field, left, right, up, down = g[b, i], own[0, b, i], own[1, b, i], own[2, b, i], own[3, b, i]
        to_same, to_other, to_up, to_down = other[0, b, i], other[1, b, i][2 * flag :], other[3, b, i - 1], other[2, b, i + 1]
        for c in range(1, (columns + 1 - flag) // 2 + 1):
            across, along = field[c] * (up[c] * down[c]), field[c] * (left[c] * right[c])
            to_same[c], to_other[c - 1] = send(across * right[c], across * left[c], a_row, one, cap)
            to_up[c], to_down[c] = send(along * down[c], along * up[c], a_column, one, cap)


def _careful_half(
    g: Any, own: Any, other: Any, columns: int, parity: int, a_row: Any, a_column: Any, one: Any, cap: Any, damping: Any, change: Any
) -> None:
    rows = g.shape[1] - 2
    for number in numba.prange(g.shape[0] * rows):
        b, i = number // rows, number % rows + 1
        flag = (i - 1 + parity) % 2
        field, left, right, up, down = g[b, i], own[0, b, i], own[1, b, i], own[2, b, i], own[3, b, i]
        to_same, to_other, to_up, to_down = other[0, b, i], other[1, b, i][2 * flag :], other[3, b, i - 1], other[2, b, i + 1]
        worst = change[number]
        for c in range(1, (columns + 1 - flag) // 2 + 1):
            across, along = field[c] * (up[c] * down[c]), field[c] * (left[c] * right[c])
            same, far = send(across * right[c], across * left[c], a_row, one, cap)
            above, below = send(along * down[c], along * up[c], a_column, one, cap)
            to_same[c], moved_same = blend(same, to_same[c], damping)
            to_other[c - 1], moved_far = blend(far, to_other[c - 1], damping)
            to_up[c], moved_up = blend(above, to_up[c], damping)
            to_down[c], moved_down = blend(below, to_down[c], damping)
            worst = max(worst, moved_same, moved_far, moved_up, moved_down)
        change[number] = worst


_EXACT: dict[str, Any] = {"error_model": "numpy", "cache": True}
# nnan and nsz only let the maximum be vectorised: on finite numbers they change no bit.
_REDUCE: dict[str, Any] = {**_EXACT, "fastmath": {"nnan", "nsz"}}
half_serial, half_parallel = numba.njit(**_EXACT)(_half), numba.njit(parallel=True, **_EXACT)(_half)
careful_serial, careful_parallel = numba.njit(**_REDUCE)(_careful_half), numba.njit(parallel=True, **_REDUCE)(_careful_half)


@numba.njit(**_EXACT)
def plain_serial(count: int, g: Any, m: Any, columns: int, a_row: Any, a_column: Any, one: Any, cap: Any) -> None:
    """Make `count` sweeps on one core."""
    for _ in range(count):
        half_serial(g[0], m[0], m[1], columns, 0, a_row, a_column, one, cap)
        half_serial(g[1], m[1], m[0], columns, 1, a_row, a_column, one, cap)


@numba.njit(**_EXACT)
def plain_parallel(count: int, g: Any, m: Any, columns: int, a_row: Any, a_column: Any, one: Any, cap: Any) -> None:
    """Make `count` sweeps on every core."""
    for _ in range(count):
        half_parallel(g[0], m[0], m[1], columns, 0, a_row, a_column, one, cap)
        half_parallel(g[1], m[1], m[0], columns, 1, a_row, a_column, one, cap)


def sweeper(g: Tensor, messages: Tensor, columns: int, a: list[float], cap: float, damping: float) -> Callable[[int], float]:
    """Return the step that `settle` asks for, over these arrays in place."""
    odds, m = g.numpy(), messages.numpy()
    typed = [odds.dtype.type(value) for value in (*a, 1.0, cap)]
    amount = odds.dtype.type(damping)
    parallel = odds.size >= PARALLEL
    plain, careful = (plain_parallel, careful_parallel) if parallel else (plain_serial, careful_serial)
    change = np.zeros(odds.shape[1] * (odds.shape[2] - 2), odds.dtype)

    def step(count: int) -> float:
        if not damping:
            plain(count - 1, odds, m, columns, *typed)
        for _ in range(count if damping else 1):
            change[:] = 0
            careful(odds[0], m[0], m[1], columns, 0, *typed, amount, change)
            careful(odds[1], m[1], m[0], columns, 1, *typed, amount, change)
        return math.log1p(float(change.max()))

    return step
