"""Chains as a numba kernel."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from bayesfed.inference.sum_product.methods.jit import both, chosen

# Variables from which threads pay.
PARALLEL = 8192


def _solve(g: Any, a: Any, left: Any, right: Any) -> None:
    length = g.shape[1]
    for c in numba.prange(len(g)):
        table = a[c % len(a)]
        left[c, 0], right[c, length - 1] = 1.0, 1.0
        for j in range(length - 1):
            x, i = g[c, j] * left[c, j], length - 1 - j
            left[c, j + 1] = (table[j] * x + 1.0) / (x + table[j])
            x = g[c, i] * right[c, i]
            right[c, i - 1] = (table[i - 1] * x + 1.0) / (x + table[i - 1])


_SOLVE = both(_solve)


def solve_chains(unary: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Return the messages that each variable of C chains receives from its left and from its right,
    in log-odds; computed with odds in float64.

    Parameters
    ----------
    unary
        Log-odds ``(..., C, M)``.
    half
        Half the couplings, ``(C, M - 1)``.
    """
    g = unary.double().clamp(-300, 300).exp().flatten(0, -2).numpy()
    left, right = np.empty_like(g), np.empty_like(g)
    chosen(_SOLVE, g.size, PARALLEL)(g, half.double().exp().contiguous().numpy(), left, right)
    logs = (
        torch.from_numpy(values).log().to(unary.dtype).reshape(unary.shape)
        for values in (left, right)
    )
    return next(logs), next(logs)
