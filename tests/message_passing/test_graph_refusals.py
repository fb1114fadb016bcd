"""Factor graphs that are wrong are refused in words."""

import math
from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch

from bayesfed.errors import ArgumentError
from bayesfed.inference import infer
from bayesfed.inference.sum_product.graphs.factor_graph import FactorGraph
from bayesfed.models.random_fields.grid import Grid, Link
from tests.message_passing.graphs import AGREE, LOGS, bipartite

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
ZERO = torch.zeros((), dtype=torch.float64)
BAD = {
    "directed": (nx.DiGraph([(0, 1)]), "from_networkx: expected a simple undirected graph"),
    "multigraph": (nx.MultiGraph([(0, 1)]), "from_networkx: expected a simple undirected graph"),
    "empty": (nx.Graph(), "from_networkx: expected a simple undirected graph with nodes"),
    "no graph": (SimpleNamespace(), "from_networkx: expected a simple undirected graph"),
    "unknown type": (
        with_node(type="check"),
        "node 'a': expected type 'variable' or 'factor', found check",
    ),
    "no type": (with_node(), "node 'a': expected type .* found None; try .*FactorGraph.pairwise"),
    "two variables": (
        with_edges(pair(factor=LOGS), ("a", "b")),
        "edge 'a'-'b': expected a variable and a factor, found two variables",
    ),
    "two factors": (
        with_edges(
            bipartite(
                {"a": 2}, [(("a",), {"factor": [0.0, 1.0]}), (("a",), {"factor": [0.0, 1.0]})]
            ),
            (("f", 0), ("f", 1)),
        ),
        "expected a variable and a factor, found two factors",
    ),
    "loop on a variable": (
        with_edges(pair(factor=LOGS), ("a", "a")),
        "edge 'a'-'a': .* found a self loop",
    ),
    "loop on a factor": (
        with_edges(pair(factor=LOGS), (("f", 0), ("f", 0))),
        "factor .'f', 0.: expected edges to variables, found a self loop",
    ),
    "loop without scope": (
        with_edges(pair(factor=AGREE, scope=None), (("f", 0), ("f", 0))),
        "found a self loop",
    ),
    "no neighbour": (
        without_edges(pair(factor=LOGS)),
        "factor .'f', 0.: expected an edge .* found no neighbour",
    ),
    "asymmetric": (
        pair(factor=LOGS, scope=None),
        "an undirected edge does not record argument order; try scope=",
    ),
    "unequal cards": (
        bipartite({"a": 2, "b": 3}, [("ab", {"scope": None, "factor": np.zeros((2, 3))})]),
        "does not record argument order",
    ),
    "asymmetric in the last axes": (
        bipartite(
            dict.fromkeys("abc", 2),
            [("abc", {"scope": None, "factor": [[[0, 1], [0, 0]], [[0, 1], [0, 0]]]})],
        ),
        "does not record argument order",
    ),
    "fewer in the scope": (
        pair(factor=[0.0, 1.0], scope=("a",)),
        "scope: expected its neighbours .'a', 'b'., found .'a',.",
    ),
    "other in the scope": (pair(factor=LOGS, scope=("a", "c")), "scope: expected its neighbours"),
    "unhashable in the scope": (
        pair(factor=LOGS, scope=("a", ["b"])),
        "scope: expected its neighbours",
    ),
    "twice in the scope": (
        pair(factor=LOGS, scope=("a", "a")),
        "scope: expected each variable once",
    ),
    "thrice in the scope": (
        pair(factor=np.zeros((2, 2, 2)), scope=("a", "b", "a")),
        "scope: expected each variable once",
    ),
    "unordered scope": (pair(factor=LOGS, scope={"a", "b"}), "scope: expected an ordered tuple"),
    "no table": (pair(), "expected either 'factor' .* found neither"),
    "two tables": (pair(factor=LOGS, table=LOGS.exp()), "expected either 'factor' .* found both"),
    "shape": (
        pair(factor=torch.zeros(2, 3)),
        r"factor .'f', 0.: expected a table of shape \(2, 2\), found \(2, 3\)",
    ),
    "arity": (pair(factor=[0.0, 1.0]), r"expected a table of shape \(2, 2\), found \(2,\)"),
    "number": (pair(factor=1.0), r"expected a table of shape \(2, 2\), found \(\)"),
    "ragged": (pair(factor=[[0.0], [1.0, 2.0]]), "factor: expected a table of numbers"),
    "words": (pair(factor=[["a", "b"], ["c", "d"]]), "factor: expected a table of numbers"),
    "nothing": (pair(factor=[]), "expected 1 to 16777216 entries, found 0"),
    "NaN": (pair(factor=[[0.0, NAN], [0.0, 0.0]]), "factor: expected finite logs or -inf"),
    "+inf": (pair(factor=[[0.0, INF], [0.0, 0.0]]), "factor: expected finite logs or -inf"),
    "-inf everywhere": (
        pair(factor=[[-INF, -INF], [-INF, -INF]]),
        "factor: expected a combination that is possible, found -inf everywhere",
    ),
    "negative weight": (
        pair(table=[[1.0, -1.0], [1.0, 1.0]]),
        "table: expected non-negative finite weights",
    ),
    "NaN weight": (
        pair(table=[[1.0, NAN], [1.0, 1.0]]),
        "table: expected non-negative finite weights",
    ),
    "infinite weight": (
        pair(table=[[1.0, INF], [1.0, 1.0]]),
        "table: expected non-negative finite weights",
    ),
    "zeros": (
        pair(table=np.zeros((2, 2))),
        "table: expected a combination that is possible, found zeros",
    ),
    "card 0": (with_card(0), "variable 'a': expected a whole number card from 1 to 65536, found 0"),
    "half a card": (with_card(2.5), "variable 'a': expected a whole number card"),
    "card True": (with_card(True), "variable 'a': expected a whole number card"),
    "card huge": (with_card(2**16 + 1), "variable 'a': expected a whole number card"),
    "large": (
        bipartite(
            dict.fromkeys(range(25), 2), [(tuple(range(25)), {"factor": ZERO.expand([2] * 25)})]
        ),
        "expected 1 to 16777216 entries, found 33554432",
    ),
    "contradiction": (
        bipartite(
            {"a": 2, "b": 2},
            [("b", {"scope": ("b",), "table": [1, 0]}), ("b", {"scope": ("b",), "table": [0, 1]})],
        ),
        "variable 'b': expected a state that its unary factors allow",
    ),
    "constant": (with_constant("1"), r"log_constant'.: expected a finite number, found 1"),
    "infinite constant": (
        with_constant(INF),
        r"log_constant'.: expected a finite number, found inf",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_graphs_are_refused_in_words(name):
    graph, message = BAD[name]
    with pytest.raises(ArgumentError, match=message):
        FactorGraph.from_networkx(graph)


def test_the_factor_at_fault_is_named_among_good_ones():
    graph = bipartite(
        dict.fromkeys("abc", 2),
        [(("a", "b"), {"factor": AGREE}), (("b", "c"), {"factor": [[0.0, NAN], [0.0, 0.0]]})],
    )
    with pytest.raises(ArgumentError, match=r"factor \('f', 1\)"):
        FactorGraph.from_networkx(graph)
    graph.nodes["f", 1]["factor"] = [[0.0, 0.0, 0.0]] * 2
    with pytest.raises(
        ArgumentError,
        match=r"factor \('f', 1\): expected a table of shape \(2, 2\), found \(2, 3\)",
    ):
        FactorGraph.from_networkx(graph)


def test_a_table_of_exactly_the_limit_is_read():
    graph = bipartite(
        dict.fromkeys(range(16), 2), [(tuple(range(16)), {"factor": torch.zeros([2] * 16)})]
    )
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
        (
            nx.path_graph(2),
            {"coupling": 1.0, "field": NAN},
            "node 0: expected a finite number, found nan",
        ),
    ],
)
def test_bad_pairwise_graphs_are_refused(graph, options, message):
    with pytest.raises(ArgumentError, match=message):
        FactorGraph.pairwise(graph, **options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FactorGraph.grid((0, 3), 0.6, 0.6), "sides >= 1"),
        (lambda: FactorGraph.grid((2, 3), 1.0, 0.6), r"a number in \(0, 1\)"),
        (lambda: FactorGraph.grid((2, 3), Link(torch.zeros(3, 2)), 0.6), "Grid.row"),
        (lambda: FactorGraph(Grid((2, 2)), names=("a",)), "FactorGraph.names: expected 4 names"),
    ],
)
def test_bad_generators_are_refused(make, message):
    with pytest.raises(ArgumentError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "bp", "regions": [(0, 1)]}, "infer regions: expected method 'gbp'"),
        ({"regions": [(0, 1)]}, "infer regions: expected method 'gbp', found 'auto'"),
        ({"method": "bp", "strip_rows": 3}, "infer strip_rows: expected method 'strip'"),
        ({"method": "gbp", "regions": "x"}, "infer, regions|infer regions"),
        ({"blocks": "x"}, "infer: expected keywords among"),
    ],
)
def test_options_that_a_method_does_not_use_are_refused(options, words):
    with pytest.raises(ArgumentError, match=words):
        infer(FactorGraph.grid((2, 2), 0.6, 0.6), **options)
