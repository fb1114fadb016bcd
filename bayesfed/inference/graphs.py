"""From networkx to flat wiring and back: graphs for people, index tensors for the machine."""

from __future__ import annotations

from typing import Any

import networkx as nx
import torch

from bayesfed.errors import ArgumentError, complain
from bayesfed.models.ising import Ising


def from_networkx(graph: nx.Graph[Any]) -> Ising:
    """Lower a graph whose nodes carry ``field`` (default 0) and whose edges carry ``coupling``, in nats.

    Variables are numbered in the graph's node order, in float64.

    Raises
    ------
    ArgumentError
        If the graph is directed or empty, has a self loop, or an edge without a finite coupling.
    """
    if graph.is_directed() or graph.is_multigraph() or not len(graph):
        raise ArgumentError(complain("from_networkx", expected="a simple undirected graph", actual=graph, hint="nx.Graph(...)"))
    index = {node: i for i, node in enumerate(graph)}
    pairs, couplings = [], []
    for left, right, data in graph.edges(data=True):
        value = data.get("coupling")
        if left == right or not isinstance(value, int | float) or value - value != 0:
            raise ArgumentError(
                complain(
                    f"edge {left!r}-{right!r}", expected="two ends and a finite 'coupling'", actual=data, hint="graph.add_edge(u, v, coupling=0.8)"
                )
            )
        pairs.append((index[left], index[right]))
        couplings.append(float(value))
    colour = nx.greedy_color(graph, strategy="connected_sequential_bfs")
    return Ising(
        torch.tensor([float(data.get("field", 0.0)) for _, data in graph.nodes(data=True)], dtype=torch.float64),
        torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).T.contiguous(),
        torch.tensor(couplings, dtype=torch.float64),
        (len(graph),),
        torch.tensor([colour[node] for node in graph]),
    )


def to_networkx(ising: Ising) -> nx.Graph[int]:
    """Draw a lowered model back as a graph whose nodes are the variables' numbers."""
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from((i, {"field": value}) for i, value in enumerate(ising.field.tolist()))
    edges = zip(*ising.edges.tolist(), ising.coupling.tolist(), strict=True)
    graph.add_edges_from((left, right, {"coupling": value}) for left, right, value in edges)
    return graph
