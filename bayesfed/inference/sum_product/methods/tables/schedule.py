"""In which order the factors of a flat graph send their messages, and the index tensors of the
kernel.

Factors send in batches. On a loopy graph the batches are colours: factors of a batch share no
variable, so no message is computed from a neighbour that changes at the same time, which is what
makes flooding oscillate. On a forest they are levels of depth, visited from the leaves to the root
and back, which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.inference.sum_product.graphs.flat import TableGroup, Tables
from bayesfed.models.random_fields.ising import breadth_first, components
from bayesfed.models.random_fields.kept import kept

Ints = NDArray[np.int64]

COLOURS = 62
"""Largest number of batches of a loopy graph, one for each bit of a word. If a variable has more
factors, some of them send together.
"""
# Entries, over all factors with one table, from which a batch of their own pays.
_SHARE = 1 << 14


@dataclass(frozen=True)
class Batch:
    """F factors of one group that send at the same time.

    Parameters
    ----------
    group
        Number of the group.
    factors
        ``(F,)``, numbers of the factors in the group.
    cards
        Number of states at each position of the table.
    scope
        ``(arity, F)``, variables.
    runs
        For each run of k positions with as many states: that number, and the variables ``(k F)``.
    weights, peak
        ``(1, X, 1 or F)``, tables over the X joint states divided by their largest entry, and
        ``(1 or F,)``, its log. One column if all factors have the same table.
    apart
        Whether no two of the factors share a variable.
    """

    group: int
    factors: Tensor
    cards: tuple[int, ...]
    scope: Tensor
    runs: tuple[tuple[int, Tensor], ...]
    weights: Tensor
    peak: Tensor
    apart: bool

    def gathered(self, values: Tensor) -> list[Tensor]:
        """Return values ``(B, C, n)`` of the variables of each run, ``(B, states, k, F)``."""
        return [
            values.gather(2, scope.expand(len(values), card, -1)).view(
                len(values), card, -1, len(self.factors)
            )
            for card, scope in self.runs
        ]


@dataclass(frozen=True)
class Program:
    """The schedule of one sweep.

    Parameters
    ----------
    batches, order
        The batches, and the order in which they send.
    forest
        Whether the graph has no cycle: then a single sweep is exact.
    hard
        Whether a table forbids a combination.
    degree
        ``(n,)``, number of factors of each variable.
    """

    batches: tuple[Batch, ...]
    order: tuple[int, ...]
    forest: bool
    hard: bool
    degree: Tensor


@kept
def compile_tables(model: Tables, dtype: torch.dtype, device: torch.device) -> Program:
    """Return the schedule of a model; it is kept as long as the model exists."""
    count = model.cards.numel()
    scopes = [group.scope.cpu().numpy().astype(np.int64) for group in model.groups]
    stages = _depths(scopes, count)
    forest = stages is not None
    if stages is None:
        stages = _colours(scopes, count)
    keyed = [
        (stage, number, _batch(model.groups[number], number, rows, dtype, device, forest))
        for number, stage_of in enumerate(stages)
        for stage, rows in _cut(model.groups[number], stage_of)
    ]
    batches = tuple(batch for *_, batch in sorted(keyed, key=lambda item: item[:2]))
    order = tuple(range(len(batches)))
    degree = np.bincount(
        np.concatenate([np.zeros(0, np.int64), *(scope.reshape(-1) for scope in scopes)]),
        minlength=count,
    )
    hard = any(torch.isneginf(group.tables).any() for group in model.groups)
    return Program(
        batches,
        order[::-1] + order if forest else order,
        forest,
        hard,
        torch.from_numpy(degree).to(device, dtype),
    )


def _cut(group: TableGroup, stage_of: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield (stage, factors). Factors with one table form a batch of their own where there are
    enough of them.
    """
    which, entries = group.which.cpu().numpy(), math.prod(group.tables.shape[1:])
    rows = np.lexsort((which, stage_of))
    for part in np.split(rows, np.flatnonzero(np.diff(stage_of[rows])) + 1):
        if not part.size:
            continue
        borders = np.flatnonzero(np.diff(which[part])) + 1
        pieces = (
            np.split(part, borders)
            if part.size * entries >= _SHARE * (borders.size + 1)
            else [part]
        )
        for piece in pieces:
            yield int(stage_of[piece[0]]), piece


