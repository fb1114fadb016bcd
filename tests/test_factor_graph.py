"""Factor graphs: what is read, generated and recognised says what its tables say, by enumeration; what is wrong is refused in words."""

import itertools
import math
import sys
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch

from bayesfed.errors import ArgumentError, MissingExtraError
from bayesfed.inference.graphs.factor_graph import FactorGraph
from bayesfed.inference.graphs.flat import Tables
from bayesfed.inference.graphs.recognise import colours, recognise
from bayesfed.models.grid import Grid, Link
from bayesfed.models.ising import Ising
from bayesfed.models.supports import Transition

CHAIN = Transition(0.9, 0.7)
LOGS = torch.tensor([[0.9, 0.1], [0.3, 0.7]], dtype=torch.float64).log()
AGREE = [[0.0, 0.0], [0.0, 0.8]]


def bipartite(cards, factors):
    """A graph with variables `cards` {name: card} and factors [(scope, attributes)]; an attribute scope=None is left out."""
    graph = nx.Graph()
    for name, card in cards.items():
        graph.add_node(name, type="variable", card=card)
    for number, (scope, data) in enumerate(factors):
        attributes = {"type": "factor", "scope": scope, **data}
        graph.add_node(("f", number), **{name: value for name, value in attributes.items() if value is not None})
        graph.add_edges_from((("f", number), name) for name in scope)
    return graph


def states(cards):
    return list(itertools.product(*(range(card) for card in cards)))


def by_tables(graph, chosen=None):
    """Log weight of every configuration, or of chosen ones, straight from the attributes, variables in node order."""
    cards = {node: data.get("card", 2) for node, data in graph.nodes(data=True) if data["type"] == "variable"}
    index = {node: i for i, node in enumerate(cards)}
    rows = []
    for state in chosen or states(cards.values()):
        total = graph.graph.get("log_constant", 0.0)
        for node, data in graph.nodes(data=True):
            if data["type"] == "factor":
                table = np.asarray(data["factor"]) if "factor" in data else np.log(np.asarray(data["table"]))
                total += float(table[tuple(state[index[name]] for name in data.get("scope", tuple(graph[node])))])
        rows.append(total)
    return torch.tensor(rows, dtype=torch.float64)


def by_model(factor_graph):
    """Log weight of every configuration, from the flat model, variables in the user's order."""
    model = factor_graph.lower()
    if isinstance(model, Tables):
        rows = []
        for state in states(model.cards.tolist()):
            total = sum(float(model.unary[i, s]) for i, s in enumerate(state))
            for group in model.groups:
                for which, scope in zip(group.which.tolist(), group.scope.tolist(), strict=True):
                    total += float(group.tables[which][tuple(state[i] for i in scope)])
            rows.append(total)
        return torch.tensor(rows, dtype=torch.float64) + factor_graph.log_constant
    support = torch.tensor(states([2] * math.prod(factor_graph.shape)), dtype=torch.float64)
    if factor_graph.order is not None:
        support = support[:, factor_graph.order]
    return model.energy(support.reshape(-1, *factor_graph.shape)) + factor_graph.log_constant


def same(left, right, tolerance=1e-12):
    return left.shape == right.shape and torch.allclose(left, right, rtol=0, atol=tolerance)


def random_graph(seed, *, binary, names="abcde"):
    rng = np.random.default_rng(seed)
    cards = {name: 2 if binary else int(rng.integers(1, 4)) for name in names}
    factors = []
    for _ in range(9):
        scope = tuple(rng.permutation(list(cards))[: rng.integers(1, 3 if binary else 4)].tolist())
        table = rng.normal(0, 2, [cards[name] for name in scope])
        if not binary and table.size > 2:
            table.flat[rng.integers(table.size)] = -np.inf
        factors.append((scope, {"factor": [torch.from_numpy(table), table, table.tolist()][rng.integers(3)]}))
    return bipartite(cards, factors)


