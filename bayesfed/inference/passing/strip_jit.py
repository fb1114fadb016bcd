"""The strip solve as a numba kernel: blocks of rows in SIMD lanes. Imported only where numba is installed (extra ``fast``).

Everything is a ratio of non-negative sums, in odds: no exponential, no logarithm.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from torch import Tensor

# Lanes a thread works on at a time: one AVX-512 register of float64.
WIDTH = 8
_EXACT: dict[str, Any] = {"error_model": "numpy", "cache": True, "fastmath": {"nnan", "nsz"}}


@numba.njit(inline="always")
def blend(new: Any, old: Any, damping: Any) -> Any:
    """Return the damped message and how much it changed: the ratio of larger to smaller, less 1."""
    mixed = new + damping * (old - new)
    return mixed, abs(mixed - old) / min(mixed, old)


@numba.njit(**_EXACT)
def forward(other: Any, other_pair: Any, kept: Any, kept_pair: Any, across: Any, sums: Any) -> None:
    """Sum a strip from the left: states (other, kept) = 00, 01, 10, 11 in `sums` ``(M, 4, lanes)``, each column scaled to sum 1.

    `other` and `kept` are pairs of arrays whose product is meant: a row's own odds and its message.
    """
    columns, lanes = across.shape
    for n in range(lanes):
        a, b = other[0][0, n] * other[1][0, n], kept[0][0, n] * kept[1][0, n]
        both = a * b * across[0, n]
        scale = 1.0 / (1.0 + a + b + both)
        sums[0, 0, n], sums[0, 1, n], sums[0, 2, n], sums[0, 3, n] = scale, b * scale, a * scale, both * scale
    for j in range(1, columns):
        for n in range(lanes):
            a, b = other[0][j, n] * other[1][j, n], kept[0][j, n] * kept[1][j, n]
            p, q = other_pair[0][j - 1, n] * other_pair[1][j - 1, n], kept_pair[0][j - 1, n] * kept_pair[1][j - 1, n]
            f00, f01, f10, f11 = sums[j - 1, 0, n], sums[j - 1, 1, n], sums[j - 1, 2, n], sums[j - 1, 3, n]
            s00, s01, s10, s11 = f00 + f10, f01 + f11, f00 + p * f10, f01 + p * f11
            f00, f01 = s00 + s01, (s00 + q * s01) * b
            f10, f11 = (s10 + s11) * a, (s10 + q * s11) * (a * b * across[j, n])
            scale = 1.0 / (f00 + f01 + f10 + f11)
            sums[j, 0, n], sums[j, 1, n], sums[j, 2, n], sums[j, 3, n] = f00 * scale, f01 * scale, f10 * scale, f11 * scale


@numba.njit(**_EXACT)
def backward(
    other: Any,
    other_pair: Any,
    kept: Any,
    kept_pair: Any,
    across: Any,
    sums: Any,
    carry: Any,
    unary: Any,
    pair: Any,
    odds: Any,
    damping: float,
    change: Any,
) -> None:
    """Sum from the right and write the kept row's chain, less what went in, to the messages `unary` and `pair`; its marginal odds to `odds`."""
    columns, lanes = across.shape
    last = columns - 1
    for n in range(lanes):
        a, b = other[0][last, n] * other[1][last, n], kept[0][last, n] * kept[1][last, n]
        carry[0, n], carry[1, n], carry[2, n], carry[3, n] = 1.0, b, a, a * b * across[last, n]
        odds[last, n] = (sums[last, 1, n] + sums[last, 3, n]) / (sums[last, 0, n] + sums[last, 2, n])
        carry[4, n] = 1.0 if last else odds[last, n]
    for j in range(last - 1, -1, -1):
        for n in range(lanes):
            p, q = other_pair[0][j, n] * other_pair[1][j, n], kept_pair[0][j, n] * kept_pair[1][j, n]
            w00, w01, w10, w11 = carry[0, n], carry[1, n], carry[2, n], carry[3, n]
            g00, g01, g10, g11 = w00 + w10, w01 + w11, w00 + p * w10, w01 + p * w11
            f00, f01, f10, f11 = sums[j, 0, n], sums[j, 1, n], sums[j, 2, n], sums[j, 3, n]
            # The kept row's pair table, column j by column j + 1.
            t00, t01 = f00 * g00 + f10 * g10, f00 * g01 + f10 * g11
            t10, t11 = f01 * g00 + f11 * g10, q * (f01 * g01 + f11 * g11)
            a, b = other[0][j, n] * other[1][j, n], kept[0][j, n] * kept[1][j, n]
            b00, b01, b10, b11 = g00 + g01, (g00 + q * g01) * b, (g10 + g11) * a, (g10 + q * g11) * (a * b * across[j, n])
            scale = 1.0 / (b00 + b01 + b10 + b11)
            carry[0, n], carry[1, n], carry[2, n], carry[3, n] = b00 * scale, b01 * scale, b10 * scale, b11 * scale
            first, second, marginal = t10 / t00, t01 / t00, (t10 + t11) / (t00 + t01)
            next_kept = kept[0][j + 1, n] * kept[1][j + 1, n]
            pair[j, n], moved = blend((t11 / t10) * (t00 / t01) / q, pair[j, n], damping)
            unary[j + 1, n], moved_too = blend(carry[4, n] * second / next_kept, unary[j + 1, n], damping)
            change[n] = max(change[n], moved, moved_too)
            odds[j, n] = marginal
            carry[4, n] = first / marginal if j else first
    for n in range(lanes):
        unary[0, n], moved = blend(carry[4, n] / (kept[0][0, n] * kept[1][0, n]), unary[0, n], damping)
        change[n] = max(change[n], moved)


