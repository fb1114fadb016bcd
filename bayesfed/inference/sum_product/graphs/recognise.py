"""The shape of a graph: distances from a variable, proper colourings, and edge lists that are
grids.

A K x M grid has E = 2 K M - K - M edges, so n = K M and E give K and M as roots of
``x^2 - (2 n - E) x + n``. Variables must be numbered row by row or column by column.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.models.random_fields.grid import Grid, Link, Number
from bayesfed.models.random_fields.ising import Ising

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Integers = NDArray[np.int64]


def colours(count: int, edges: Tensor) -> Tensor:
    """Return a proper colouring ``(n,)`` of a graph: with two colours where two suffice, greedy
    otherwise.

    Parameters
    ----------
    count
        n, the number of nodes.
    edges
        ``(2, E)``.
    """
    import networkx as nx
    from scipy.sparse.csgraph import connected_components

    ends: Integers = edges.numpy()
    matrix = adjacency(count, ends)
    # One more node, joined to one variable of each component, reaches every variable and closes no
    # cycle.
    _, part = connected_components(matrix, directed=False)
    roots = np.unique(part, return_index=True)[1]
    reached = np.concatenate([ends, np.stack([roots, np.full_like(roots, count)])], axis=1)
    parity = depths(adjacency(count + 1, reached), count)[:count] % 2
    if bool((parity[ends[0]] != parity[ends[1]]).all()):
        return torch.from_numpy(parity)
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(zip(*ends.tolist(), strict=True))
    colour = nx.greedy_color(graph, strategy="connected_sequential_bfs")
    return torch.tensor([colour[i] for i in range(count)])


def adjacency(count: int, ends: Integers) -> csr_array:
    """Return the matrix of a graph with edges ``(2, E)``."""
    from scipy.sparse import csr_array

    both = np.concatenate([ends, ends[::-1]], axis=1)
    return csr_array(
        (np.ones(both.shape[1], dtype=np.int8), (both[0], both[1])), shape=(count, count)
    )


def depths(graph: csr_array, root: int) -> Integers:
    """Return the number of steps ``(n,)`` from `root` to every node of a connected graph."""
    from scipy.sparse.csgraph import breadth_first_order

    parent = breadth_first_order(graph, root)[1].astype(np.int64)
    parent[root] = root
    depth = np.ones_like(parent)
    depth[root] = 0
    # Every round doubles how far up a node points.
    while bool((parent != root).any()):
        depth += depth[parent]
        parent = parent[parent]
    return depth


def recognise(ising: Ising) -> Grid | None:
    """Return the grid that equals a pairwise model; None if it is no full grid with at least two
    rows and two columns, numbered row by row.

    Its links have no fields, and its evidence is arranged as the model's.
    """
    count = ising.field.numel()
    both = 2 * count - ising.coupling.numel()
    root = math.isqrt(max(both * both - 4 * count, 0))
    long, short = (both + root) // 2, (both - root) // 2
    if short < 2 or long * short != count or long + short != both:
        return None
    grids = (_lay_out(ising, size) for size in ((long, short), (short, long)))
    return next((grid for grid in grids if grid is not None), None)


def _lay_out(ising: Ising, size: tuple[int, int]) -> Grid | None:
    """Return the grid of this size if every edge then joins neighbours, else None."""
    rows, columns = size
    # In numpy: on busy machines, torch's threads wait for each other at each of these small steps.
    ends, coupling = ising.edges.numpy(), ising.coupling.numpy()
    low = ends.min(0)
    step = ends.max(0) - low
    values: list[Number] = []
    for chosen, shape in (
        ((step == 1) & (low % columns != columns - 1), (rows, columns - 1)),
        (step == columns, (rows - 1, columns)),
    ):
        place = low[chosen] // columns * shape[1] + low[chosen] % columns
        # As many edges as places, and no empty place: one edge for each.
        if len(place) != math.prod(shape) or not np.bincount(place, minlength=len(place)).all():
            return None
        laid = np.empty_like(coupling, shape=len(place))
        laid[place] = coupling[chosen]
        values.append(_plain(laid.reshape(shape)))
    arrangement = None if ising.shape == size else ising.shape
    return Grid(
        size,
        Link(values[0]),
        Link(values[1]),
        _plain(ising.field.numpy().reshape(size)),
        arrangement,
    )


def _plain(values: NDArray[np.floating]) -> Number:
    return float(values.flat[0]) if (values == values.flat[0]).all() else torch.from_numpy(values)
