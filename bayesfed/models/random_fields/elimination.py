"""In which order variables are summed out of a factor graph, and the tree of cliques that the order
makes.

Summing out a variable multiplies every table it is in: the product is a table over its clique, the
variable and its neighbours so far. The cliques form a tree; clique and parent share a separator.
The cost is the number of entries of these tables, exponential in the treewidth.

Three greedy orders are tried and the best is kept. Next comes the variable whose clique has the
fewest entries (min-weight), or the one that adds the fewest edges (min-fill), or the fewest joint
states of their ends (weighted min-fill). networkx has min-degree and min-fill, but these count
variables, not entries, and cannot stop at a limit: on a large graph with many cycles, that is most
of the work.

References
----------
Lauritzen and Spiegelhalter, Local computations with probabilities on graphical structures, J. R.
Stat. Soc. B 50 (1988). Koller and Friedman, Probabilistic Graphical Models (2009), 9.4.3.2:
min-weight and weighted min-fill.
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

Adjacency = list[set[int]]

# Beyond so many variables only the order by clique size is tried: adding up fill edges costs the
# square of the degree.
MANY = 2000
# How many of the largest tables all of them may weigh.
TABLES = 8


@dataclass(frozen=True)
class Clique:
    """One table of the elimination.

    Parameters
    ----------
    separator, own
        Variables shared with the parent, and those that are summed out here; both with the last to
        be eliminated first.
    parent
        Number of the parent, which comes later in the list of cliques; -1 for roots.
    """

    separator: tuple[int, ...]
    own: tuple[int, ...]
    parent: int

    @property
    def scope(self) -> tuple[int, ...]:
        """All variables, in the order of the table's axes."""
        return self.separator + self.own


@dataclass(frozen=True)
class CliqueTree:
    """The cliques, children before parents.

    Parameters
    ----------
    cliques
        The cliques.
    home
        For each variable, the clique in which it is summed out.
    rank
        For each variable, its place in the order of elimination.
    largest, total
        Entries of the largest table and of all of them.
    """

    cliques: tuple[Clique, ...]
    home: tuple[int, ...]
    rank: tuple[int, ...]
    largest: int
    total: int

    def clique_of(self, scope: Iterable[int]) -> int:
        """Return the clique that takes a factor with this scope: where its first variable is summed
        out.
        """
        return self.home[min(scope, key=self.rank.__getitem__)]


def clique_tree(
    cards: Sequence[int], scopes: Iterable[Sequence[int]], limit: int
) -> CliqueTree | None:
    """Return the clique tree with the fewest entries that the greedy orders make; None if none
    keeps to the limit.

    Parameters
    ----------
    cards
        Number of states of each variable.
    scopes
        Variables of each factor.
    limit
        Most entries of one table, and of all of them in units of `TABLES`.
    """
    adjacency: Adjacency = [set() for _ in cards]
    for scope in set(map(tuple, scopes)):
        for variable in scope:
            adjacency[variable].update(scope)
    for variable, neighbours in enumerate(adjacency):
        neighbours.discard(variable)
    if min((_entries(adjacency, cards, one) for one in range(len(cards))), default=0) > limit:
        return None  # Whichever comes first.
    costs = (_Entries, _Fill, _Missing) if len(cards) <= MANY else (_Entries,)
    trees = [
        _tree(cards, sequence)
        for cost in costs
        if (sequence := _eliminate(adjacency, cards, cost, limit)) is not None
    ]
    return min(trees, key=lambda tree: tree.total, default=None)


def _entries(adjacency: Adjacency, cards: Sequence[int], variable: int) -> int:
    return math.prod((cards[other] for other in adjacency[variable]), start=cards[variable])


class _Cost(ABC):
    """What eliminating each variable next would cost, kept up to date while others go.

    Parameters
    ----------
    adjacency
        The neighbours of each variable; the elimination changes it in place.
    cards
        Number of states of each variable.
    """

    values: list[int]

    def __init__(self, adjacency: Adjacency, cards: Sequence[int]) -> None:
        self.adjacency = adjacency
        self.cards = cards

    @abstractmethod
    def leave(self, variable: int, neighbours: set[int]) -> None:
        """Update the neighbours of a variable that has just lost all of its edges."""

    @abstractmethod
    def join(self, one: int, two: int, common: set[int]) -> None:
        """Update the ends and the common neighbours of an edge that is about to be added."""


class _Entries(_Cost):
    """The entries of the table over a variable and its neighbours."""

    def __init__(self, adjacency: Adjacency, cards: Sequence[int]) -> None:
        super().__init__(adjacency, cards)
        self.values = [_entries(adjacency, cards, variable) for variable in range(len(cards))]

    def leave(self, variable: int, neighbours: set[int]) -> None:
        for other in neighbours:
            self.values[other] //= self.cards[variable]

    def join(self, one: int, two: int, common: set[int]) -> None:
        self.values[one] *= self.cards[two]
        self.values[two] *= self.cards[one]