def lattice(rows, columns, *, row=LOGS, column=LOGS, node=lambda i, j, columns: i * columns + j, nodes=None):
    """A hand-built K x M grid; `nodes` is the order in which the variables are added."""
    graph = nx.Graph()
    places = list(itertools.product(range(rows), range(columns)))
    graph.add_nodes_from(nodes if nodes is not None else [node(i, j, columns) for i, j in places], type="variable")
    for i, j in places:
        for name, table, k, m in (("row", row, i, j + 1), ("column", column, i + 1, j)):
            if k < rows and m < columns:
                scope = (node(i, j, columns), node(k, m, columns))
                graph.add_node((name, i, j), type="factor", scope=scope, factor=table)
                graph.add_edges_from(((name, i, j), end) for end in scope)
    return graph


# Lowering.


@pytest.mark.parametrize("seed", range(8))
def test_pairs_of_bits_become_couplings_exactly(seed):
    graph = random_graph(seed, binary=True)
    lowered = FactorGraph.from_networkx(graph)
    model = lowered.lower()
    assert isinstance(model, Ising)
    assert bool((model.edges[0] < model.edges[1]).all())
    assert len(model.edges.unique(dim=1).T) == model.edges.shape[1]
    assert model.coupling.dtype == torch.float64
    assert same(by_model(lowered), by_tables(graph))
    assert lowered.variables == tuple("abcde")
    assert lowered.shape == (5,)


@pytest.mark.parametrize("seed", range(8))
def test_other_tables_are_kept_as_they_are(seed):
    graph = random_graph(seed, binary=False)
    lowered = FactorGraph.from_networkx(graph)
    assert isinstance(lowered.lower(), Tables)
    assert lowered.log_constant == 0.0
    assert lowered.shape == (5,)
    assert same(by_model(lowered), by_tables(graph))


@pytest.mark.parametrize("scope", [("a", "b"), ("b", "a")])
def test_the_scope_says_which_axis_is_whose(scope):
    graph = bipartite({"a": 2, "b": 2}, [(scope, {"factor": LOGS})])
    expected = LOGS if scope == ("a", "b") else LOGS.T
    assert same(by_model(FactorGraph.from_networkx(graph)).reshape(2, 2), expected)


def test_factors_of_one_scope_add_up():
    graph = bipartite({"a": 2, "b": 2}, [(("a", "b"), {"factor": LOGS}), (("b", "a"), {"factor": LOGS}), (("a", "b"), {"factor": AGREE})])
    model = FactorGraph.from_networkx(graph).lower()
    assert model.edges.tolist() == [[0], [1]]
    assert float(model.coupling) == pytest.approx(2 * CHAIN.terms()[0] + 0.8, abs=1e-12)


def test_weights_are_tables_before_the_logarithm():
    with_zero = {"table": [[0.2, 0.8], [1.0, 0.0]]}
    graph = bipartite({"a": 2, "b": 2}, [(("a", "b"), {"table": LOGS.exp()}), (("b", "a"), with_zero)])
    with np.errstate(divide="ignore"):
        expected = by_tables(graph)
    lowered = FactorGraph.from_networkx(graph)
    assert isinstance(lowered.lower(), Tables)
    assert same(by_model(lowered), expected)
    assert bool((expected == -torch.inf).any())


def test_one_object_may_be_logs_here_and_weights_there():
    table = np.array([[1.0, 2.0], [2.0, 5.0]])
    graph = bipartite({"a": 2, "b": 2}, [(("a", "b"), {"factor": table}), (("a", "b"), {"table": table})])
    assert same(by_model(FactorGraph.from_networkx(graph)).reshape(2, 2), torch.from_numpy(table + np.log(table)))


def test_symmetric_tables_need_no_scope():
    draw = np.random.default_rng(0).integers(-9, 9, (2, 2, 2)) / 4
    table = sum(np.transpose(draw, axes) for axes in itertools.permutations(range(3)))
    graph = bipartite({"a": 2, "b": 2, "c": 2}, [("abc", {"scope": None, "factor": table}), ("a", {"scope": None, "factor": [0.0, 1.0]})])
    assert same(by_model(FactorGraph.from_networkx(graph)), by_tables(graph))


