"""Factor graphs for people: built from networkx or generated, drawn, and lowered to the flat model that the machine runs.

``p(x) = exp(sum over factors t_f(x_f)) / Z``, with log tables t. A generated grid holds a few numbers, however large it is.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import MissingExtraError
from bayesfed.inference.flat import TableGroup, Tables
from bayesfed.inference.lowering import check_simple, collector_paused, edge_list, lower, read, refuse
from bayesfed.inference.recognise import recognise
from bayesfed.models.grid import Grid, Link, Number
from bayesfed.models.ising import Ising
from bayesfed.models.supports import Transition

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NODES = 2_000_000
MAX_DRAWN = 500
Rule = float | Transition | Link


@dataclass(frozen=True, eq=False)
class FactorGraph:
    """A flat model together with the user's names and order of its variables. Immutable.

    Parameters
    ----------
    model
        What `lower` returns: a binary grid, a binary pairwise model, or tables.
    names
        The variables as the user calls them; None for the numbers 0 to n - 1.
    order
        ``(n,)`` for a grid found in a graph numbered otherwise: the user's index of the variable at each position, row by row.
        None where they agree.
    log_constant
        Nats left out of the model: the log partition function of the graph is the model's plus this.
    """

    model: Grid | Ising | Tables
    names: tuple[Hashable, ...] | None = None
    order: Tensor | None = None
    log_constant: float = 0.0

    def __post_init__(self) -> None:
        count = math.prod(self.shape)
        if self.names is not None and len(self.names) != count:
            refuse("FactorGraph.names", expected=f"{count} names, one a variable", actual=len(self.names), hint="names=None")
        if self.order is not None and not torch.equal(self.order.sort().values, torch.arange(count)):
            refuse("FactorGraph.order", expected=f"a permutation of {count} variables", actual=self.order, hint="order=None")

    @property
    def shape(self) -> tuple[int, ...]:
        """How the evidence is arranged: in node order ``(n,)`` for graphs that come from networkx."""
        return (len(self.model.cards),) if isinstance(self.model, Tables) else self.model.shape

    @property
    def variables(self) -> Sequence[Hashable]:
        """The variables in the order of the evidence."""
        return range(math.prod(self.shape)) if self.names is None else self.names

    def lower(self) -> Grid | Ising | Tables:
        """Return the flat model."""
        return self.model

    @classmethod
    def from_networkx(cls, graph: nx.Graph[Any]) -> FactorGraph:
        """Read a bipartite graph of variables and factors.

        Parameters
        ----------
        graph
            Nodes carry ``type``, "variable" or "factor". A variable may carry ``card``, its number of states, default 2.
            A factor carries ``factor``, its log table in nats (a tensor, an array or nested lists; -inf forbids a combination), or
            ``table``, the same as non-negative weights; and ``scope``, its variables in the order of the table's axes. Without a
            scope the table must be symmetric. The graph itself may carry ``log_constant``, nats added to every configuration.

        Returns
        -------
        FactorGraph
            Variables in node order. Full binary grids are recognised in any order. Tables are read as numbers: no gradient flows back.

        Raises
        ------
        ArgumentError
            If the graph is directed, a multigraph or empty, an edge joins two variables or two factors, a scope differs from the
            neighbours or is missing where it matters, a table has the wrong shape, more than 65536 entries, NaN, +inf or negative
            weights, or nothing is possible.
        """
        nodes, cards, groups = read(graph)
        constant = graph.graph.get("log_constant", 0.0)
        if not isinstance(constant, numbers.Real) or not math.isfinite(constant):
            refuse("graph.graph['log_constant']", expected="a finite number", actual=constant, hint="0.0")
        model, left_out = lower(nodes, cards, groups)
        return _recognised(model, nodes, left_out + float(constant))

    @classmethod
    def pairwise(cls, graph: nx.Graph[Any], *, coupling: float | None = None, field: float = 0.0) -> FactorGraph:
        """Read a graph of binary variables without factor nodes: an edge is a pair factor.

        Parameters
        ----------
        graph
            Edges may carry ``coupling``, the bonus in nats when both ends are 1; nodes ``field``, their log-odds alone.
        coupling, field
            For the edges and the nodes that carry none.

        Raises
        ------
        ArgumentError
            If the graph is directed, a multigraph or empty, has a self loop, an edge without a finite coupling, or a field that is none.
        """
        check_simple("pairwise", graph)
        nodes = list(graph)
        index = {node: i for i, node in enumerate(nodes)}
        edges = list(graph.edges(data="coupling", default=coupling))
        for left, right, _ in edges:
            if left == right:
                refuse(f"edge {left!r}-{right!r}", expected="two ends", actual="a self loop", hint="a field on the node")
        couplings = _finite([value for *_, value in edges], lambda i: f"edge {edges[i][0]!r}-{edges[i][1]!r}", "coupling=0.8")
        fields = _finite([value for _, value in graph.nodes(data="field", default=field)], lambda i: f"node {nodes[i]!r}", "field=0.0")
        ends = np.array([(index[left], index[right]) for left, right, _ in edges], dtype=np.int64).reshape(-1, 2)
        return _recognised(edge_list(fields, ends, couplings), nodes, 0.0)

    @classmethod
    def grid(cls, size: tuple[int, int], row: Rule, column: Rule, *, field: Number = 0.0) -> FactorGraph:
        """Return a K x M grid of bits; nothing of that size is built.

        Parameters
        ----------
        size
            (K, M).
        row, column
            Table of a variable with its right and with its lower neighbour: a stay probability, a `Transition`, or a `Link` in nats.
        field
            Log-odds of every variable on its own: a number or ``(K, M)``.

        Raises
        ------
        ArgumentError
            If a side is below 1, a probability outside (0, 1), or a tensor not finite or of the wrong shape.
        """
        return _generated(size, row, column, field, None)

    @classmethod
    def chain(cls, length: int, transition: Rule, *, field: Number = 0.0) -> FactorGraph:
        """Return a Markov chain of bits, a grid of one row; evidence ``(length,)``. Arguments as for `grid`."""
        return _generated((1, length), transition, Link(), field, (length,))

    @classmethod
    def kernel_grid(cls, shape: tuple[int, int], kernel: tuple[int, int], row: Rule, column: Rule, *, field: Number = 0.0) -> FactorGraph:
        """Return one grid a kernel for the weight matrix ``(out, in * kh * kw)`` of a convolution, kernels independent.

        Parameters
        ----------
        shape
            Of the weight matrix.
        kernel
            (kh, kw).
        row, column, field
            As for `grid`; tensors have the kernel's size.

        Raises
        ------
        ArgumentError
            If the kernel does not divide the rows of the matrix, or for the reasons of `grid`.
        """
        if len(shape) != 2 or min(*shape, *kernel) < 1 or shape[1] % math.prod(kernel):
            refuse(
                "kernel_grid.shape",
                expected=f"(out, in * {math.prod(kernel)}) for a kernel of {kernel}",
                actual=shape,
                hint="weight.flatten(1).shape",
            )
        return _generated(kernel, row, column, field, tuple(shape))

    @classmethod
    def tree(cls, parents: Sequence[int], transition: Rule) -> FactorGraph:
        """Return a forest of bits, each hanging on its parent.

        Parameters
        ----------
        parents
            ``(n,)`` the parent of each variable, -1 for roots.
        transition
            From parent to child, as for `grid`; a link of numbers.

        Raises
        ------
        ArgumentError
            If a parent is no variable, or following parents leads round in a circle.
        """
        above: NDArray[Any] = np.asarray(parents)
        if above.ndim != 1 or not above.size or above.dtype.kind not in "iu" or not -1 <= above.min() <= above.max() < len(above):
            refuse("tree.parents", expected="for each of n variables -1 or a number below n", actual=parents, hint="[-1, 0, 0, 1]")
        # Node n stands above the roots; each round doubles how far up a variable looks.
        reach = np.append(np.where(above < 0, len(above), above), len(above))
        for _ in range(len(above).bit_length()):
            reach = reach[reach]
        if (reach < len(above)).any():
            circle = int(np.flatnonzero(reach[:-1] < len(above))[0])
            refuse("tree.parents", expected="a root above every variable", actual=f"a circle above {circle}", hint="-1 for roots")
        link, constant = _link(transition)
        if any((isinstance(value, Tensor) and value.ndim) or not math.isfinite(value) for value in link):
            refuse("tree.transition", expected="one finite table for all", actual=link, hint="FactorGraph.pairwise for couplings that differ")
        child = np.flatnonzero(above >= 0)
        parent: NDArray[np.int64] = above[child].astype(np.int64)
        coupling, source, target = (np.full(len(child), float(value)) for value in link)
        field = np.zeros(len(above))
        for ends, value in ((parent, source), (child, target)):
            field += np.bincount(ends, value, len(above))
        return cls(edge_list(field, np.stack([parent, child], axis=1), coupling), log_constant=len(child) * constant)

    def to_networkx(self) -> nx.Graph[int]:
        """Return the graph as `from_networkx` reads it: variables 0 to n - 1 in the order of the evidence, then the factors.

        It is built once, every copy of a grid in full, and the same object is returned again: copy it before changing it.

        Raises
        ------
        ArgumentError
            If it would have more than two million nodes.
        """
        return self._network

    @cached_property
    def _network(self) -> nx.Graph[int]:
        count = math.prod(self.shape)
        groups = list(_factors(self.model)) if count <= MAX_NODES else []
        copies = 1 if isinstance(self.model, Tables) else self.model.copies
        total = count + copies * sum(len(group.which) for group in groups)
        if total > MAX_NODES:
            refuse("to_networkx", expected=f"at most {MAX_NODES} nodes", actual=f"{total} or more", hint="lower(), whose arrays are much smaller")
        graph: nx.Graph[int] = nx.Graph(log_constant=self.log_constant) if self.log_constant else nx.Graph()
        with collector_paused():
            cards = self.model.cards.tolist() if isinstance(self.model, Tables) else itertools.repeat(2, count)
            graph.add_nodes_from((i, {"type": "variable", "card": card}) for i, card in enumerate(cards))
            for group in groups:
                offsets = torch.arange(copies) * (count // copies)
                scope = (group.scope + offsets[:, None, None]).flatten(0, 1)
                scope = scope if self.order is None else self.order[scope]
                nodes, tables = range(len(graph), len(graph) + len(scope)), group.tables.unbind()
                wiring = zip(nodes, group.which.repeat(copies).tolist(), zip(*scope.T.tolist(), strict=True), strict=True)
                graph.add_nodes_from((node, {"type": "factor", "factor": tables[number], "scope": ends}) for node, number, ends in wiring)
                for ends in scope.T.tolist():
                    graph.add_edges_from(zip(nodes, ends, strict=True))
        return graph

    def draw(self, axes: Axes | None = None) -> Axes:
        """Draw variables as circles and factors as squares, one colour a table if there are at most ten; grids lie as grids.

        Raises
        ------
        ArgumentError
            If the graph has more than 500 nodes.
        MissingExtraError
            If matplotlib is not installed.
        """
        count = math.prod(self.shape)
        total = count if count > MAX_DRAWN else len(self.to_networkx())
        if total > MAX_DRAWN:
            refuse("draw", expected=f"at most {MAX_DRAWN} nodes", actual=f"{total} or more", hint="a smaller one of its kind, such as a 6 x 6 grid")
        try:
            from matplotlib.collections import LineCollection
            from matplotlib.figure import Figure
        except ImportError as problem:
            raise MissingExtraError("matplotlib", "examples") from problem
        graph, place = self.to_networkx(), self._positions()
        if axes is None:
            width, height = np.clip(np.ptp(place, axis=0) * 0.9 + 0.8, 2.0, 9.0)
            axes = Figure(figsize=(width, height), layout="constrained").subplots()
        size = min(320.0, max(24.0, 12000.0 / total))
        kinds: dict[int, int] = {}
        shades = [kinds.setdefault(id(graph.nodes[node]["factor"]), len(kinds)) for node in range(count, total)]
        axes.add_collection(LineCollection([place[list(edge)] for edge in graph.edges], colors="0.6", linewidths=1, zorder=1))
        axes.scatter(place[:count, 0], place[:count, 1], s=size, c="white", edgecolors="0.2", marker="o", zorder=3)
        face = [f"C{shade}" for shade in shades] if len(kinds) <= 10 else "0.35"
        axes.scatter(place[count:, 0], place[count:, 1], s=size / 3, c=face, marker="s", zorder=2)
        for name, (x, y) in zip(self.variables if count <= 64 else (), place, strict=False):
            axes.annotate(str(name), (x, y), ha="center", va="center", fontsize=7, zorder=4)
        (left, low), (right, high) = place.min(0) - 0.5, place.max(0) + 0.5
        axes.set(xlim=(left, right), ylim=(low, high), aspect="equal")
        axes.axis("off")
        return axes

    def _positions(self) -> NDArray[np.float64]:
        """Return where each node of the graph is drawn ``(nodes, 2)``, one unit between neighbouring variables of a grid."""
        graph, count = self.to_networkx(), math.prod(self.shape)
        place = np.empty((len(graph), 2))
        if not isinstance(self.model, Grid):
            edge = 0.0
            for part in map(sorted, nx.connected_components(graph)):
                # Springs are quicker where stretching every pair of nodes to its distance would take seconds.
                piece = graph.subgraph(part)
                found = nx.kamada_kawai_layout(piece) if len(part) <= 150 else nx.spring_layout(piece, seed=0, iterations=200)
                place[part] = np.stack([found[node] for node in part]) * math.sqrt(len(part)) * 0.7
                place[part, 0] += edge - place[part, 0].min()
                edge = place[part, 0].max() + 1.0
            return place
        rows, columns = self.model.size
        copy, cell = np.divmod(np.arange(count), rows * columns)
        variable = np.arange(count) if self.order is None else self.order.numpy()
        place[variable] = np.stack([cell % columns + copy * (columns + 0.5), -(cell // columns)], axis=1)
        for node in range(count, len(graph)):
            scope = list(graph.nodes[node]["scope"])
            place[node] = place[scope].mean(0) if len(scope) > 1 else place[scope[0]] + 0.3
        return place


def _link(rule: Rule) -> tuple[Link, float]:
    """Return a rule as a link, and the log weight of two zeros, which links leave out."""
    if isinstance(rule, Link):
        return rule, 0.0
    chain = rule if isinstance(rule, Transition) else Transition(rule, rule)
    return Link(*chain.terms()), math.log(chain.off)


def _generated(size: tuple[int, int], row: Rule, column: Rule, field: Number, arrangement: tuple[int, ...] | None) -> FactorGraph:
    (along, first), (across, second) = _link(row), _link(column)
    grid = Grid(size, along, across, field, arrangement)
    rows, columns = size
    return FactorGraph(grid, log_constant=grid.copies * (rows * (columns - 1) * first + (rows - 1) * columns * second))


def _recognised(model: Ising | Tables, nodes: Sequence[Hashable], constant: float) -> FactorGraph:
    plain = all(type(node) is int and node == i for i, node in enumerate(nodes))
    names = None if plain else tuple(nodes)
    if isinstance(model, Ising) and (found := recognise(model)) is not None:
        return FactorGraph(found[0], names, found[1], constant)
    return FactorGraph(model, names, None, constant)


def _finite(values: list[Any], where: Callable[[int], str], hint: str) -> NDArray[np.float64]:
    kinds = {type(value) for value in values}
    good = all(issubclass(kind, numbers.Real) for kind in kinds)
    found = np.array(values, dtype=np.float64) if good else np.array([value if isinstance(value, numbers.Real) else np.nan for value in values])
    if not np.isfinite(found).all():
        wrong = int(np.flatnonzero(~np.isfinite(found))[0])
        refuse(where(wrong), expected="a finite number", actual=values[wrong], hint=hint)
    return found


def _factors(model: Grid | Ising | Tables) -> Iterator[TableGroup]:
    """Yield a model's factors; of copies, the first one's."""
    if isinstance(model, Tables):
        for card in model.cards.unique().tolist():
            yield from _unary(model.unary[:, :card], model.cards == card)
        yield from model.groups
        return
    if isinstance(model, Ising):
        field = model.field
        yield from _pairs(Link(model.coupling), *model.edges)
    else:
        index = torch.arange(math.prod(model.size)).reshape(model.size)
        field = torch.as_tensor(model.field, dtype=torch.float64).expand(model.size).reshape(-1)
        yield from _pairs(model.row, index[:, :-1], index[:, 1:])
        yield from _pairs(model.column, index[:-1], index[1:])
    yield from _unary(torch.stack([torch.zeros_like(field), field], dim=1), torch.ones_like(field, dtype=torch.bool))


def _pairs(link: Link, left: Tensor, right: Tensor) -> Iterator[TableGroup]:
    """Yield the factors of one link, equal tables shared."""
    values = [torch.as_tensor(value, dtype=torch.float64) for value in link]
    if left.numel():
        even = all(value.ndim == 0 for value in values)
        flat = torch.stack([value.expand(() if even else left.shape).reshape(-1) for value in values], dim=1)
        distinct, which = flat.unique(dim=0, return_inverse=True)
        coupling, source, target = distinct.T
        tables = torch.stack([torch.zeros_like(coupling), target, source, source + target + coupling], dim=1).reshape(-1, 2, 2)
        yield TableGroup(tables, which.expand(left.numel()), torch.stack([left.reshape(-1), right.reshape(-1)], dim=1))


def _unary(weights: Tensor, chosen: Tensor) -> Iterator[TableGroup]:
    """Yield the unary factors ``(n, card)`` of the chosen variables that say something, equal ones shared."""
    scope = (chosen & (weights != 0).any(1)).nonzero()
    if len(scope):
        tables, which = weights[scope[:, 0]].to(torch.float64).unique(dim=0, return_inverse=True)
        yield TableGroup(tables, which, scope)