def _batch(
    group: TableGroup,
    number: int,
    rows: Ints,
    dtype: torch.dtype,
    device: torch.device,
    forest: bool,
) -> Batch:
    factors = torch.from_numpy(rows)
    scope = group.scope.cpu()[factors].T.contiguous().to(device)
    which = group.which.cpu()[factors]
    chosen = which[:1] if (which == which[0]).all() else which
    logs = group.tables.cpu().double().flatten(1)[chosen].T
    peak = logs.amax(0)
    # Only forbidden combinations have weight zero: exp alone would round small weights to zero too.
    weights = torch.where(
        torch.isneginf(logs), 0.0, (logs - peak).exp().clamp_min(torch.finfo(dtype).tiny)
    )
    apart = not forest and int(torch.bincount(scope.reshape(-1)).max()) == 1
    cards = tuple(group.tables.shape[1:])
    lengths = [(card, len([*same])) for card, same in groupby(cards)]
    parts = scope.split([length for _, length in lengths])
    return Batch(
        number,
        factors.to(device),
        cards,
        scope,
        tuple((card, part.reshape(-1)) for (card, _), part in zip(lengths, parts, strict=True)),
        weights[None].to(device, dtype).contiguous(),
        peak.to(device, dtype),
        apart,
    )


def _colours(scopes: list[Ints], count: int) -> list[Ints]:
    """Colour the factors so that those of one colour share no variable: each takes the lowest free
    colour once no neighbour of higher rank waits.

    References
    ----------
    Jones and Plassmann, A parallel graph coloring heuristic, SIAM J. Sci. Comput. 14 (1993).
    """
    borders = np.cumsum([0, *map(len, scopes)])
    rank_of = np.random.default_rng(0).permutation(borders[-1]) + 1
    ranks = [rank_of[start:stop] for start, stop in pairwise(borders)]
    colours = [np.empty(len(scope), np.int64) for scope in scopes]
    waiting = [np.arange(len(scope)) for scope in scopes]
    used = np.zeros(count, np.int64)
    while any(rows.size for rows in waiting):
        highest = np.zeros(count, np.int64)
        for scope, rank, rows in zip(scopes, ranks, waiting, strict=True):
            for column in scope.T:
                np.maximum.at(highest, column[rows], rank[rows])
        for number, (scope, rank, rows) in enumerate(zip(scopes, ranks, waiting, strict=True)):
            at = scope[rows]
            free = ~np.bitwise_or.reduce(used[at], axis=1) & ((1 << COLOURS) - 1)
            full = free == 0
            first = (highest[at] == rank[rows, None]).all(1) & ~full
            lowest = (free & -free)[first]
            colours[number][rows[first]] = np.log2(lowest).astype(np.int64)
            used[at[first]] |= lowest[:, None]
            # A variable with more factors than colours: the rest of them send together, and the sum
            # of their changes is added.
            colours[number][rows[full]] = rank[rows[full]] % COLOURS
            waiting[number] = rows[~(first | full)]
    return colours


def _depths(scopes: list[Ints], count: int) -> list[Ints] | None:
    """Return the distance of each factor from the root, in the middle of its tree; None if there is
    a cycle.
    """
    borders = np.cumsum([0, *map(len, scopes)])
    total, none = int(borders[-1]), np.zeros(0, np.int64)
    variable = np.concatenate([none, *(scope.reshape(-1) for scope in scopes)])
    factor = np.concatenate(
        [
            none,
            *(
                count + start + np.arange(scope.size) // scope.shape[1]
                for start, scope in zip(borders, scopes, strict=False)
            ),
        ]
    )
    ends = np.stack([variable, factor])
    parts, part = components(count + total, *ends)
    if variable.size != count + total - parts:
        return None

    def distances(roots: Ints) -> Ints:
        return breadth_first(count + total, ends, roots)[2]

    def extreme(values: Ints) -> Ints:
        """Return the variable with the smallest value in each tree."""
        order = np.lexsort((values[:count], part[:count]))
        least: Ints = order[np.concatenate([[True], np.diff(part[order]) > 0])]
        return least

    one = distances(extreme(-distances(extreme(np.zeros(count, np.int64)))))
    other = distances(extreme(-one))
    depth = distances(extreme(np.maximum(one, other)))[count:]
    return [depth[start:stop] for start, stop in pairwise(borders)]