def test_equal_tables_are_stored_once():
    cube = torch.randn(2, 2, 2, dtype=torch.float64)
    scopes = [("a", "b", "c"), ("b", "c", "d"), ("d", "a", "b"), ("c", "a", "d")]
    tables = [cube, cube, cube.clone(), cube.numpy().copy()]
    graph = bipartite(dict.fromkeys("abcd", 2), [(scope, {"factor": table}) for scope, table in zip(scopes, tables, strict=True)])
    (group,) = FactorGraph.from_networkx(graph).lower().groups
    assert group.tables.shape == (1, 2, 2, 2)
    assert group.which.tolist() == [0, 0, 0, 0]
    assert group.scope.tolist() == [[0, 1, 2], [1, 2, 3], [3, 0, 1], [2, 0, 3]]


def test_unary_factors_go_to_the_field_and_missing_states_are_impossible():
    graph = bipartite(
        {"a": 3, "b": 2}, [(("a",), {"factor": [0.0, 1.0, -math.inf]}), (("b",), {"factor": [0.5, 2.0]}), (("b",), {"factor": [1.0, 0.0]})]
    )
    model = FactorGraph.from_networkx(graph).lower()
    assert model.unary.tolist() == [[0.0, 1.0, -math.inf], [1.5, 2.0, -math.inf]]
    assert model.groups == ()


def test_parts_need_not_be_connected_and_the_constant_counts():
    graph = bipartite({"a": 2, "b": 2, "alone": 2}, [(("a", "b"), {"factor": [[3.0, 3.0], [3.0, 3.5]]}), (("a",), {"factor": [1.0, 1.0]})])
    graph.graph["log_constant"] = -0.25
    lowered = FactorGraph.from_networkx(graph)
    assert lowered.log_constant == 3.75
    assert same(by_model(lowered), by_tables(graph))
    assert lowered.lower().is_forest


# Graphs without factor nodes, and colourings.


def test_pairwise_reads_edges_and_fields():
    graph = nx.Graph()
    graph.add_node("x", field=0.3)
    graph.add_edge("y", "x", coupling=-0.5)
    graph.add_edge("y", "z")
    lowered = FactorGraph.pairwise(graph, coupling=0.8, field=-0.1)
    model = lowered.lower()
    assert lowered.variables == ("x", "y", "z")
    assert model.field.tolist() == [0.3, -0.1, -0.1]
    assert dict(zip(map(tuple, model.edges.T.tolist()), model.coupling.tolist(), strict=True)) == {(0, 1): -0.5, (1, 2): 0.8}


@pytest.mark.parametrize(
    ("graph", "number"),
    [
        (nx.empty_graph(3), 1),
        (nx.path_graph(7), 2),
        (nx.disjoint_union(nx.cycle_graph(6), nx.star_graph(3)), 2),
        (nx.cycle_graph(5), 3),
        (nx.complete_graph(4), 4),
    ],
)
def test_colourings_are_proper_and_small(graph, number):
    model = FactorGraph.pairwise(graph, coupling=0.4).lower()
    left, right = model.edges
    assert len(model.colours.unique()) == number
    assert not bool((model.colours[left] == model.colours[right]).any())
    assert torch.equal(colours(len(graph), model.edges), model.colours)


# Grids told from edges.


def test_a_row_by_row_grid_is_recognised():
    graph = lattice(3, 4, column=AGREE)
    lowered = FactorGraph.from_networkx(graph)
    grid = lowered.lower()
    assert isinstance(grid, Grid)
    assert (grid.size, lowered.order, lowered.shape) == ((3, 4), None, (12,))
    assert lowered.variables == range(12)
    assert grid.row.coupling == pytest.approx(CHAIN.terms()[0], abs=1e-12)
    assert grid.column.coupling == pytest.approx(0.8, abs=1e-12)
    assert same(by_model(lowered), by_tables(graph))


def test_the_same_grid_with_any_names_and_in_any_order():
    places = list(itertools.product(range(4), range(3)))
    nodes = [f"{i},{j}" for i, j in places]
    np.random.default_rng(3).shuffle(nodes)
    graph = lattice(4, 3, column=AGREE, node=lambda i, j, _: f"{i},{j}", nodes=nodes)
    for node in nodes:
        graph.add_node(("u", node), type="factor", factor=[0.0, float(node[0]) - 0.1 * float(node[2])])
        graph.add_edge(("u", node), node)
    lowered = FactorGraph.from_networkx(graph)
    assert isinstance(lowered.lower(), Grid)
    assert lowered.order is not None
    assert sorted(lowered.lower().size) == [3, 4]
    assert lowered.variables == tuple(nodes)
    assert same(by_model(lowered), by_tables(graph))


