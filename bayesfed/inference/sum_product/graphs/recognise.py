"""The shape of a graph: distances from a variable, proper colourings, and edge lists that are
grids.

A K x M grid has E = 2 K M - K - M edges, so n = K M and E give K and M as roots of
``x^2 - (2 n - E) x + n``. From one corner a variable lies i + j steps away, from the other corner
of its row i + M - 1 - j: two distances are its coordinates.
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


def recognise(ising: Ising) -> tuple[Grid, Tensor | None] | None:
    """Return the grid that equals a pairwise model; None if it is no full grid with at least two
    rows and two columns.

    Returns
    -------
    grid
        The same model. Its links have no fields, and its evidence is arranged as the model's.
    order
        ``(n,)``, the variable at each position of the grid, row by row; None if they are numbered
        that way.
    """
    count = ising.field.numel()
    both = 2 * count - ising.coupling.numel()
    root = math.isqrt(max(both * both - 4 * count, 0))
    long, short = (both + root) // 2, (both - root) // 2
    if (
        short < 2
        or long * short != count
        or long + short != both
        or not bool(ising.coupling.isfinite().all() & ising.field.isfinite().all())
    ):
        return None
    for size in ((long, short), (short, long)):
        if (grid := _lay_out(ising, size, np.arange(count))) is not None:
            return grid, None
    if ising.copies > 1 or (order := _walk(count, ising.edges.numpy(), short)) is None:
        return None
    grid = _lay_out(ising, (long, short), order)
    return None if grid is None else (grid, torch.from_numpy(order))


def _lay_out(ising: Ising, size: tuple[int, int], order: Integers) -> Grid | None:
    """Return the grid with variable ``order[i]`` at position i if every edge then joins neighbours,
    else None.
    """
    rows, columns = size
    position = np.empty_like(order)
    position[order] = np.arange(len(order))
    # In numpy: on busy machines, torch's threads wait for each other at each of these small steps.
    ends, coupling = position[ising.edges.numpy()], ising.coupling.numpy()
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
        _plain(ising.field.numpy()[order].reshape(size)),
        arrangement,
    )


def _plain(values: NDArray[np.floating]) -> Number:
    return float(values.flat[0]) if (values == values.flat[0]).all() else torch.from_numpy(values)


def _walk(count: int, ends: Integers, columns: int) -> Integers | None:
    """Return the variable at each position if this is a grid with so many columns, which `_lay_out`
    then checks.
    """
    from scipy.sparse.csgraph import connected_components

    corners = np.flatnonzero(np.bincount(ends.reshape(-1), minlength=count) == 2)
    near = adjacency(count, ends)
    if len(corners) != 4 or connected_components(near, directed=False)[0] != 1:
        return None
    first = depths(near, int(corners[0]))
    beside = corners[first[corners] == columns - 1]
    if not len(beside):
        return None
    second = depths(near, int(beside[0]))
    row, column = (first + second - columns + 1) // 2, (first - second + columns - 1) // 2
    place = row * columns + column
    if (
        place.min() < 0
        or place.max() >= count
        or int(np.bincount(place, minlength=count).max()) != 1
    ):
        return None
    order = np.empty(count, dtype=np.int64)
    order[place] = np.arange(count)
    return order
