"""Factor graphs: what is read and generated says what its tables say, by enumeration."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import torch

from bayesfed.inference.sum_product.graphs.factor_graph import FactorGraph
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.graphs.recognise import colours
from bayesfed.models.random_fields.grid import Link
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.support_priors import Transition
from tests.message_passing.graphs import (
    AGREE,
    CHAIN,
    LOGS,
    bipartite,
    by_model,
    by_tables,
    lattice,
    random_graph,
    same,
)

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
    graph = bipartite(
        {"a": 2, "b": 2},
        [
            (("a", "b"), {"factor": LOGS}),
            (("b", "a"), {"factor": LOGS}),
            (("a", "b"), {"factor": AGREE}),
        ],
    )
    model = FactorGraph.from_networkx(graph).lower()
    assert model.edges.tolist() == [[0], [1]]
    assert float(model.coupling) == pytest.approx(2 * CHAIN.terms()[0] + 0.8, abs=1e-12)


def test_weights_are_tables_before_the_logarithm():
    with_zero = {"table": [[0.2, 0.8], [1.0, 0.0]]}
    graph = bipartite(
        {"a": 2, "b": 2}, [(("a", "b"), {"table": LOGS.exp()}), (("b", "a"), with_zero)]
    )
    with np.errstate(divide="ignore"):
        expected = by_tables(graph)
    lowered = FactorGraph.from_networkx(graph)
    assert isinstance(lowered.lower(), Tables)
    assert same(by_model(lowered), expected)
    assert bool((expected == -torch.inf).any())


def test_one_object_may_be_logs_here_and_weights_there():
    table = np.array([[1.0, 2.0], [2.0, 5.0]])
    graph = bipartite(
        {"a": 2, "b": 2}, [(("a", "b"), {"factor": table}), (("a", "b"), {"table": table})]
    )
    assert same(
        by_model(FactorGraph.from_networkx(graph)).reshape(2, 2),
        torch.from_numpy(table + np.log(table)),
    )


def test_symmetric_tables_need_no_scope():
    draw = np.random.default_rng(0).integers(-9, 9, (2, 2, 2)) / 4
    table = sum(np.transpose(draw, axes) for axes in itertools.permutations(range(3)))
    graph = bipartite(
        {"a": 2, "b": 2, "c": 2},
        [("abc", {"scope": None, "factor": table}), ("a", {"scope": None, "factor": [0.0, 1.0]})],
    )
    assert same(by_model(FactorGraph.from_networkx(graph)), by_tables(graph))


def test_equal_tables_are_stored_once():
    cube = torch.randn(2, 2, 2, dtype=torch.float64)
    scopes = [("a", "b", "c"), ("b", "c", "d"), ("d", "a", "b"), ("c", "a", "d")]
    tables = [cube, cube, cube.clone(), cube.numpy().copy()]
    graph = bipartite(
        dict.fromkeys("abcd", 2),
        [(scope, {"factor": table}) for scope, table in zip(scopes, tables, strict=True)],
    )
    (group,) = FactorGraph.from_networkx(graph).lower().groups
    assert group.tables.shape == (1, 2, 2, 2)
    assert group.which.tolist() == [0, 0, 0, 0]
    assert group.scope.tolist() == [[0, 1, 2], [1, 2, 3], [3, 0, 1], [2, 0, 3]]


def test_unary_factors_go_to_the_field_and_missing_states_are_impossible():
    graph = bipartite(
        {"a": 3, "b": 2},
        [
            (("a",), {"factor": [0.0, 1.0, -math.inf]}),
            (("b",), {"factor": [0.5, 2.0]}),
            (("b",), {"factor": [1.0, 0.0]}),
        ],
    )
    model = FactorGraph.from_networkx(graph).lower()
    assert model.unary.tolist() == [[0.0, 1.0, -math.inf], [1.5, 2.0, -math.inf]]
    assert model.groups == ()


def test_parts_need_not_be_connected_and_the_constant_counts():
    graph = bipartite(
        {"a": 2, "b": 2, "alone": 2},
        [(("a", "b"), {"factor": [[3.0, 3.0], [3.0, 3.5]]}), (("a",), {"factor": [1.0, 1.0]})],
    )
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
    assert dict(zip(map(tuple, model.edges.T.tolist()), model.coupling.tolist(), strict=True)) == {
        (0, 1): -0.5,
        (1, 2): 0.8,
    }


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


# Generators.


@pytest.mark.parametrize("rule", [0.6, CHAIN, Link(0.5, -0.2, 0.1)])
def test_a_generated_grid_is_the_hand_built_one(rule):
    coupling, source, target = (
        rule
        if isinstance(rule, Link)
        else (Transition(rule, rule) if isinstance(rule, float) else rule).terms()
    )
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