@pytest.mark.parametrize("size", [(2, 2), (2, 5), (5, 2), (3, 3), (4, 6), (13, 7)])
@pytest.mark.parametrize("seed", range(3))
def test_every_shuffled_size_is_laid_out_as_it_was(size, seed):
    torch.manual_seed(seed)
    rows, columns = size
    grid = Grid(size, Link(torch.randn(rows, columns - 1).double()), Link(torch.randn(rows - 1, columns).double()), torch.randn(size).double())
    flat, count = grid.ising(), rows * columns
    number = torch.randperm(count)
    shuffled = Ising(flat.field[number.argsort()], number[flat.edges].flip(0), flat.coupling, (count,), flat.colours[number.argsort()])
    found, order = recognise(shuffled)
    assert sorted(found.size) == sorted(size)
    support = torch.randint(2, (50, count)).double()
    given = support if order is None else support[:, order]
    assert same(found.energy(given), shuffled.energy(support))


def test_couplings_that_differ_become_tensors_in_their_places():
    row, column = torch.arange(6.0).double().reshape(2, 3) + 1, -torch.arange(4.0).double().reshape(1, 4) - 1
    grid = Grid((2, 4), Link(row), Link(column), torch.arange(8.0).double().reshape(2, 4))
    found, order = recognise(grid.ising())
    assert order is None
    assert torch.equal(found.row.coupling, row)
    assert torch.equal(found.column.coupling, column)
    assert torch.equal(found.field, grid.field)
    assert found.shape == (2, 4)


def test_uniform_values_become_numbers():
    found, _ = recognise(Grid((3, 5), Link(0.5), Link(torch.full((2, 5), 0.25).double()), 0.1).ising())
    assert (found.row, found.column, found.field) == (Link(0.5), Link(0.25), 0.1)


def test_columns_first_is_the_transposed_grid():
    graph = nx.Graph()
    graph.add_nodes_from((i, j) for j in range(3) for i in range(5))
    graph.add_edges_from(nx.grid_2d_graph(5, 3).edges)
    lowered = FactorGraph.pairwise(graph, coupling=0.3)
    assert lowered.order is None
    assert lowered.lower().size == (3, 5)
    assert lowered.variables[1] == (1, 0)


def rewired():
    """A 4 x 4 grid with one edge moved: as many edges, another graph."""
    graph = nx.convert_node_labels_to_integers(nx.grid_2d_graph(4, 4))
    graph.remove_edge(5, 6)
    graph.add_edge(5, 10)
    return graph


def wrapped():
    """A 4 x 4 grid whose row edge 4-5 goes round the border instead: 3-4, consecutive numbers all the same."""
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
    assert lowered.order is None


@pytest.mark.parametrize("size", [(3, 3), (2, 6), (4, 4), (5, 3)])
def test_grids_with_a_few_edges_swapped_are_grids_only_if_isomorphic(size):
    grid, seen = nx.convert_node_labels_to_integers(nx.grid_2d_graph(*size)), set()
    for seed in range(40):
        # Swapping ends keeps every degree, and so the four corners.
        graph = nx.double_edge_swap(grid.copy(), nswap=1 + seed % 3, max_tries=1000, seed=seed)
        found = isinstance(FactorGraph.pairwise(graph, coupling=0.4).lower(), Grid)
        assert found == nx.is_isomorphic(graph, grid)
        seen.add(found)
    assert False in seen


def test_a_repeated_edge_cannot_stand_for_a_missing_one():
    whole = Grid((3, 3), Link(0.4), Link(0.4)).ising()
    edges = whole.edges.clone()
    edges[:, 1] = edges[:, 0]
    assert recognise(whole) is not None
    with pytest.raises(ArgumentError, match="each pair at most once"):
        Ising(whole.field, edges, whole.coupling, (9,), whole.colours)


