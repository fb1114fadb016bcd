"""The overlaps of regions, sorted into batches that are updated together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.plurals import plural
from bayesfed.inference.sum_product.methods.regions.choice import Price, Scope


@dataclass(frozen=True)
class Part:
    """P overlaps of inner regions with outer ones of one shape.

    Parameters
    ----------
    group
        Number of the shape.
    gone, kept
        Axes of the outer table ``(B, F, *cards)`` that are summed out; and for each axis whether it
        stays.
    outer, inner
        ``(P,)``, the place of the outer region in its group and of the inner one in its batch.
    """

    group: int
    gone: tuple[int, ...]
    kept: tuple[bool, ...]
    outer: Tensor
    inner: Tensor


@dataclass(frozen=True)
class Batch:
    """Inner regions of one shape, no two of which are in one outer region.

    Parameters
    ----------
    cards
        Number of states of each axis.
    power
        ``(I,)``, ``1 / (number of outer regions + counting number)``.
    counting
        ``(I,)``, the counting numbers.
    parts
        Their overlaps.
    """

    cards: tuple[int, ...]
    power: Tensor
    counting: Tensor
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class RegionWiring:
    """Outer regions by shape, and the batches of inner regions.

    Parameters
    ----------
    groups
        The scopes of the outer regions of each shape, sorted.
    cards
        The shape of each group.
    place
        For each outer region, its group and its place there.
    batches
        The inner regions.
    """

    groups: tuple[tuple[tuple[int, ...], ...], ...]
    cards: tuple[tuple[int, ...], ...]
    place: dict[Scope, tuple[int, int]]
    batches: tuple[Batch, ...]

    def price(self) -> Price:
        """Return what a sweep costs."""
        sizes = [math.prod(cards) for cards in self.cards]
        parts = [part for batch in self.batches for part in batch.parts]
        return Price(
            regions=sum(map(len, self.groups)),
            overlaps=sum(len(batch.power) for batch in self.batches),
            entries=sum(size * len(group) for size, group in zip(sizes, self.groups, strict=True)),
            work=sum(sizes[part.group] * len(part.outer) for part in parts),
            parts=len(parts),
        )

    @staticmethod
    def of(
        cards: Sequence[int],
        outer: Sequence[Scope],
        counting: dict[Scope, int],
        device: torch.device,
    ) -> RegionWiring:
        """Sort regions into groups and batches.

        Raises
        ------
        ArgumentError
            If an inner region is counted so often that its update is undefined.
        """
        shapes: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
        place: dict[Scope, tuple[int, int]] = {}
        numbers: dict[tuple[int, ...], int] = {}
        holds: dict[int, list[Scope]] = defaultdict(list)
        for region in outer:
            scope = tuple(sorted(region))
            shape = tuple(cards[variable] for variable in scope)
            place[region] = numbers.setdefault(shape, len(numbers)), len(shapes[shape])
            shapes[shape].append(scope)
            for variable in region:
                holds[variable].append(region)
        coloured: dict[tuple[tuple[int, ...], int], list[Scope]] = defaultdict(list)
        above = {
            region: [larger for larger in holds[min(region)] if region <= larger]
            for region in counting
        }
        used: dict[Scope, set[int]] = defaultdict(set)
        for region in sorted(counting, key=lambda region: (-len(region), sorted(region))):
            taken = set().union(*(used[larger] for larger in above[region]))
            colour = next(number for number in range(len(taken) + 1) if number not in taken)
            for larger in above[region]:
                used[larger].add(colour)
            coloured[tuple(cards[variable] for variable in sorted(region)), colour].append(region)
        batches = [
            _batch(shape, regions, above, counting, place, device)
            for (shape, _), regions in coloured.items()
        ]
        return RegionWiring(
            tuple(map(tuple, shapes.values())), tuple(shapes), place, tuple(batches)
        )


def _batch(
    cards: tuple[int, ...],
    regions: list[Scope],
    above: dict[Scope, list[Scope]],
    counting: dict[Scope, int],
    place: dict[Scope, tuple[int, int]],
    device: torch.device,
) -> Batch:
    overlaps: dict[tuple[int, tuple[bool, ...]], list[tuple[int, int]]] = defaultdict(list)
    for number, region in enumerate(regions):
        weight = len(above[region]) + counting[region]
        if weight <= 0:
            raise ArgumentError(
                "infer method 'gbp'",
                "overlaps whose update is defined",
                f"{sorted(region)} in {plural(len(above[region]), 'region')}, "
                f"counted {plural(counting[region], 'time')}",
                "regions that overlap less, as regions=[(0, 1, 2), ...]",
            )
        for larger in above[region]:
            group, row = place[larger]
            overlaps[group, tuple(variable in region for variable in sorted(larger))].append(
                (row, number)
            )
    parts = []
    for (group, kept), rows in overlaps.items():
        outer, inner = torch.tensor(rows, device=device).T
        parts.append(
            Part(
                group,
                tuple(axis + 2 for axis, stays in enumerate(kept) if not stays),
                kept,
                outer,
                inner,
            )
        )
    weights = [len(above[region]) + counting[region] for region in regions]
    power = 1 / torch.tensor(weights, dtype=torch.float64, device=device)
    counted = torch.tensor(
        [counting[region] for region in regions], dtype=torch.float64, device=device
    )
    return Batch(cards, power, counted, tuple(parts))
