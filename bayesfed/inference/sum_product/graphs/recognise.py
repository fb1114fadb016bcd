"""The shape of a graph: distances from a variable, proper colourings, and edge lists that are
grids.

A K x M grid has E = 2 K M - K - M edges, so n = K M and E give K and M as roots of
``x^2 - (2 n - E) x + n``. Variables must be numbered row by row or column by column.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.models.random_fields.grid import Grid, Link, Number
from bayesfed.models.random_fields.ising import Ising, breadth_first, components

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

    ends: Integers = edges.numpy()
    roots = np.unique(components(count, *ends)[1], return_index=True)[1]
    parity = (breadth_first(count, ends, roots)[2] + 1) % 2
    if (parity[ends[0]] != parity[ends[1]]).all():
        return torch.from_numpy(parity)
    graph: nx.Graph[int] = nx.Graph()
    graph.add_nodes_from(range(count))
    graph.add_edges_from(zip(*ends.tolist(), strict=True))
    colour = nx.greedy_color(graph, strategy="connected_sequential_bfs")
    return torch.tensor([colour[i] for i in range(count)])


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