# Generators.


@pytest.mark.parametrize("rule", [0.6, CHAIN, Link(0.5, -0.2, 0.1)])
def test_a_generated_grid_is_the_hand_built_one(rule):
    coupling, source, target = rule if isinstance(rule, Link) else (Transition(rule, rule) if isinstance(rule, float) else rule).terms()
    off = 0.0 if isinstance(rule, Link) else math.log(rule if isinstance(rule, float) else rule.off)
    table = np.array([[off, off + target], [off + source, off + source + target + coupling]])
    graph = lattice(2, 4, row=table, column=AGREE)
    for node in range(8):
        graph.add_node(("u", node), type="factor", factor=[0.0, -0.3])
        graph.add_edge(("u", node), node)
    generated = FactorGraph.grid((2, 4), rule, Link(0.8), field=-0.3)
    assert same(by_model(generated), by_tables(graph))
    assert generated.shape == (2, 4)


def test_a_generated_grid_holds_a_few_numbers():
    graph = FactorGraph.grid((10**9, 10**9), 0.6, 0.6)
    assert graph.lower() is graph.lower()
    assert len(graph.variables) == 10**18
    assert isinstance(graph.variables, range)


def test_a_chain_of_probabilities_has_the_mass_of_its_start():
    chain = FactorGraph.chain(6, CHAIN)
    assert chain.shape == (6,)
    assert chain.lower().size == (1, 6)
    assert float(by_model(chain).logsumexp(0)) == pytest.approx(math.log(2), abs=1e-12)
    hand = bipartite(dict.fromkeys(range(6), 2), [((i, i + 1), {"factor": LOGS}) for i in range(5)])
    assert same(by_model(chain), by_tables(hand))


@pytest.mark.parametrize("parents", [[-1, 0, 0, 1, 1, 2], [1, 2, -1, 5, 3, -1], [-1, -1], [-1]])
def test_a_tree_is_the_hand_built_one(parents):
    hand = bipartite(dict.fromkeys(range(len(parents)), 2), [((p, i), {"factor": LOGS}) for i, p in enumerate(parents) if p >= 0])
    tree = FactorGraph.tree(parents, CHAIN)
    assert same(by_model(tree), by_tables(hand))
    assert tree.lower().is_forest
    assert tree.shape == (len(parents),)


def test_a_kernel_grid_is_one_grid_a_kernel():
    graph = FactorGraph.kernel_grid((2, 8), (2, 2), CHAIN, Link(0.8), field=0.2)
    assert graph.shape == (2, 8)
    assert graph.lower().copies == 4
    hand = [(places, {"factor": table}) for k in range(0, 16, 4) for places, table in (((k, k + 1), LOGS), ((k + 2, k + 3), LOGS))]
    hand += [((k + i, k + i + 2), {"factor": AGREE}) for k in range(0, 16, 4) for i in range(2)]
    hand += [((i,), {"factor": [0.0, 0.2]}) for i in range(16)]
    support = torch.randint(2, (20, 16))
    expected = by_tables(bipartite(dict.fromkeys(range(16), 2), hand), support.tolist())
    assert same(graph.lower().energy(support.reshape(20, 2, 8)) + graph.log_constant, expected)


# There and back.


