"""Factor graphs written out and read back."""

import math

import networkx as nx
import pytest
import torch

from bayesfed.errors import ArgumentError
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
        FactorGraph.pairwise(nx.Graph([(0, 1), (0, 2), (1, 3)]), coupling=0.7, field=-0.2),
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
