"""The check of a networkx graph, and a pause of the garbage collector while one is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from bayesfed.errors import ArgumentError


def check_simple(where: str, graph: object) -> None:
    """Raise `ArgumentError` unless `graph` is a simple undirected networkx graph with nodes."""
    import networkx as nx

    if (
        not isinstance(graph, nx.Graph)
        or graph.is_directed()
        or graph.is_multigraph()
        or not len(graph)
    ):
        raise ArgumentError(
            where, "a simple undirected graph with nodes", graph, "nx.Graph(graph), of nodes"
        )


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector inside the block, so that it does not scan a growing graph again
    and again.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()