@pytest.mark.parametrize(
    "graph",
    [
        FactorGraph.grid((3, 4), CHAIN, 0.6, field=0.1),
        FactorGraph.grid(
            (2, 3), Link(torch.linspace(-1, 2, 4).double().reshape(2, 2)), Link(0.3, 0.1, 0.2), field=torch.linspace(-1, 1, 6).double().reshape(2, 3)
        ),
        FactorGraph.chain(5, CHAIN, field=-0.7),
        FactorGraph.tree([-1, 0, 0, 1, -1], CHAIN),
        FactorGraph.kernel_grid((2, 4), (2, 2), Link(torch.tensor([[0.2], [-0.3]])), CHAIN, field=torch.tensor([[1.0, 2.0], [-1.0, 0.0]])),
        FactorGraph.pairwise(nx.petersen_graph(), coupling=0.4, field=0.1),
        FactorGraph.from_networkx(random_graph(1, binary=False)),
        FactorGraph.from_networkx(
            lattice(3, 4, node=lambda i, j, _: (j, 7 * i % 3), column=AGREE, nodes=[(j, i) for i in range(3) for j in range(4)])
        ),
    ],
)
def test_a_graph_written_and_read_is_the_same_model(graph):
    written = graph.to_networkx()
    count = math.prod(graph.shape)
    assert written is graph.to_networkx()
    assert list(written) == list(range(len(written)))
    assert [written.nodes[node]["type"] for node in written] == ["variable"] * count + ["factor"] * (len(written) - count)
    assert nx.is_bipartite(written)
    again = FactorGraph.from_networkx(written)
    assert same(by_tables(written), by_model(graph))
    assert same(by_model(again), by_model(graph))
    assert isinstance(again.lower(), Grid) == (isinstance(graph.lower(), Grid) and min(graph.lower().size) > 1 and graph.lower().copies == 1)


def test_factors_share_their_table_objects():
    graph = FactorGraph.grid((6, 7), 0.6, CHAIN, field=0.1).to_networkx()
    assert len({id(data["factor"]) for _, data in graph.nodes(data=True) if data["type"] == "factor"}) == 3
    assert len(graph) == 42 + 6 * 6 + 5 * 7 + 42


def test_huge_graphs_are_not_written_out():
    with pytest.raises(ArgumentError, match=r"to_networkx: expected at most 2000000 nodes, found 10{12} or more"):
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
        lattice(3, 4, row=AGREE, column=AGREE, node=lambda i, j, _: (i, j), nodes=[tuple(map(int, node)) for node in nodes])
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


# What is refused.


def pair(**data):
    """Two variables and one factor, whose attributes are replaced."""
    return bipartite({"a": 2, "b": 2}, [(("a", "b"), data)])


def with_edges(graph, *edges):
    graph.add_edges_from(edges)
    return graph


def without_edges(graph):
    graph.remove_edges_from(list(graph.edges))
    return graph


def with_card(card):
    graph = nx.Graph()
    graph.add_node("a", type="variable", card=card)
    return graph


def with_node(**data):
    graph = nx.Graph()
    graph.add_node("a", **data)
    return graph


def with_constant(value):
    graph = pair(factor=LOGS)
    graph.graph["log_constant"] = value
    return graph


