"""Belief propagation on edge lists as numba kernels, in odds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from bayesfed.inference.sum_product.methods.edges.wiring import Wiring
from bayesfed.inference.sum_product.methods.jit import both, chosen
from bayesfed.inference.sum_product.methods.settle import Damper
from bayesfed.models.random_fields.ising import Ising

# Updates of one call from which threads pay: measured on colours of 256 to 16384 variables with
# four neighbours.
PARALLEL = 2048


def colour_sweep(
    g: Any, m: Any, members: Any, start: Any, reverse: Any, a: Any, damping: float, change: Any
) -> None:
    """Send every message of the variables `members`; slots of `m` ``(B, 2 E)`` are sorted by the
    variable that receives them.
    """
    count = len(members)
    for number in numba.prange(g.shape[0] * count):
        b, v = number // count, members[number % count]
        product, worst = g[b, v], 0.0
        for slot in range(start[v], start[v + 1]):
            product *= m[b, slot]
        for slot in range(start[v], start[v + 1]):
            cavity = product / m[b, slot]
            new, old = (a[slot] * cavity + 1.0) / (cavity + a[slot]), m[b, reverse[slot]]
            new += damping * (old - new)
            m[b, reverse[slot]] = new
            worst = max(worst, abs(new - old) / min(new, old))
        change[b, v] = worst


_COLOUR_SWEEP = both(colour_sweep)


def stepper(
    model: Ising, wiring: Wiring, unary: Tensor, messages: Tensor, damper: Damper
) -> Callable[[int], float]:
    """Return the step for `settle`; it writes log messages ``(B, 2 E)`` into `messages`."""
    order = torch.argsort(wiring.target, stable=True)
    slot = torch.empty_like(order)
    slot[order] = torch.arange(len(order))
    start = np.concatenate(
        [[0], torch.bincount(wiring.target, minlength=len(wiring.field)).cumsum(0).numpy()]
    )
    reverse = slot[wiring.reverse(order)].numpy()
    g, m = unary.double().exp().numpy(), messages.double()[:, order].exp().numpy()
    a, change = wiring.half[order].exp().numpy(), np.zeros(unary.shape)
    members = [
        (model.colours == colour).nonzero(as_tuple=True)[0].numpy()
        for colour in model.colours.unique()
    ]
    kernels = [chosen(_COLOUR_SWEEP, len(g) * len(group), PARALLEL) for group in members]

    def step(count: int) -> float:
        for _ in range(count):
            for group, kernel in zip(members, kernels, strict=True):
                kernel(g, m, group, start, reverse, a, damper.share, change)
        messages.copy_(torch.from_numpy(m).log()[:, slot])
        return math.log1p(float(change.max()))

    return step


@numba.njit(inline="always")
def _softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


def _two_passes(
    order: Any, parent: Any, edge: Any, source: Any, half: Any, belief: Any, m: Any
) -> None:
    """Write log messages ``(B, 2 E)``, from the leaves to the roots, then back."""
    count = len(half) // 2
    for b in numba.prange(len(belief)):
        for number in range(len(order) - 1, -1, -1):
            v = order[number]
            if parent[v] >= 0:
                # An edge runs from left to right: it carries the message up if it starts at the
                # child.
                e = edge[v]
                up = e if source[e] == v else e + count
                h, x = half[e], belief[b, v]
                m[b, up] = _softplus(x + h) - _softplus(x - h) - h
                belief[b, parent[v]] += m[b, up]
        for v in order:
            if parent[v] >= 0:
                e = edge[v]
                up, down = (e, e + count) if source[e] == v else (e + count, e)
                h, x = half[e], belief[b, parent[v]] - m[b, up]
                m[b, down] = _softplus(x + h) - _softplus(x - h) - h
                belief[b, v] += m[b, down]


TWO_PASSES = both(_two_passes)
