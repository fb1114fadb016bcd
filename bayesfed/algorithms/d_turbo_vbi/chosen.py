"""Which weights stay active when a density is asked for: exactly so many, the most probable ones of
all layers.

A field moves the log-odds of all entries together, so that no field gives a number in between where
many entries have equal evidence, as inactive ones have. The order of the entries does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.density import HELD
from bayesfed.models import Declared
from bayesfed.trees import Tree

# Log-odds that differ by less are equal: they differ by rounding.
DECIMALS = 4
# Multiples of it, modulo 1, spread equal entries over rows and layers.
GOLDEN = 0.6180339887498949


class Candidates(NamedTuple):
    """Entries of a site, of which the most probable ones are chosen.

    Parameters
    ----------
    log_odds, active
        Log-odds of q(s), and which entries were active before, ``(M, N)``.
    floor
        Number of entries that are chosen in any case.
    rows
        Whether every row has an entry that is chosen.
    unit
        Sides of the blocks of entries that are chosen as a whole; they divide ``(M, N)``.
    """

    log_odds: Tensor
    active: Tensor
    floor: int
    rows: bool = False
    unit: tuple[int, int] = (1, 1)

    def blocks(self) -> tuple[Tensor, Tensor]:
        """Return the mean log-odds of every block, and whether it has an active entry."""
        (rows, columns), (high, wide) = self.active.shape, self.unit
        tiled = rows // high, high, columns // wide, wide
        odds = self.log_odds.double().reshape(tiled).mean((1, 3))
        return odds.cpu(), self.active.reshape(tiled).any(3).any(1).cpu()

    def whole(self, blocks: Tensor) -> Tensor:
        """Return values of blocks ``(M / high, N / wide)`` as those of their entries."""
        high, wide = self.unit
        return blocks.repeat_interleave(high, 0).repeat_interleave(wide, 1)


def chosen(sites: Mapping[str, Candidates], wanted: int) -> tuple[dict[str, Tensor], float]:
    """Return log-odds by site of which `wanted` are above 0, or the nearest number that blocks and
    floors allow, and what was subtracted from all of them.

    First come the entries that floors hold, then the most probable ones, among equals those that
    were active. One that is chosen only for the number's sake has q(s) = 0.9.
    """
    blocks = {name: site.blocks() for name, site in sites.items()}
    odds, active = (np.concatenate([pair[i].flatten() for pair in blocks.values()]) for i in (0, 1))
    counts = [len(pair[0].flatten()) for pair in blocks.values()]
    size = np.repeat([site.unit[0] * site.unit[1] for site in sites.values()], counts)
    order = np.lexsort((np.arange(len(odds)) * GOLDEN % 1, ~active, -odds.round(DECIMALS)))
    place = np.empty(len(odds), dtype=np.int64)
    place[order] = np.arange(len(odds))
    held, ends = np.zeros(len(odds), dtype=bool), np.cumsum(counts)
    for site, (best, _), end in zip(sites.values(), blocks.values(), ends, strict=True):
        own = np.arange(end - best.numel(), end)
        ranked = own[place[own].argsort()]
        held[ranked[np.arange(len(own)) * size[own] < site.floor]] = True
        if site.rows:
            rows = own.reshape(best.shape)
            held[np.take_along_axis(rows, place[rows].argmin(1)[:, None], 1)] = True
    order = order[np.argsort(~held[order], kind="stable")]
    number = int(np.abs(np.cumsum(size[order]) - wanted).argmin()) + 1
    taken = np.zeros(len(odds), dtype=bool)
    taken[order[: max(number, held.sum())]] = True
    # Half-way between the last that is chosen and the first that is not.
    last, first = odds[taken & ~held], odds[~taken]
    between = (
        0.0
        if not len(first)
        else float(first.max() if not len(last) else (first.max() + last.min()) / 2)
    )
    result = {}
    for (name, site), part in zip(sites.items(), np.split(taken, ends[:-1]), strict=True):
        on = site.whole(torch.from_numpy(part).view(blocks[name][0].shape)).to(site.active.device)
        moved = site.log_odds - between
        result[name] = torch.where(on, torch.where(moved > 0, moved, HELD), moved.clamp(max=0.0))
    return result, between


def candidates(
    declared: Declared, log_odds: Tree, active: Tree, least: Mapping[str, int]
) -> dict[str, Candidates]:
    """Return what is chosen from, by site, given log-odds and support before.

    No output of a layer is cut off or, where entries go in clusters, no output of the last layer.
    """
    found = {}
    for name, site in declared.sites.items():
        one = Candidates(log_odds[name], active[name], least[name])
        if site.clusters is None:
            one = one._replace(rows=site.rows_are_outputs(declared.net))
        else:
            outputs = name == declared.last and site.clusters.whole_rows
            floor = math.prod(site.matrix) if outputs else one.floor
            one = one._replace(unit=site.clusters.unit, floor=floor)
        found[name] = one
    return found
