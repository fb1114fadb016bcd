"""Draw a factor graph with matplotlib."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import MissingExtraError
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.graphs.networks import refuse
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

MAX_DRAWN = 500


def draw(
    model: Grid | Ising | Tables,
    written: Callable[[], nx.Graph[int]],
    order: Tensor | None,
    variables: Sequence[Hashable],
    axes: Axes | None,
) -> Axes:
    """Draw as `FactorGraph.draw` documents, and raise its errors.

    Parameters
    ----------
    model, order, variables
        Those of the `FactorGraph`.
    written
        Its `to_networkx`; not called if the variables alone are too many to draw.
    axes
        Where to draw; None for a new figure.
    """
    count = math.prod(model.shape)
    total = count if count > MAX_DRAWN else len(written())
    if total > MAX_DRAWN:
        refuse(
            "draw",
            expected=f"at most {MAX_DRAWN} nodes",
            actual=f"{total} or more",
            hint="a smaller one of its kind, such as a 6 x 6 grid",
        )
    try:
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure
    except ImportError as problem:
        raise MissingExtraError("matplotlib", "examples") from problem
    network = written()
    place = _positions(model, network, order)
    if axes is None:
        width, height = np.clip(np.ptp(place, axis=0) * 0.9 + 0.8, 2.0, 9.0)
        axes = Figure(figsize=(width, height), layout="constrained").subplots()
    size = min(320.0, max(24.0, 12000.0 / total))
    kinds: dict[int, int] = {}
    shades = [
        kinds.setdefault(id(network.nodes[node]["factor"]), len(kinds))
        for node in range(count, total)
    ]
    axes.add_collection(
        LineCollection(
            [place[list(edge)] for edge in network.edges], colors="0.6", linewidths=1, zorder=1
        )
    )
    axes.scatter(
        place[:count, 0],
        place[:count, 1],
        s=size,
        c="white",
        edgecolors="0.2",
        marker="o",
        zorder=3,
    )
    face = [f"C{shade}" for shade in shades] if len(kinds) <= 10 else "0.35"
    axes.scatter(place[count:, 0], place[count:, 1], s=size / 3, c=face, marker="s", zorder=2)
    for name, (x, y) in zip(variables if count <= 64 else (), place, strict=False):
        axes.annotate(str(name), (x, y), ha="center", va="center", fontsize=7, zorder=4)
    (left, low), (right, high) = place.min(0) - 0.5, place.max(0) + 0.5
    axes.set(xlim=(left, right), ylim=(low, high), aspect="equal")
    axes.axis("off")
    return axes


def _positions(
    model: Grid | Ising | Tables, network: nx.Graph[int], order: Tensor | None
) -> NDArray[np.float64]:
    """Return where each node of the graph is drawn ``(nodes, 2)``; neighbouring variables of a grid
    are one unit apart.
    """
    import networkx as nx

    count, place = math.prod(model.shape), np.empty((len(network), 2))
    if not isinstance(model, Grid):
        edge = 0.0
        for part in map(sorted, nx.connected_components(network)):
            # For large parts, Kamada and Kawai's layout takes seconds; springs are quicker.
            piece = network.subgraph(part)
            layout = (
                nx.kamada_kawai_layout(piece)
                if len(part) <= 150
                else nx.spring_layout(piece, seed=0, iterations=200)
            )
            place[part] = np.stack([layout[node] for node in part]) * math.sqrt(len(part)) * 0.7
            place[part, 0] += edge - place[part, 0].min()
            edge = place[part, 0].max() + 1.0
        return place
    rows, columns = model.size
    copy, cell = np.divmod(np.arange(count), rows * columns)
    variable = np.arange(count) if order is None else order.numpy()
    place[variable] = np.stack(
        [cell % columns + copy * (columns + 0.5), -(cell // columns)], axis=1
    )
    for node in range(count, len(network)):
        scope = list(network.nodes[node]["scope"])
        place[node] = place[scope].mean(0) if len(scope) > 1 else place[scope[0]] + 0.3
    return place