class _Fill(_Cost):
    """The joint states of the ends of every edge that eliminating a variable would add."""

    def __init__(self, adjacency: Adjacency, cards: Sequence[int]) -> None:
        super().__init__(adjacency, cards)
        self.values = [
            sum(cards[one] * self._total(neighbours - adjacency[one] - {one}) for one in neighbours)
            // 2
            for neighbours in adjacency
        ]

    def _total(self, variables: set[int]) -> int:
        return sum(map(self.cards.__getitem__, variables))

    def leave(self, variable: int, neighbours: set[int]) -> None:
        for other in neighbours:
            apart = self.adjacency[other] - neighbours
            self.values[other] -= self.cards[variable] * self._total(apart)

    def join(self, one: int, two: int, common: set[int]) -> None:
        joint = self.cards[one] * self.cards[two]
        for other in common:
            self.values[other] -= joint
        for end, far in ((one, two), (two, one)):
            apart = self.adjacency[end] - self.adjacency[far]
            self.values[end] += self.cards[far] * self._total(apart)


class _Missing(_Fill):
    """The number of edges that eliminating a variable would add."""

    def __init__(self, adjacency: Adjacency, cards: Sequence[int]) -> None:
        super().__init__(adjacency, [1] * len(cards))

    def _total(self, variables: set[int]) -> int:
        return len(variables)


def _eliminate(
    start: Adjacency, cards: Sequence[int], kind: type[_Cost], limit: int
) -> list[tuple[int, set[int]]] | None:
    """Return variables in the order of elimination, each with its neighbours at that time; None
    beyond the limit.
    """
    adjacency = [set(neighbours) for neighbours in start]
    sequence: list[tuple[int, set[int]]] = []
    cost = kind(adjacency, cards)
    heap = [(value, variable) for variable, value in enumerate(cost.values)]
    heapq.heapify(heap)
    gone, total = [False] * len(cards), 0.0
    while heap:
        value, variable = heapq.heappop(heap)
        if gone[variable] or value != cost.values[variable]:
            continue
        neighbours = adjacency[variable]
        entries = _entries(adjacency, cards, variable)
        total += entries
        if entries > limit or total > TABLES * limit:
            return None
        gone[variable] = True
        sequence.append((variable, neighbours))
        changed = set(neighbours)
        for one in neighbours:
            adjacency[one].discard(variable)
        cost.leave(variable, neighbours)
        for one, two in combinations(neighbours, 2):
            if two not in adjacency[one]:
                common = adjacency[one] & adjacency[two]
                cost.join(one, two, common)
                adjacency[one].add(two)
                adjacency[two].add(one)
                # Their common neighbours have an edge less to add.
                changed |= common
        for other in changed:
            heapq.heappush(heap, (cost.values[other], other))
    return sequence


def _tree(cards: Sequence[int], sequence: list[tuple[int, set[int]]]) -> CliqueTree:
    rank = [0] * len(cards)
    for turn, (variable, _) in enumerate(sequence):
        rank[variable] = turn
    home, scopes, own = [-1] * len(cards), list[set[int]](), list[list[int]]()
    # By the variable at which a clique's separator starts: cliques that may take that variable as
    # well.
    waiting: dict[int, list[int]] = {}
    for variable, neighbours in sequence:
        whole = neighbours | {variable}
        # A clique that has all of this one's variables, once its own are summed out, takes it in.
        taker = next(
            (
                number
                for number in waiting.pop(variable, [])
                if scopes[number] - set(own[number]) == whole
            ),
            None,
        )
        if taker is None:
            taker = len(scopes)
            scopes.append(whole)
            own.append([])
        own[taker].append(variable)
        home[variable] = taker
        if neighbours:
            waiting.setdefault(min(neighbours, key=rank.__getitem__), []).append(taker)
    cliques = []
    # Taken in, a clique keeps its number; the parent's number can be smaller, so they are sorted by
    # their last own variable.
    order = sorted(range(len(scopes)), key=lambda number: rank[own[number][-1]])
    place = {number: position for position, number in enumerate(order)}
    for number in order:
        separator = sorted(scopes[number] - set(own[number]), key=rank.__getitem__)
        parent = place[home[separator[0]]] if separator else -1
        cliques.append(Clique(tuple(reversed(separator)), tuple(reversed(own[number])), parent))
    sizes = [math.prod(cards[variable] for variable in clique.scope) for clique in cliques]
    return CliqueTree(
        tuple(cliques),
        tuple(place[number] for number in home),
        tuple(rank),
        max(sizes, default=0),
        sum(sizes),
    )
