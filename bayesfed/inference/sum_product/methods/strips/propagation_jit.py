"""The sweep over strips as a numba kernel.

Everything is a ratio of non-negative sums, in odds, through agreement tables [[a, 1], [1, a]]: no
exponential, no logarithm.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from bayesfed.inference.sum_product.methods.jit import both
from bayesfed.kernels import compile_kernel


@numba.njit(inline="always")
def contract(w: Any, vector: Any, bit: int, odds: float) -> None:
    """Apply the agreement table [[odds, 1], [1, odds]] to one row of a column's states, in
    place.
    """
    for state in range(1 << len(w)):
        if not state & bit:
            off, on = vector[state], vector[state | bit]
            vector[state], vector[state | bit] = odds * off + on, off + odds * on


@numba.njit(inline="always")
def weigh(w: Any, unary: Any, across: Any, j: int, weights: Any) -> None:
    """Write the weight of each state of column j alone; row i of the strip is bit i."""
    weights[0] = 1.0
    for i in range(len(w)):
        bit = 1 << i
        for state in range(bit):
            # Weights if the row above agrees with this one, and if not.
            joined, parted = (across[i - 1, j], 1.0) if i else (1.0, 1.0)
            if i and not state & (bit >> 1):
                joined, parted = parted, joined
            weights[state | bit] = weights[state] * unary[i, j] * joined
            weights[state] *= parted


@numba.njit(inline="always")
def scale(w: Any, vector: Any) -> None:
    """Divide by the sum, in place."""
    total = 0.0
    for state in range(1 << len(w)):
        total += vector[state]
    total = 1.0 / total
    for state in range(1 << len(w)):
        vector[state] *= total


@numba.njit(inline="always")
def blend(new: float, old: float, damping: float, worst: float) -> Any:
    """Return the damped message, and the larger of `worst` and its change: the ratio of larger to
    smaller, less 1.
    """
    mixed = new + damping * (old - new)
    return mixed, max(worst, abs(mixed - old) / min(mixed, old))


@compile_kernel
def forward(w: Any, unary: Any, pair: Any, across: Any, sums: Any, weights: Any) -> None:
    """Sum a strip from the left into `sums` ``(M, S)``; `unary` and `pair` ``(w, M)``, `across`
    ``(w - 1, M)``.
    """
    for j in range(sums.shape[0]):
        weigh(w, unary, across, j, weights)
        column = sums[j]
        if j:
            for state in range(1 << len(w)):
                column[state] = sums[j - 1, state]
            for i in range(len(w)):
                contract(w, column, 1 << i, pair[i, j - 1])
            for state in range(1 << len(w)):
                column[state] *= weights[state]
        else:
            for state in range(1 << len(w)):
                column[state] = weights[state]
        scale(w, column)


@compile_kernel
def marginal(w: Any, column: Any, back: Any, bit: int) -> float:
    """Return the odds that a row is on, from forward and backward sums of a column."""
    off, on = 0.0, 0.0
    for state in range(1 << len(w)):
        if state & bit:
            on += column[state] * back[state]
        else:
            off += column[state] * back[state]
    return on / off


@compile_kernel
def backward(
    w: Any,
    unary: Any,
    pair: Any,
    across: Any,
    sums: Any,
    weights: Any,
    back: Any,
    kept: int,
    to_unary: Any,
    to_pair: Any,
    odds: Any,
    damping: float,
) -> float:
    """Sum from the right; write the kept row's chain, divided by what went in, to the messages, and
    the marginal odds ``(w, M)`` to `odds`.

    Returns
    -------
    The largest ratio of a new message to the old one, less 1.
    """
    last, bit = sums.shape[0] - 1, 1 << kept
    worst: float = 0.0
    back[:] = 1.0
    for i in range(len(w)):
        odds[i, last] = marginal(w, sums[last], back, 1 << i)
    pending = 1.0 if last else odds[kept, 0]
    for j in range(last - 1, -1, -1):
        weigh(w, unary, across, j + 1, weights)
        for state in range(1 << len(w)):
            back[state] *= weights[state]
        scale(w, back)
        for i in range(len(w)):
            if i != kept:
                contract(w, back, 1 << i, pair[i, j])
        # The kept row's pair table, column j by column j + 1.
        column, t00, t01, t10, t11 = sums[j], 0.0, 0.0, 0.0, 0.0
        for state in range(1 << len(w)):
            if not state & bit:
                off, on = state, state | bit
                t00 += column[off] * back[off]
                t01 += column[off] * back[on]
                t10 += column[on] * back[off]
                t11 += column[on] * back[on]
        t00 *= pair[kept, j]
        t11 *= pair[kept, j]
        contract(w, back, bit, pair[kept, j])
        for i in range(len(w)):
            odds[i, j] = marginal(w, column, back, 1 << i)
        to_pair[j], worst = blend(
            math.sqrt((t11 / t10) * (t00 / t01)) / pair[kept, j], to_pair[j], damping, worst
        )
        right = math.sqrt((t01 / t00) * (t11 / t10))
        to_unary[j + 1], worst = blend(
            pending * right / unary[kept, j + 1], to_unary[j + 1], damping, worst
        )
        pending = math.sqrt((t10 / t00) * (t11 / t01)) / (odds[kept, j] if j else 1.0)
    to_unary[0], worst = blend(pending / unary[kept, 0], to_unary[0], damping, worst)
    return worst


@compile_kernel
def sweep_block(
    own: Any,
    own_pair: Any,
    across: Any,
    messages: Any,
    inbox: Any,
    odds: Any,
    down: bool,
    w: Any,
    size: int,
    damping: float,
    block: int,
) -> float:
    """Send the messages of one block's strips, one after the other; arrays are those of one batch
    entry.
    """
    rows, columns = len(w), own.shape[1]
    step = rows - 1
    unary, pair = np.empty((rows, columns)), np.empty((rows, columns))
    sums, weights, back = np.empty((columns, 1 << rows)), np.empty(1 << rows), np.empty(1 << rows)
    worst = 0.0
    for r in range(size):
        strip = block * size + (r if down else size - 1 - r)
        top = strip * step
        # Messages of other blocks come from the inbox, since those blocks may be writing.
        above = inbox if down and r == 0 else messages[0, :, strip]
        below = inbox if not down and r == 0 else messages[1, :, strip + 1]
        unary[:] = own[top : top + rows]
        pair[:] = own_pair[top : top + rows]
        unary[0] *= above[0]
        pair[0] *= above[1]
        unary[step] *= below[0]
        pair[step] *= below[1]
        forward(w, unary, pair, across[top : top + step], sums, weights)
        kept, way, to = (step, 0, strip + 1) if down else (0, 1, strip)
        moved = backward(
            w,
            unary,
            pair,
            across[top : top + step],
            sums,
            weights,
            back,
            kept,
            messages[way, 0, to],
            messages[way, 1, to],
            odds[top : top + rows],
            damping,
        )
        worst = max(worst, float(moved))
    return worst


def _sweep(
    own: Any,
    own_pair: Any,
    across: Any,
    messages: Any,
    inbox: Any,
    odds: Any,
    down: bool,
    w: Any,
    size: int,
    damping: float,
    change: Any,
) -> None:
    blocks = inbox.shape[2]
    for number in numba.prange(len(change)):
        b, block = number // blocks, number % blocks
        change[number] = sweep_block(
            own[b],
            own_pair,
            across,
            messages[:, :, b],
            inbox[:, b, block],
            odds[b],
            down,
            w,
            size,
            damping,
            block,
        )


SWEEP = both(_sweep)
