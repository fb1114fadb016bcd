"""Bounds of marginals of pairwise binary models, whatever the messages did.

The marginal of a variable is that of the root of a tree: all walks from it that do not visit a
variable twice, each ended by a fixed state where it would close a cycle. Cut at some depth, and
with any message an edge can carry in place of what was cut and of the fixed states, sums on the
tree become intervals that hold the exact log-odds.

References
----------
Weitz, Counting independent sets up to the tree threshold, STOC (2006); Jung and Shah, Inference in
binary pair-wise Markov random fields through self-avoiding walks (2006). Ihler, Accuracy bounds for
belief propagation, UAI (2007); Mooij and Kappen, Bounds on marginal probability distributions, NIPS
(2008).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.models.random_fields.ising import Ising

Floats = NDArray[np.float64]
# Visits to a variable, over all walks and roots.
WALKS = 40_000
DEEPEST = 12


@torch.no_grad()
def belief_bounds(model: Ising, evidence: Tensor) -> tuple[Tensor, Tensor]:
    """Return the lowest and highest log-odds ``(B, n)`` that the exact marginals can have, with
    evidence ``(B, n)`` in log-odds.
    """
    unary = (evidence.double().cpu() + model.symmetric_field().cpu()).numpy()
    count = unary.shape[1]
    beside: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for left, right, coupling in zip(*model.edges.tolist(), model.coupling.tolist(), strict=True):
        beside[left].append((right, coupling / 2))
        beside[right].append((left, coupling / 2))
    low, high = np.empty_like(unary), np.empty_like(unary)
    for variable in range(count):
        depth, most = 0, max(WALKS // count, len(beside[variable]) + 1)
        while depth < DEEPEST and _visits(beside, variable, depth + 1, most) <= most:
            depth += 1
        low[:, variable], high[:, variable] = _box(beside, unary, variable, [], depth)
    return torch.from_numpy(low).to(evidence.device), torch.from_numpy(high).to(evidence.device)


def _visits(beside: Sequence[Sequence[tuple[int, float]]], root: int, depth: int, most: int) -> int:
    """Return how many walks of up to `depth` steps leave a variable, or a number above `most` once
    it is passed.
    """
    ends, total = [(root, -1)], 1
    for _ in range(depth):
        ends = [
            (other, variable)
            for variable, before in ends
            for other, _ in beside[variable]
            if other != before
        ]
        total += len(ends)
        if total > most:
            break
    return total


def _box(
    beside: Sequence[Sequence[tuple[int, float]]],
    unary: Floats,
    variable: int,
    path: list[int],
    depth: int,
) -> tuple[Floats, Floats]:
    """Return the interval of a variable's log-odds ``(B,)`` on the tree behind `path`, which came
    from its last entry.
    """
    low, high = unary[:, variable].copy(), unary[:, variable].copy()
    for other, half in beside[variable]:
        if path and other == path[-1]:
            continue
        if depth == 0 or other in path:
            low -= abs(half)
            high += abs(half)
            continue
        ends = [
            _agree(end, half) for end in _box(beside, unary, other, [*path, variable], depth - 1)
        ]
        low += np.minimum(*ends)
        high += np.maximum(*ends)
    return low, high


def _agree(x: Floats, half: float) -> Floats:
    """Return the log-odds that cavity log-odds send through an agreement table."""
    sent: Floats = np.logaddexp(0.0, x + half) - np.logaddexp(0.0, x - half) - half
    return sent