def _down(own: Any, own_pair: Any, across: Any, down: Any, up: Any, odds: Any, damping: float, change: Any) -> None:
    rows, columns, lanes = across.shape
    for chunk in numba.prange((lanes + WIDTH - 1) // WIDTH):
        s = slice(chunk * WIDTH, min(lanes, (chunk + 1) * WIDTH))
        sums, carry = np.empty((columns, 4, WIDTH))[:, :, : s.stop - s.start], np.empty((5, WIDTH))
        for r in range(rows):
            other, other_pair = (own[r][:, s], down[0, r][:, s]), (own_pair[r][:, s], down[1, r][:, s])
            kept, kept_pair = (own[r + 1][:, s], up[0, r + 1][:, s]), (own_pair[r + 1][:, s], up[1, r + 1][:, s])
            forward(other, other_pair, kept, kept_pair, across[r][:, s], sums)
            backward(
                other, other_pair, kept, kept_pair, across[r][:, s], sums, carry,
                down[0, r + 1][:, s], down[1, r + 1][:, s], odds[r + 1][:, s], damping, change[s],
            )  # fmt: skip


def _up(own: Any, own_pair: Any, across: Any, down: Any, up: Any, odds: Any, damping: float, change: Any) -> None:
    rows, columns, lanes = across.shape
    for chunk in numba.prange((lanes + WIDTH - 1) // WIDTH):
        s = slice(chunk * WIDTH, min(lanes, (chunk + 1) * WIDTH))
        sums, carry = np.empty((columns, 4, WIDTH))[:, :, : s.stop - s.start], np.empty((5, WIDTH))
        for r in range(rows - 1, -1, -1):
            other, other_pair = (own[r + 1][:, s], up[0, r + 1][:, s]), (own_pair[r + 1][:, s], up[1, r + 1][:, s])
            kept, kept_pair = (own[r][:, s], down[0, r][:, s]), (own_pair[r][:, s], down[1, r][:, s])
            forward(other, other_pair, kept, kept_pair, across[r][:, s], sums)
            backward(
                other, other_pair, kept, kept_pair, across[r][:, s], sums, carry,
                up[0, r][:, s], up[1, r][:, s], odds[r][:, s], damping, change[s],
            )  # fmt: skip


_down_parallel, _up_parallel = (numba.njit(parallel=True, **_EXACT)(function) for function in (_down, _up))
_down_serial, _up_serial = (numba.njit(**_EXACT)(function) for function in (_down, _up))


def passes(
    own: Tensor, own_pair: Tensor, across: Tensor, messages: Tensor, odds: Tensor, damping: float
) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return the pass down and the pass up over these arrays in place; each returns the largest ratio of new to old, less 1."""
    arrays = [values.numpy() for values in (own, own_pair, across, messages[0], messages[1], odds)]
    change = np.zeros(own.shape[-1])
    parallel = own.shape[-1] > WIDTH

    def make(kernel: Any) -> Callable[[], float]:
        def sweep() -> float:
            change[:] = 0
            kernel(*arrays, damping, change)
            return float(change.max())

        return sweep

    return make(_down_parallel if parallel else _down_serial), make(_up_parallel if parallel else _up_serial)
