"""Factor graphs for tests: bipartite ones written by hand or drawn, and their weights by
enumeration.
"""

import itertools
import math

import networkx as nx
import numpy as np
import torch

from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.models.random_fields.support_priors import Transition

CHAIN = Transition(0.9, 0.7)
LOGS = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64).log()
AGREE = [[0.0, 0.0], [0.0, 0.8]]


def bipartite(cards, factors):
    """A graph with variables `cards` {name: card} and factors [(scope, attributes)]; an attribute
    scope=None is left out.
    """
    graph = nx.Graph()
    for name, card in cards.items():
        graph.add_node(name, type="variable", card=card)
    for number, (scope, data) in enumerate(factors):
        attributes = {"type": "factor", "scope": scope, **data}
        graph.add_node(
            ("f", number),
            **{name: value for name, value in attributes.items() if value is not None},
        )
        graph.add_edges_from((("f", number), name) for name in scope)
    return graph


def states(cards):
    return list(itertools.product(*(range(card) for card in cards)))


def by_tables(graph, chosen=None):
    """Log weight of every configuration, or of chosen ones, straight from the attributes, variables
    in node order.
    """
    cards = {
        node: data.get("card", 2)
        for node, data in graph.nodes(data=True)
        if data["type"] == "variable"
    }
    index = {node: i for i, node in enumerate(cards)}
    rows = []
    for state in chosen or states(cards.values()):
        total = graph.graph.get("log_constant", 0.0)
        for node, data in graph.nodes(data=True):
            if data["type"] == "factor":
                table = (
                    np.asarray(data["factor"])
                    if "factor" in data
                    else np.log(np.asarray(data["table"]))
                )
                total += float(
                    table[
                        tuple(state[index[name]] for name in data.get("scope", tuple(graph[node])))
                    ]
                )
        rows.append(total)
    return torch.tensor(rows, dtype=torch.float64)


def by_model(factor_graph):
    """Log weight of every configuration, from the flat model, variables in the user's order."""
    model = factor_graph.lower()
    if isinstance(model, Tables):
        rows = []
        for state in states(model.cards.tolist()):
            total = sum(float(model.unary[i, s]) for i, s in enumerate(state))
            for group in model.groups:
                for which, scope in zip(group.which.tolist(), group.scope.tolist(), strict=True):
                    total += float(group.tables[which][tuple(state[i] for i in scope)])
            rows.append(total)
        return torch.tensor(rows, dtype=torch.float64) + factor_graph.log_constant
    support = torch.tensor(states([2] * math.prod(factor_graph.shape)), dtype=torch.float64)
    return model.energy(support.reshape(-1, *factor_graph.shape)) + factor_graph.log_constant


def same(left, right, tolerance=1e-12):
    return left.shape == right.shape and torch.allclose(left, right, rtol=0, atol=tolerance)


def random_graph(seed, *, binary, names="abcde"):
    rng = np.random.default_rng(seed)
    cards = {name: 2 if binary else int(rng.integers(1, 4)) for name in names}
    factors = []
    for _ in range(9):
        scope = tuple(rng.permutation(list(cards))[: rng.integers(1, 3 if binary else 4)].tolist())
        table = rng.normal(0, 2, [cards[name] for name in scope])
        if not binary and table.size > 2:
            table.flat[rng.integers(table.size)] = -np.inf
        factors.append(
            (scope, {"factor": [torch.from_numpy(table), table, table.tolist()][rng.integers(3)]})
        )
    return bipartite(cards, factors)


def lattice(
    rows, columns, *, row=LOGS, column=LOGS, node=lambda i, j, columns: i * columns + j, nodes=None
):
    """A hand-built K x M grid; `nodes` is the order in which the variables are added."""
    graph = nx.Graph()
    places = list(itertools.product(range(rows), range(columns)))
    graph.add_nodes_from(
        nodes if nodes is not None else [node(i, j, columns) for i, j in places], type="variable"
    )
    for i, j in places:
        for name, table, k, m in (("row", row, i, j + 1), ("column", column, i + 1, j)):
            if k < rows and m < columns:
                scope = (node(i, j, columns), node(k, m, columns))
                graph.add_node((name, i, j), type="factor", scope=scope, factor=table)
                graph.add_edges_from(((name, i, j), end) for end in scope)
    return graph