NAN, INF = math.nan, math.inf
BAD = {
    "directed": (nx.DiGraph([(0, 1)]), "from_networkx: expected a simple undirected graph"),
    "multigraph": (nx.MultiGraph([(0, 1)]), "from_networkx: expected a simple undirected graph"),
    "empty": (nx.Graph(), "from_networkx: expected a simple undirected graph with nodes"),
    "no graph": (SimpleNamespace(), "from_networkx: expected a simple undirected graph"),
    "unknown type": (with_node(type="check"), "node 'a': expected type 'variable' or 'factor', found check"),
    "no type": (with_node(), "node 'a': expected type .* found None; try .*FactorGraph.pairwise"),
    "two variables": (with_edges(pair(factor=LOGS), ("a", "b")), "edge 'a'-'b': expected a variable and a factor, found two variables"),
    "two factors": (
        with_edges(bipartite({"a": 2}, [(("a",), {"factor": [0.0, 1.0]}), (("a",), {"factor": [0.0, 1.0]})]), (("f", 0), ("f", 1))),
        "expected a variable and a factor, found two factors",
    ),
    "loop on a variable": (with_edges(pair(factor=LOGS), ("a", "a")), "edge 'a'-'a': .* found a self loop"),
    "loop on a factor": (with_edges(pair(factor=LOGS), (("f", 0), ("f", 0))), "factor .'f', 0.: expected edges to variables, found a self loop"),
    "loop without scope": (with_edges(pair(factor=AGREE, scope=None), (("f", 0), ("f", 0))), "found a self loop"),
    "no neighbour": (without_edges(pair(factor=LOGS)), "factor .'f', 0.: expected an edge .* found no neighbour"),
    "asymmetric": (pair(factor=LOGS, scope=None), "an undirected edge does not record argument order; try scope="),
    "unequal cards": (bipartite({"a": 2, "b": 3}, [("ab", {"scope": None, "factor": np.zeros((2, 3))})]), "does not record argument order"),
    "asymmetric in the last axes": (
        bipartite(dict.fromkeys("abc", 2), [("abc", {"scope": None, "factor": [[[0, 1], [0, 0]], [[0, 1], [0, 0]]]})]),
        "does not record argument order",
    ),
    "fewer in the scope": (pair(factor=[0.0, 1.0], scope=("a",)), "scope: expected its neighbours .'a', 'b'., found .'a',."),
    "other in the scope": (pair(factor=LOGS, scope=("a", "c")), "scope: expected its neighbours"),
    "unhashable in the scope": (pair(factor=LOGS, scope=("a", ["b"])), "scope: expected its neighbours"),
    "twice in the scope": (pair(factor=LOGS, scope=("a", "a")), "scope: expected each variable once"),
    "thrice in the scope": (pair(factor=np.zeros((2, 2, 2)), scope=("a", "b", "a")), "scope: expected each variable once"),
    "unordered scope": (pair(factor=LOGS, scope={"a", "b"}), "scope: expected an ordered tuple"),
    "no table": (pair(), "expected either 'factor' .* found neither"),
    "two tables": (pair(factor=LOGS, table=LOGS.exp()), "expected either 'factor' .* found both"),
    "shape": (pair(factor=torch.zeros(2, 3)), r"factor .'f', 0.: expected a table of shape \(2, 2\), found \(2, 3\)"),
    "arity": (pair(factor=[0.0, 1.0]), r"expected a table of shape \(2, 2\), found \(2,\)"),
    "number": (pair(factor=1.0), r"expected a table of shape \(2, 2\), found \(\)"),
    "ragged": (pair(factor=[[0.0], [1.0, 2.0]]), "factor: expected a table of numbers"),
    "words": (pair(factor=[["a", "b"], ["c", "d"]]), "factor: expected a table of numbers"),
    "nothing": (pair(factor=[]), "expected 1 to 65536 entries, found 0"),
    "NaN": (pair(factor=[[0.0, NAN], [0.0, 0.0]]), "factor: expected finite logs or -inf"),
    "+inf": (pair(factor=[[0.0, INF], [0.0, 0.0]]), "factor: expected finite logs or -inf"),
    "-inf everywhere": (pair(factor=[[-INF, -INF], [-INF, -INF]]), "factor: expected a combination that is possible, found -inf everywhere"),
    "negative weight": (pair(table=[[1.0, -1.0], [1.0, 1.0]]), "table: expected non-negative finite weights"),
    "NaN weight": (pair(table=[[1.0, NAN], [1.0, 1.0]]), "table: expected non-negative finite weights"),
    "infinite weight": (pair(table=[[1.0, INF], [1.0, 1.0]]), "table: expected non-negative finite weights"),
    "zeros": (pair(table=np.zeros((2, 2))), "table: expected a combination that is possible, found zeros"),
    "card 0": (with_card(0), "variable 'a': expected a whole number card from 1 to 65536, found 0"),
    "half a card": (with_card(2.5), "variable 'a': expected a whole number card"),
    "card True": (with_card(True), "variable 'a': expected a whole number card"),
    "card huge": (with_card(2**16 + 1), "variable 'a': expected a whole number card"),
    "large": (
        bipartite(dict.fromkeys(range(17), 2), [(tuple(range(17)), {"factor": torch.zeros([2] * 17)})]),
        "expected 1 to 65536 entries, found 131072",
    ),
    "contradiction": (
        bipartite({"a": 2, "b": 2}, [("b", {"scope": ("b",), "table": [1, 0]}), ("b", {"scope": ("b",), "table": [0, 1]})]),
        "variable 'b': expected a state that its unary factors allow",
    ),
    "constant": (with_constant("1"), r"log_constant'.: expected a finite number, found 1"),
    "infinite constant": (with_constant(INF), r"log_constant'.: expected a finite number, found inf"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_graphs_are_refused_in_words(name):
    graph, message = BAD[name]
    with pytest.raises(ArgumentError, match=message):
        FactorGraph.from_networkx(graph)


def test_the_factor_at_fault_is_named_among_good_ones():
    graph = bipartite(dict.fromkeys("abc", 2), [(("a", "b"), {"factor": AGREE}), (("b", "c"), {"factor": [[0.0, NAN], [0.0, 0.0]]})])
    with pytest.raises(ArgumentError, match=r"factor \('f', 1\)"):
        FactorGraph.from_networkx(graph)
    graph.nodes["f", 1]["factor"] = [[0.0, 0.0, 0.0]] * 2
    with pytest.raises(ArgumentError, match=r"factor \('f', 1\): expected a table of shape \(2, 2\), found \(2, 3\)"):
        FactorGraph.from_networkx(graph)


def test_a_table_of_exactly_the_limit_is_read():
    graph = bipartite(dict.fromkeys(range(16), 2), [(tuple(range(16)), {"factor": torch.zeros([2] * 16)})])
    assert FactorGraph.from_networkx(graph).lower().groups[0].tables.numel() == 2**16


@pytest.mark.parametrize(
    ("graph", "options", "message"),
    [
        (nx.DiGraph([(0, 1)]), {"coupling": 1.0}, "pairwise: expected a simple undirected graph"),
        (nx.Graph(), {}, "pairwise: expected a simple undirected graph with nodes"),
        (nx.Graph([(0, 0)]), {"coupling": 1.0}, "edge 0-0: expected two ends, found a self loop"),
        (nx.Graph([(0, 1)]), {}, "edge 0-1: expected a finite number, found None; try coupling="),
        (nx.Graph([(0, 1, {"coupling": "1"})]), {}, "edge 0-1: expected a finite number, found 1"),
        (nx.Graph([(0, 1)]), {"coupling": INF}, "edge 0-1: expected a finite number, found inf"),
        (nx.path_graph(2), {"coupling": 1.0, "field": NAN}, "node 0: expected a finite number, found nan"),
    ],
)
def test_bad_pairwise_graphs_are_refused(graph, options, message):
    with pytest.raises(ArgumentError, match=message):
        FactorGraph.pairwise(graph, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FactorGraph.grid((0, 3), 0.6, 0.6), "sides >= 1"),
        (lambda: FactorGraph.grid((2, 3), 1.0, 0.6), r"a probability in \(0, 1\)"),
        (lambda: FactorGraph.grid((2, 3), Link(torch.zeros(3, 2)), 0.6), "Grid.row"),
        (lambda: FactorGraph.chain(0, 0.6), "sides >= 1"),
        (lambda: FactorGraph.kernel_grid((6, 4), (3, 2), 0.6, 0.6), r"kernel_grid.shape: expected \(out, in \* 6\)"),
        (lambda: FactorGraph.kernel_grid((6,), (3, 2), 0.6, 0.6), "kernel_grid.shape"),
        (lambda: FactorGraph.tree([], 0.6), "tree.parents: expected for each of n variables"),
        (lambda: FactorGraph.tree([-1, 2], 0.6), "tree.parents: expected for each of n variables"),
        (lambda: FactorGraph.tree([-2], 0.6), "tree.parents: expected for each of n variables"),
        (lambda: FactorGraph.tree([-1, 0.5], 0.6), "tree.parents: expected for each of n variables"),
        (lambda: FactorGraph.tree([-1, 2, 1, 1], 0.6), "tree.parents: expected a root above every variable, found a circle above 1"),
        (lambda: FactorGraph.tree([0], 0.6), "found a circle above 0"),
        (lambda: FactorGraph.tree([-1, 0], Link(torch.zeros(1))), "tree.transition: expected one finite table"),
        (lambda: FactorGraph.tree([-1, 0], Link(INF)), "tree.transition: expected one finite table"),
        (lambda: FactorGraph(Grid((2, 2)), names=("a",)), "FactorGraph.names: expected 4 names"),
        (lambda: FactorGraph(Grid((2, 2)), order=torch.zeros(4).long()), "FactorGraph.order: expected a permutation"),
    ],
)
def test_bad_generators_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()
