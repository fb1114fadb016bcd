"""Read a bipartite networkx graph: which nodes are variables and which are factors, and the
variables of each factor.
"""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.networks import check_simple

if TYPE_CHECKING:
    import networkx as nx

MAX_ENTRIES = 2**16
ORDERED = (tuple, list)
Attributes = Mapping[str, Any]


class Nodes(NamedTuple):
    """F factor nodes as read.

    Attributes
    ----------
    factors
        Names of the factors.
    tables
        Name and attributes of the first factor with each table object.
    which
        ``(F,)``, index into `tables`.
    members
        Variables of all scopes, one scope after the other.
    arities
        ``(F,)``, lengths of the scopes.
    unordered
        ``(F,)``, true for factors without a scope: their variables are in the order of the edges.
    """

    factors: list[Hashable]
    tables: list[tuple[Hashable, Attributes]]
    which: NDArray[np.int64]
    members: NDArray[np.int64]
    arities: NDArray[np.int64]
    unordered: NDArray[np.bool_]


def read(graph: nx.Graph[Any]) -> tuple[list[Hashable], Tensor, Nodes]:
    """Return the variables in node order, their cardinalities ``(n,)``, and the factors, unary ones
    included.

    Raises
    ------
    ArgumentError
        If a node or an edge is not as `FactorGraph.from_networkx` documents.
    """
    check_simple("from_networkx", graph)
    cards, factors = _sort(graph)
    nodes = _wire(graph, {node: i for i, node in enumerate(cards)}, factors)
    return list(cards), torch.from_numpy(np.array(list(cards.values()), dtype=np.int64)), nodes


def _dictionaries(
    graph: Any,
) -> tuple[Mapping[Hashable, Attributes], Mapping[Hashable, Mapping[Hashable, Any]]]:
    # Private, since networkx's views of them are too slow for graphs with a million nodes.
    return graph._node, graph._adj


def _sort(graph: nx.Graph[Any]) -> tuple[dict[Hashable, int], list[Hashable]]:
    cards: dict[Hashable, int] = {}
    factors: list[Hashable] = []
    for node, data in _dictionaries(graph)[0].items():
        kind = data.get("type")
        if kind == "variable":
            cards[node] = data.get("card", 2)
        elif kind == "factor":
            factors.append(node)
        else:
            hint = (
                "graph.add_node(name, type='variable', card=2), or FactorGraph.pairwise for a "
                "graph without factor nodes"
            )
            raise ArgumentError(f"node {node!r}", "type 'variable' or 'factor'", kind, hint)
    for node, card in cards.items():
        if type(card) is int and 1 <= card <= MAX_ENTRIES:
            continue
        if (
            not isinstance(card, numbers.Integral)
            or isinstance(card, bool)
            or not 1 <= card <= MAX_ENTRIES
        ):
            raise ArgumentError(
                f"variable {node!r}",
                f"a whole number card from 1 to {MAX_ENTRIES}",
                card,
                "card=2",
            )
    return cards, factors


def _wire(graph: nx.Graph[Any], index: dict[Hashable, int], factors: list[Hashable]) -> Nodes:
    nodes, adjacency = _dictionaries(graph)
    which: list[int] = []
    members: list[int] = []
    arities: list[int] = []
    unordered: list[bool] = []
    tables: list[tuple[Hashable, Attributes]] = []
    seen: dict[int, int] = {}
    number_of = index.__getitem__
    for node in factors:
        data, neighbours = nodes[node], adjacency[node]
        scope = data.get("scope")
        unordered.append(scope is None)
        if scope is None:
            scope = tuple(neighbours)
        try:
            if (
                not isinstance(scope, ORDERED)
                or not len(scope) == len(neighbours) > 0
                or neighbours.keys() != set(scope)
            ):
                _refuse_wiring(node, scope, neighbours, index)
            members.extend(map(number_of, scope))
        except (KeyError, TypeError):
            _refuse_wiring(node, scope, neighbours, index)
        arities.append(len(scope))
        table, weights = data.get("factor"), data.get("table")
        if (table is None) == (weights is None):
            actual = "neither" if table is None else "both"
            raise ArgumentError(
                f"factor {node!r}",
                "either 'factor' (logs) or 'table' (weights)",
                actual,
                "factor=[[0.0, 0.0], [0.0, 1.0]]",
            )
        # By object here, by value in `lowering.group`. One object may be logs of one factor and
        # weights of another: hence the sign.
        which.append(seen.setdefault(id(table) if weights is None else -id(weights), len(tables)))
        if which[-1] == len(tables):
            tables.append((node, data))
    if sum(len(adjacency[node]) for node in index) != len(members):
        left, right = next((node, end) for node in index for end in adjacency[node] if end in index)
        actual = "a self loop" if left == right else "two variables"
        hint = "a factor between them, or FactorGraph.pairwise for a graph without factor nodes"
        raise ArgumentError(f"edge {left!r}-{right!r}", "a variable and a factor", actual, hint)
    return Nodes(
        factors,
        tables,
        np.array(which, dtype=np.int64),
        np.array(members, dtype=np.int64),
        np.array(arities, dtype=np.int64),
        np.array(unordered, dtype=bool),
    )


def _refuse_wiring(
    node: Hashable, scope: Any, neighbours: Mapping[Hashable, Any], index: Mapping[Hashable, int]
) -> NoReturn:
    where, ends = f"factor {node!r}", list(neighbours)
    if not ends:
        raise ArgumentError(
            where,
            "an edge to every variable of its table",
            "no neighbour",
            f"graph.add_edge({node!r}, variable)",
        )
    if node in neighbours:
        raise ArgumentError(
            where,
            "edges to variables",
            "a self loop",
            f"graph.remove_edge({node!r}, {node!r})",
        )
    for end in ends:
        if end not in index:
            raise ArgumentError(
                f"edge {node!r}-{end!r}",
                "a variable and a factor",
                "two factors",
                "a variable between them",
            )
    if not isinstance(scope, ORDERED):
        raise ArgumentError(
            f"{where}.scope",
            "an ordered tuple of variables",
            scope,
            f"scope={tuple(ends)!r}",
        )
    if any(name in scope[:i] for i, name in enumerate(scope)):
        raise ArgumentError(
            f"{where}.scope",
            "each variable once",
            scope,
            "a table with one axis a variable",
        )
    raise ArgumentError(
        f"{where}.scope",
        f"its neighbours {ends}",
        scope,
        "an edge to every variable of the scope, and to no other",
    )
