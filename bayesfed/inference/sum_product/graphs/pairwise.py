"""Read a networkx graph without factor nodes: every node is a bit with a field, and every edge has
a coupling.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.lowering import edge_list
from bayesfed.inference.sum_product.graphs.networks import check_simple
from bayesfed.models.random_fields.ising import Ising

if TYPE_CHECKING:
    import networkx as nx


def read_pairs(
    graph: nx.Graph[Any], coupling: float | None, field: float
) -> tuple[list[Hashable], Ising]:
    """Return the variables in node order and the model, as `FactorGraph.pairwise` documents.

    Raises
    ------
    ArgumentError
        If the graph is not as documented there.
    """
    check_simple("pairwise", graph)
    nodes = list(graph)
    index = {node: i for i, node in enumerate(nodes)}
    edges = list(graph.edges(data="coupling", default=coupling))
    for left, right, _ in edges:
        if left == right:
            raise ArgumentError(
                f"edge {left!r}-{right!r}", "two ends", "a self loop", "a field on the node"
            )
    couplings = _finite(
        [value for *_, value in edges],
        lambda i: f"edge {edges[i][0]!r}-{edges[i][1]!r}",
        "coupling=0.8",
    )
    fields = _finite(
        [value for _, value in graph.nodes(data="field", default=field)],
        lambda i: f"node {nodes[i]!r}",
        "field=0.0",
    )
    ends = np.array(
        [(index[left], index[right]) for left, right, _ in edges], dtype=np.int64
    ).reshape(-1, 2)
    return nodes, edge_list(fields, ends, couplings)


def _finite(values: list[Any], where: Callable[[int], str], hint: str) -> NDArray[np.float64]:
    real = [value if isinstance(value, numbers.Real) else np.nan for value in values]
    array = np.array(real, dtype=np.float64)
    if not np.isfinite(array).all():
        wrong = int(np.flatnonzero(~np.isfinite(array))[0])
        raise ArgumentError(where(wrong), "a finite number", values[wrong], hint)
    return array
