"""Factor graphs written out, read back and drawn."""

import math
import sys

import networkx as nx
import numpy as np
import pytest
import torch

from bayesfed.errors import ArgumentError, MissingExtraError
from bayesfed.inference.sum_product.graphs.factor_graph import FactorGraph
from bayesfed.models.random_fields.grid import Grid, Link
from tests.message_passing.graphs import (
    AGREE,
    CHAIN,
    by_model,
    by_tables,
    lattice,
    random_graph,
    same,
)

# There and back.


@pytest.mark.parametrize(
    "graph",
    [
        FactorGraph.grid((3, 4), CHAIN, 0.6, field=0.1),
        FactorGraph.grid(
            (2, 3),
            Link(torch.linspace(-1, 2, 4).double().reshape(2, 2)),
            Link(0.3, 0.1, 0.2),
            field=torch.linspace(-1, 1, 6).double().reshape(2, 3),
        ),
        FactorGraph.chain(5, CHAIN, field=-0.7),
        FactorGraph.tree([-1, 0, 0, 1, -1], CHAIN),
        FactorGraph.kernel_grid(
            (2, 4),
            (2, 2),
            Link(torch.tensor([[0.2], [-0.3]])),
            CHAIN,
            field=torch.tensor([[1.0, 2.0], [-1.0, 0.0]]),
        ),
        FactorGraph.pairwise(nx.petersen_graph(), coupling=0.4, field=0.1),
        FactorGraph.from_networkx(random_graph(1, binary=False)),
        FactorGraph.from_networkx(
            lattice(
                3,
                4,
                node=lambda i, j, _: (j, 7 * i % 3),
                column=AGREE,
                nodes=[(j, i) for i in range(3) for j in range(4)],
            )
        ),
    ],
)
def test_a_graph_written_and_read_is_the_same_model(graph):
    written = graph.to_networkx()
    count = math.prod(graph.shape)
    assert written is graph.to_networkx()
    assert list(written) == list(range(len(written)))
    assert [written.nodes[node]["type"] for node in written] == ["variable"] * count + [
        "factor"
    ] * (len(written) - count)
    assert nx.is_bipartite(written)
    again = FactorGraph.from_networkx(written)
    assert same(by_tables(written), by_model(graph))
    assert same(by_model(again), by_model(graph))
    assert isinstance(again.lower(), Grid) == (
        isinstance(graph.lower(), Grid)
        and min(graph.lower().size) > 1
        and graph.lower().copies == 1
    )


def test_factors_share_their_table_objects():
    graph = FactorGraph.grid((6, 7), 0.6, CHAIN, field=0.1).to_networkx()
    assert (
        len({id(data["factor"]) for _, data in graph.nodes(data=True) if data["type"] == "factor"})
        == 3
    )
    assert len(graph) == 42 + 6 * 6 + 5 * 7 + 42


def test_huge_graphs_are_not_written_out():
    with pytest.raises(
        ArgumentError, match=r"to_networkx: expected at most 2000000 nodes, found 10{12} or more"
    ):
        FactorGraph.grid((10**6, 10**6), 0.6, 0.6).to_networkx()
    with pytest.raises(ArgumentError, match="found 2995001 or more"):
        FactorGraph.grid((999, 1000), Link(0.1), Link(0.2)).to_networkx()


# Pictures.


@pytest.mark.parametrize(
    ("graph", "corner"),
    [
        (FactorGraph.grid((3, 4), 0.6, 0.7), (3.0, -2.0)),
        (FactorGraph.kernel_grid((1, 8), (2, 2), 0.6, 0.6, field=0.1), (3.5, -1.0)),
        (FactorGraph.tree([-1, 0, 0, -1], CHAIN), None),
        (FactorGraph.pairwise(nx.empty_graph(2), coupling=0.1), None),
    ],
)
def test_a_drawing_has_a_circle_a_variable_and_a_square_a_factor(graph, corner):
    axes = graph.draw()
    edges, circles, squares = axes.collections
    count, total = math.prod(graph.shape), len(graph.to_networkx())
    assert (len(circles.get_offsets()), len(squares.get_offsets())) == (count, total - count)
    assert len(edges.get_segments()) == graph.to_networkx().number_of_edges()
    assert [text.get_text() for text in axes.texts] == [str(name) for name in graph.variables]
    if corner:
        assert tuple(circles.get_offsets()[-1]) == corner
    assert graph.draw(axes) is axes


def test_a_grid_in_another_order_is_drawn_as_a_grid():
    nodes = [(i, j) for i in range(3) for j in range(4)]
    np.random.default_rng(1).shuffle(nodes)
    graph = FactorGraph.from_networkx(
        lattice(
            3,
            4,
            row=AGREE,
            column=AGREE,
            node=lambda i, j, _: (i, j),
            nodes=[tuple(map(int, node)) for node in nodes],
        )
    )
    assert graph.order is not None
    edges = graph.draw().collections[0]
    assert all(np.abs(np.diff(segment, axis=0)).sum() == 0.5 for segment in edges.get_segments())


def test_large_graphs_and_missing_matplotlib_are_said(monkeypatch):
    for size in ((1000, 1000), (15, 15)):
        with pytest.raises(ArgumentError, match="draw: expected at most 500 nodes"):
            FactorGraph.grid(size, 0.6, 0.6).draw()
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingExtraError, match=r"bayesfed\[examples\]"):
        FactorGraph.grid((2, 2), 0.6, 0.6).draw()
