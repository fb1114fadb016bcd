"""Regions: the short cycles of a graph, the blocks of a grid, their overlaps, and how often each is
counted.

Outer regions hold every factor. Inner regions are their intersections, and intersections of these.
With counting numbers ``c_R = 1 - sum of c_S over the regions S that contain R`` every factor and
every variable counts once (Kikuchi).

References
----------
Yedidia, Freeman and Weiss, Constructing free-energy approximations, IEEE Trans. Inf. Theory 51
(2005), section VI: the cluster variation method.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass
from itertools import combinations

from bayesfed.errors import ArgumentError

Scope = frozenset[int]
# Most entries of a region's table, and most regions that are found by themselves.
LARGEST, MOST = 2**16, 20_000
# Pairs of neighbours, or of regions, that are looked at: about ten seconds.
PAIRS = 2**24
# Entries of all regions, batch included: 512 MiB of float64, a few times over in a run.
ENTRIES = 2**26
# Entries of all sweeps of a run: one or two minutes on a core. Strips settle in few sweeps.
RUN, RUN_OF_STRIPS = 2**31, 2**36
# What an update of overlaps costs whatever their size, in entries.
PER_PART = 2**12
# Fewer sweeps than these are no run.
FEWEST = 20


def cycles(cards: Sequence[int], scopes: Iterable[Sequence[int]]) -> list[Scope]:
    """Return the maximal cliques, or their triangles if their tables do not fit, and the cycles of
    four whose edges are in no clique of three.

    Cliques in place of their triangles: triangles that overlap in many ways are counted with
    numbers far from 1, and the messages diverge.

    Raises
    ------
    ArgumentError
        If there are more than `MOST`, or variables have too many neighbours to look for them.
    """
    import networkx as nx

    beside: dict[int, set[int]] = defaultdict(set)
    for scope in scopes:
        for one, two in combinations(scope, 2):
            beside[one].add(two)
            beside[two].add(one)

    def fits(region: Scope) -> bool:
        return math.prod(cards[variable] for variable in region) <= LARGEST

    def alone(one: int, two: int, three: int, four: int) -> bool:
        return not any(
            beside[a] & beside[b] for a, b in ((one, two), (one, three), (four, two), (four, three))
        )

    _check_pairs(beside.values())
    graph: nx.Graph[int] = nx.Graph()
    graph.add_edges_from((one, two) for one in beside for two in beside[one])
    regions: set[Scope] = set()
    for clique in nx.find_cliques(graph):
        parts = (
            [frozenset(clique)]
            if fits(frozenset(clique))
            else map(frozenset, combinations(clique, 3))
        )
        regions.update(part for part in parts if len(part) > 2)
        _check_count(regions)
    for one in sorted(beside):
        near = sorted(other for other in beside[one] if other > one)
        # Opposite corners have no edge, and `one` is the first of the four.
        for two, three in combinations(near, 2):
            if three not in beside[two]:
                across = (
                    four
                    for four in beside[two] & beside[three]
                    if four > one and four not in beside[one] and alone(one, two, three, four)
                )
                regions.update(frozenset((one, two, three, four)) for four in across)
        _check_count(regions)
    return [region for region in regions if fits(region)]


def _check_count(regions: set[Scope]) -> None:
    if len(regions) > MOST:
        raise ArgumentError(
            "infer method 'gbp'",
            f"at most {MOST} cycles of three or four",
            "more",
            "regions=[(0, 1, 2), ...]",
        )


def _check_pairs(held: Iterable[Sized], spent: int = 0) -> int:
    """Return how many pairs some collections have, added to those before.

    Raises
    ------
    ArgumentError
        If these are more than `PAIRS`.
    """
    pairs = spent + sum(len(one) * (len(one) - 1) // 2 for one in held)
    if pairs > PAIRS:
        raise ArgumentError(
            "infer method 'gbp'",
            f"at most {PAIRS} pairs of neighbours and of regions that share a variable",
            f"{pairs}",
            "method='exact' or 'bp', or fewer regions=[(0, 1, 2), ...]",
        )
    return pairs


@dataclass(frozen=True)
class Price:
    """What a sweep over regions costs.

    Parameters
    ----------
    regions, overlaps
        How many there are.
    entries
        Entries of the tables of all regions, of one batch entry.
    work
        Entries that a sweep reads, of one batch entry.
    parts
        Updates of a sweep that are made one after the other.
    """

    regions: int
    overlaps: int
    entries: int
    work: int
    parts: int

    def check(self, batch: int, sweeps: int, limit: int = RUN) -> None:
        """Raise `ArgumentError` if the tables or the run are too large.

        Parameters
        ----------
        batch
            Number of batch entries.
        sweeps
            Most sweeps of the run.
        limit
            Entries of all sweeps.
        """
        sweep = self.work * batch + PER_PART * self.parts
        entries = self.entries * batch
        if entries <= ENTRIES and sweep * sweeps <= limit:
            return
        few = limit // sweep if entries <= ENTRIES else 0
        fewer = f", or max_sweeps={few}" if few >= FEWEST else ""
        raise ArgumentError(
            "infer on regions",
            f"tables of at most {ENTRIES} entries, and {limit:.1e} entries in {sweeps} sweeps",
            f"{entries:.1e} (regions: {self.regions}, overlaps: {self.overlaps}), and "
            f"{sweep:.1e} in a sweep",
            f"method='exact' or 'bp', fewer or smaller regions or strip_rows{fewer}",
        )


def blocks(size: tuple[int, int], rows: int) -> list[Scope]:
    """Return blocks of `rows` rows and two columns that cover a grid; neighbouring strips share a
    row.

    Their fixed points are those of strips: a strip is a chain of blocks, and strips exchange pairs
    of neighbours in the shared row.
    """
    height, width = size
    tops = list(range(0, max(height - rows, 0) + 1, rows - 1))
    if tops[-1] + rows < height:
        tops.append(height - rows)
    return [
        frozenset(
            row * width + column
            for row in range(top, min(top + rows, height))
            for column in (left, left + 1)
        )
        for top in tops
        for left in range(width - 1)
    ]


def region_graph(
    count: int, scopes: Iterable[Sequence[int]], given: Iterable[Scope]
) -> tuple[list[Scope], dict[Scope, int]]:
    """Return the outer regions, and the counting number of each inner one that is not 0 or that
    others need.

    Parameters
    ----------
    count
        Number of variables.
    scopes
        Variables of each factor.
    given
        Regions; factors and variables that lie in none become regions of their own.

    Raises
    ------
    ArgumentError
        If so many regions share variables that wiring them takes too long.
    """
    wanted = (
        {frozenset(region) for region in given}
        | {frozenset(scope) for scope in scopes}
        | {frozenset((i,)) for i in range(count)}
    )
    holds: list[list[Scope]] = [[] for _ in range(count)]
    outer: list[Scope] = []
    for region in sorted(wanted, key=lambda region: (-len(region), sorted(region))):
        if not any(region <= larger for larger in holds[min(region)]):
            outer.append(region)
            for variable in region:
                holds[variable].append(region)
    inner: set[Scope] = set()
    pairs = _check_pairs(holds)
    fresh = {one & two for held in holds for one, two in combinations(held, 2)}
    while fresh:
        inner |= fresh
        touching: list[list[Scope]] = [[] for _ in range(count)]
        for region in inner:
            for variable in region:
                touching[variable].append(region)
        pairs = _check_pairs(touching, pairs)
        fresh = {one & two for held in touching for one, two in combinations(held, 2)} - inner
    counting: dict[Scope, int] = {}
    contained: list[list[Scope]] = [[] for _ in range(count)]
    for region in sorted(inner, key=lambda region: (-len(region), sorted(region))):
        first = min(region)
        larger = sum(region <= other for other in holds[first]) + sum(
            counting[other] for other in contained[first] if region < other
        )
        counting[region] = 1 - larger
        for variable in region:
            contained[variable].append(region)
    return outer, counting
