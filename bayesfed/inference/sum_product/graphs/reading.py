"""Read a bipartite networkx graph: which nodes are variables and which are factors, and the
variables of each factor.
"""

from __future__ import annotations

import numbers
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import TableGroup
from bayesfed.inference.sum_product.graphs.grouping import (
    Attributes,
    Kind,
    group,
    log_table,
    refuse_shape,
)
from bayesfed.inference.sum_product.graphs.networks import check_simple

if TYPE_CHECKING:
    import networkx as nx

ORDERED = (tuple, list)
# Most states of a variable.
STATES = 2**16


def read(graph: nx.Graph[Any]) -> tuple[list[Hashable], Tensor, list[TableGroup]]:
    """Return the variables in node order, their cardinalities ``(n,)``, and the factors, unary ones
    included, grouped by the shape of their table; equal tables are shared.

    Raises
    ------
    ArgumentError
        If the graph is not as `FactorGraph.from_networkx` documents.
    """
    check_simple("from_networkx", graph)
    # Private, since networkx's views of them are too slow for graphs with a million nodes.
    private: Any = graph
    nodes: Mapping[Hashable, Attributes] = private._node
    cards, factors = _sort(nodes)
    # Zero weights become -inf and negative ones NaN, which `group` looks for in all tables of a
    # shape at once.
    with np.errstate(divide="ignore", invalid="ignore"):
        kinds = _wire(nodes, private._adj, cards, factors)
    states = np.array(list(cards.values()), dtype=np.int64)
    return list(cards), torch.from_numpy(states), [group(kind, states, nodes) for kind in kinds]


def _sort(nodes: Mapping[Hashable, Attributes]) -> tuple[dict[Hashable, int], list[Hashable]]:
    cards: dict[Hashable, int] = {}
    factors: list[Hashable] = []
    for node, data in nodes.items():
        kind = data.get("type")
        if kind == "variable":
            cards[node] = data.get("card", 2)
        elif kind == "factor":
            factors.append(node)
        else:
            raise ArgumentError(
                f"node {node!r}",
                "type 'variable' or 'factor'",
                kind,
                "graph.add_node(name, type='variable', card=2), or FactorGraph.pairwise for a "
                "graph without factor nodes",
            )
    for node, card in cards.items():
        whole = isinstance(card, numbers.Integral) and not isinstance(card, bool)
        if not whole or not 1 <= card <= STATES:
            raise ArgumentError(
                f"variable {node!r}", f"a whole number card from 1 to {STATES}", card, "card=2"
            )
    return cards, factors


def _wire(
    nodes: Mapping[Hashable, Attributes],
    adjacency: Mapping[Hashable, Mapping[Hashable, Any]],
    cards: dict[Hashable, int],
    factors: list[Hashable],
) -> list[Kind]:
    index = {node: i for i, node in enumerate(cards)}
    kinds: dict[tuple[int, ...], Kind] = {}
    seen: dict[int, tuple[Kind, int]] = {}
    for node in factors:
        data, neighbours = nodes[node], adjacency[node]
        scope = data.get("scope")
        if unordered := scope is None:
            scope = tuple(neighbours)
        try:
            if (
                not isinstance(scope, ORDERED)
                or not len(scope) == len(neighbours) > 0
                or neighbours.keys() != set(scope)
            ):
                _refuse_wiring(node, scope, neighbours, index)
            members = [index[name] for name in scope]
        except (KeyError, TypeError):
            _refuse_wiring(node, scope, neighbours, index)
        table, weights = data.get("factor"), data.get("table")
        if (table is None) == (weights is None):
            raise ArgumentError(
                f"factor {node!r}",
                "either 'factor' (logs) or 'table' (weights)",
                "neither" if table is None else "both",
                "factor=[[0.0, 0.0], [0.0, 1.0]]",
            )
        # By object first, then by value. One object may be logs of one factor and weights of
        # another: hence the sign.
        object_ = id(table) if weights is None else -id(weights)
        if object_ not in seen:
            array = log_table(node, data)
            if array.shape not in kinds:
                kinds[array.shape] = Kind(array.shape)
            kind = kinds[array.shape]
            seen[object_] = kind, kind.distinct.setdefault(array.tobytes(), len(kind.distinct))
        kind, number = seen[object_]
        if len(members) != len(kind.shape):
            raise refuse_shape(node, tuple(cards[name] for name in scope), kind.shape)
        if unordered:
            kind.unordered.append(len(kind.names))
        kind.names.append(node)
        kind.which.append(number)
        kind.members += members
    wired = sum(len(kind.members) for kind in kinds.values())
    if sum(len(adjacency[node]) for node in index) != wired:
        left, right = next((node, end) for node in index for end in adjacency[node] if end in index)
        raise ArgumentError(
            f"edge {left!r}-{right!r}",
            "a variable and a factor",
            "a self loop" if left == right else "two variables",
            "a factor of these variables, or FactorGraph.pairwise for a graph without factor nodes",
        )
    return list(kinds.values())


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
            where, "edges to variables", "a self loop", f"graph.remove_edge({node!r}, {node!r})"
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
            f"{where}.scope", "an ordered tuple of variables", scope, f"scope={tuple(ends)!r}"
        )
    if any(name in scope[:i] for i, name in enumerate(scope)):
        raise ArgumentError(
            f"{where}.scope", "each variable once", scope, "a table with one axis a variable"
        )
    raise ArgumentError(
        f"{where}.scope",
        f"its neighbours {ends}",
        scope,
        "an edge to every variable of the scope, and to no other",
    )
