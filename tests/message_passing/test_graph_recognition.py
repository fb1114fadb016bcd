"""Grids told from edges: recognised whatever their names, and only where they are grids."""

import itertools

import networkx as nx
import numpy as np
import pytest
import torch

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.factor_graph import FactorGraph
from bayesfed.inference.sum_product.graphs.recognise import recognise
from bayesfed.models.random_fields.grid import Grid, Link
from bayesfed.models.random_fields.ising import Ising
from tests.message_passing.graphs import AGREE, CHAIN, by_model, by_tables, lattice, same

# Grids told from edges.


def test_a_row_by_row_grid_is_recognised():
    graph = lattice(3, 4, column=AGREE)
    lowered = FactorGraph.from_networkx(graph)
    grid = lowered.lower()
    assert isinstance(grid, Grid)
    assert (grid.size, lowered.shape) == ((3, 4), (12,))
    assert lowered.variables == range(12)
    assert grid.row.coupling == pytest.approx(CHAIN.terms()[0], abs=1e-12)
    assert grid.column.coupling == pytest.approx(0.8, abs=1e-12)
    assert same(by_model(lowered), by_tables(graph))


def test_the_same_grid_with_any_names():
    nodes = [f"{i},{j}" for i, j in itertools.product(range(4), range(3))]
    graph = lattice(4, 3, column=AGREE, node=lambda i, j, _: f"{i},{j}", nodes=nodes)
    for node in nodes:
        graph.add_node(
            ("u", node), type="factor", factor=[0.0, float(node[0]) - 0.1 * float(node[2])]
        )
        graph.add_edge(("u", node), node)
    lowered = FactorGraph.from_networkx(graph)
    assert isinstance(lowered.lower(), Grid)
    assert lowered.lower().size == (4, 3)
    assert lowered.variables == tuple(nodes)
    assert same(by_model(lowered), by_tables(graph))


@pytest.mark.parametrize("size", [(2, 2), (2, 5), (5, 2), (3, 3), (4, 6), (13, 7)])
@pytest.mark.parametrize("seed", range(3))
def test_every_size_is_laid_out_as_it_was_whatever_the_order_of_its_edges(size, seed):
    torch.manual_seed(seed)
    rows, columns = size
    grid = Grid(
        size,
        Link(torch.randn(rows, columns - 1).double()),
        Link(torch.randn(rows - 1, columns).double()),
        torch.randn(size).double(),
    )
    flat, count = grid.ising(), rows * columns
    mixed = torch.randperm(len(flat.coupling))
    edges, coupling = flat.edges[:, mixed].flip(0), flat.coupling[mixed]
    shuffled = Ising(flat.field, edges, coupling, (count,), flat.colours)
    found = recognise(shuffled)
    assert found.size == size
    support = torch.randint(2, (50, count)).double()
    assert same(found.energy(support), shuffled.energy(support))


def test_couplings_that_differ_become_tensors_in_their_places():
    row, column = (
        torch.arange(6.0).double().reshape(2, 3) + 1,
        -torch.arange(4.0).double().reshape(1, 4) - 1,
    )
    grid = Grid((2, 4), Link(row), Link(column), torch.arange(8.0).double().reshape(2, 4))
    found = recognise(grid.ising())
    assert torch.equal(found.row.coupling, row)
    assert torch.equal(found.column.coupling, column)
    assert torch.equal(found.field, grid.field)
    assert found.shape == (2, 4)


def test_uniform_values_become_numbers():
    found = recognise(Grid((3, 5), Link(0.5), Link(torch.full((2, 5), 0.25).double()), 0.1).ising())
    assert (found.row, found.column, found.field) == (Link(0.5), Link(0.25), 0.1)


def test_columns_first_is_the_transposed_grid():
    graph = nx.Graph()
    graph.add_nodes_from((i, j) for j in range(3) for i in range(5))
    graph.add_edges_from(nx.grid_2d_graph(5, 3).edges)
    lowered = FactorGraph.pairwise(graph, coupling=0.3)
    assert lowered.lower().size == (3, 5)
    assert lowered.variables[1] == (1, 0)


def rewired():
    """A 4 x 4 grid with one edge moved: as many edges, another graph."""
    graph = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4))
    graph.remove_edge(5, 6)
    graph.add_edge(5, 10)
    return graph


def wrapped():
    """A 4 x 4 grid whose row edge 4-5 goes round the border instead: 3-4, consecutive numbers all
    the same.
    """
    graph = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4))
    graph.remove_edge(4, 5)
    graph.add_edge(3, 4)
    return graph


def in_parts():
    """Two parts with the nodes, the edges and the four corners of a 4 x 4 grid."""
    other = nx.circulant_graph(12, [1, 6])
    other.add_edges_from([(0, 3), (5, 9)])
    return nx.disjoint_union(nx.cycle_graph(4), other)


def missing_edge():
    graph = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4))
    graph.remove_edge(5, 6)
    return graph


@pytest.mark.parametrize(
    "graph",
    [
        nx.path_graph(6),
        nx.cycle_graph(6),
        nx.grid_2d_graph(4, 5, periodic=(True, False)),
        nx.grid_2d_graph(4, 5, periodic=(False, True)),
        nx.grid_2d_graph(4, 4, periodic=True),
        nx.grid_graph((2, 3, 3)),
        nx.petersen_graph(),
        nx.disjoint_union(nx.grid_2d_graph(3, 3), nx.grid_2d_graph(3, 3)),
        rewired(),
        wrapped(),
        in_parts(),
        missing_edge(),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_is_no_full_grid_stays_an_edge_list(graph, shuffle):
    nodes = list(graph)
    if shuffle:
        np.random.default_rng(0).shuffle(nodes)
    copy = nx.Graph()
    copy.add_nodes_from(map(tuple, nodes) if isinstance(nodes[0], np.ndarray) else nodes)
    copy.add_edges_from(graph.edges)
    lowered = FactorGraph.pairwise(copy, coupling=0.4)
    assert isinstance(lowered.lower(), Ising)


@pytest.mark.parametrize("size", [(3, 3), (2, 6), (4, 4), (5, 3)])
def test_grids_with_a_few_edges_swapped_are_grids_only_if_they_are_the_same(size):
    grid, seen = nx.convert_node_labels_to_integers(nx.grid_2d_graph(*size)), set()
    for seed in range(40):
        # Swapping ends keeps every degree, and so the four corners.
        graph = nx.double_edge_swap(grid.copy(), nswap=1 + seed % 3, max_tries=1000, seed=seed)
        found = isinstance(FactorGraph.pairwise(graph, coupling=0.4).lower(), Grid)
        assert found == nx.utils.graphs_equal(graph, grid)
        seen.add(found)
    assert False in seen


def test_a_repeated_edge_cannot_stand_for_a_missing_one():
    whole = Grid((3, 3), Link(0.4), Link(0.4)).ising()
    edges = whole.edges.clone()
    edges[:, 1] = edges[:, 0]
    assert recognise(whole) is not None
    with pytest.raises(ArgumentError, match="each pair at most once"):
        Ising(whole.field, edges, whole.coupling, (9,), whole.colours)
