"""Messages of `bayesfed.inference.sum_product`: graphs that are read, and `infer`."""

import itertools
import math

import networkx as nx
import torch

from bayesfed import FactorGraph, Key
from bayesfed.inference import infer
from bayesfed.models.random_fields.clusters import Clusters
from bayesfed.models.random_fields.grid import Grid, Link
from tests.message_passing.graphs import LOGS, bipartite
from tests.message_passing.test_graph_refusals import (
    pair,
    with_card,
    with_constant,
    with_edges,
    with_node,
    without_edges,
)

COMPLETE = ("bayesfed/inference/sum_product",)
read = FactorGraph.from_networkx
ABC = [("a", "b"), ("a", "c"), ("b", "c")]
CLUSTERS = Clusters(Grid((1, 4)), (2, 1), (2, 4))
AB, FACTOR = ("a", "b"), ("f", 0)
WEAK = Link(0.1)


def paired(graph=None, **options):
    """Read a graph without factor nodes."""
    return FactorGraph.pairwise(
        nx.path_graph(2) if graph is None else graph, **{"coupling": 0.8, **options}
    )


def unary(*tables):
    """Read a variable with unary factors."""
    return read(bipartite({"b": 2}, [(("b",), {"table": one}) for one in tables]))


def ring(card, *tables):
    """Return three variables, each two of which have a table."""
    given = itertools.cycle(tables)
    factors = [(tuple(ends), {"table": next(given)}) for ends in ("ab", "bc", "ca")]
    return read(bipartite(dict.fromkeys("abc", card), factors))


def nines(**options):
    """Sum a grid of variables of nine states."""
    places = list(itertools.product(range(3), range(3)))
    soft = {"factor": torch.eye(9) / 10}
    factors = [(edge, soft) for edge in nx.grid_2d_graph(3, 3).edges]
    return infer(read(bipartite(dict.fromkeys(places, 9), factors)), warn=False, **options)


def on_grid(side=4, link=WEAK, **options):
    """Sum a grid of bits."""
    return infer(Grid((side, side), link, link), **options)


def on_ring(coupling=0.1, **options):
    """Sum a ring of five bits."""
    return infer(FactorGraph.pairwise(nx.cycle_graph(5), coupling=coupling), **options)


def overlapping(triples):
    """Sum over six regions, each three of which share a variable of these."""
    regions = [
        (0, *(1 + number for number, triple in enumerate(triples) if one in triple))
        for one in range(6)
    ]
    graph = FactorGraph.pairwise(nx.star_graph(20), coupling=0.01)
    return infer(graph, method="gbp", regions=regions)


def between():
    """Sum two variables, whose tables are with a third, of 8,192 states, that was observed."""
    cards = {"a": 64, "b": 64, "c": 8192}
    factors = [(pair, {"factor": torch.rand([cards[one] for one in pair])}) for pair in ABC]
    return infer(read(bipartite(cards, factors)), observed={"c": 5})


def many(regions):
    """Sum a graph of many cycles."""
    graph = FactorGraph.pairwise(nx.complete_bipartite_graph(18, 18), coupling=0.001)
    return infer(graph, method="gbp", regions=regions)


def on_clique(count, coupling=0.001, **options):
    """Sum a graph with all edges."""
    graph = FactorGraph.pairwise(nx.complete_graph(count), coupling=coupling)
    return infer(graph, **options)


def drawn(count):
    """Draw a state of a graph with all edges."""
    return on_clique(count, method="bp").sample(1, Key(0))


def even(coupling, size=(4, 4), **options):
    """Sum a grid whose bits prefer neither state."""
    return infer(FactorGraph.grid(size, coupling, coupling), **options)


EVEN, ODD = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
SOFT = [[1.1, 1.0], [1.0, 1.1]]
SOFTER = [[2, 1, 1]] * 3
TRIPLES = list(itertools.combinations(range(6), 3))
CASES = [
    # Graphs.
    (lambda: read(nx.DiGraph()), "of nodes", lambda: read(pair(factor=LOGS))),
    (
        lambda: paired(nx.DiGraph([(0, 1)])),
        "nx.Graph(graph)",
        lambda: paired(nx.Graph(nx.DiGraph([(0, 1)]))),
    ),
    (
        lambda: paired(nx.Graph([(0, 0)])),
        "a field on the node",
        lambda: paired(nx.empty_graph(1), field=0.5),
    ),
    (lambda coupling: paired(coupling=coupling), None),
    (lambda field: paired(field=field), math.nan),
    (
        lambda: read(with_node()),
        "graph.add_node(name, type='variable', card=2)",
        lambda: read(with_node(type="variable", card=2)),
    ),
    (lambda: read(nx.path_graph(2)), "FactorGraph.pairwise", paired),
    (lambda card: read(with_card(card)), 2.5),
    (lambda factor: read(pair(factor=factor)), None),
    (
        lambda: read(with_edges(pair(factor=LOGS), AB)),
        "a factor of these variables",
        lambda: read(pair(factor=LOGS)),
    ),
    (
        lambda: read(without_edges(pair(factor=LOGS))),
        "graph.add_edge(('f', 0), variable)",
        lambda: read(with_edges(without_edges(pair(factor=LOGS)), (FACTOR, "a"), (FACTOR, "b"))),
    ),
    (
        lambda: read(with_edges(pair(factor=LOGS), (FACTOR, FACTOR))),
        "graph.remove_edge(('f', 0), ('f', 0))",
        lambda: read(pair(factor=LOGS)),
    ),
    (
        lambda: read(with_edges(pair(factor=LOGS), (FACTOR, ("f", 1)))),
        "type",
        lambda: read(pair(factor=LOGS)),
    ),
    (
        lambda: read(
            with_edges(bipartite({"a": 2}, [("a", {"factor": [0.0, 1.0]})] * 2), (FACTOR, ("f", 1)))
        ),
        "a variable between them",
        lambda: read(pair(factor=LOGS)),
    ),
    (lambda scope: read(pair(factor=LOGS, scope=scope)), set(AB)),
    (
        lambda: read(pair(factor=LOGS, scope=("a", "a"))),
        "a table with one axis a variable",
        lambda: read(pair(factor=LOGS)),
    ),
    (
        lambda: read(pair(factor=[0.0, 1.0], scope=("a",))),
        "an edge to every variable of the scope, and to no other",
        lambda: read(bipartite({"a": 2, "b": 2}, [(("a",), {"factor": [0.0, 1.0]})])),
    ),
    (
        lambda: read(pair(factor=[[0.0], [1.0, 2.0]])),
        "nested lists",
        lambda: read(pair(factor=[[0.0, 0.0], [1.0, 2.0]])),
    ),
    (
        lambda: read(pair(factor=[])),
        "an entry for each combination",
        lambda: read(pair(factor=LOGS)),
    ),
    (
        lambda: read(pair(factor=torch.zeros(5000, 5000))),
        "several factors over fewer variables",
        lambda: unary([1, 2], [3, 4]),
    ),
    (
        lambda: read(pair(factor=[0.0, 1.0])),
        "one axis a variable",
        lambda: read(pair(factor=LOGS)),
    ),
    (
        lambda: read(pair(factor=torch.zeros(2, 3))),
        "in the order of scope",
        lambda: read(bipartite({"a": 2, "b": 3}, [(AB, {"factor": torch.zeros(2, 3)})])),
    ),
    (
        lambda: read(pair(factor=LOGS, scope=None)),
        "scope=(first, second)",
        lambda: read(pair(factor=LOGS, scope=AB)),
    ),
    (lambda: unary([0, 0], [1, 2]), "dropping the factor", lambda: unary([1, 2])),
    (
        lambda: read(pair(table=-LOGS.exp())),
        "factor= for their logarithms",
        lambda: read(pair(factor=LOGS)),
    ),
    (
        lambda: unary([1, 0], [0, 1]),
        "unary tables that do not contradict",
        lambda: unary([1, 0], [1, 1]),
    ),
    (lambda names: FactorGraph(Grid((2, 2)), names=names), ("a",)),
    (lambda constant: read(with_constant(constant)), "1"),
    # What `infer` takes.
    (
        lambda: on_grid(evidence=torch.zeros(9)),
        "0 where nothing is known",
        lambda: on_grid(evidence=torch.zeros(4, 4)),
    ),
    (lambda regions: on_ring(method="gbp", regions=regions), [(0, 7)]),
    (lambda method: on_ring(method=method), "strip"),
    (
        lambda: nines(method="strip"),
        "strip_rows with 9^(2 rows) <= 65536",
        lambda: nines(method="strip", strip_rows=2),
    ),
    (lambda method: infer(ring(3, [[2, 1, 1]] * 3), method=method), "strip"),
    (
        lambda: on_clique(25, method="exact"),
        "method='bp', or method='strip' for grids",
        lambda: on_clique(25, method="bp"),
    ),
    (lambda: drawn(25), "a smaller batch or graph", lambda: drawn(6)),
    (
        lambda: on_grid(regions=[(0, 1)]),
        "method='gbp', or no regions",
        lambda: on_grid(method="gbp", regions=[(0, 1)]),
    ),
    (lambda: on_ring(1e308), "smaller couplings", on_ring),
    (
        lambda: infer(ring(2, EVEN, EVEN, ODD)),
        "softer tables or evidence",
        lambda: infer(ring(2, SOFT)),
    ),
    (
        lambda: infer(unary([1, 0]), observed={"b": 1}),
        "softer tables or evidence",
        lambda: infer(unary([1, 1]), observed={"b": 1}),
    ),
    (
        lambda: on_ring(log_weights=torch.full((5, 2), -math.inf)),
        "softer evidence",
        lambda: on_ring(log_weights=torch.zeros(5, 2)),
    ),
    (
        lambda: infer(ring(3, SOFTER), evidence=torch.zeros(3)),
        "log_weights= of shape (..., 3, 3)",
        lambda: infer(ring(3, SOFTER), log_weights=torch.zeros(3, 3)),
    ),
    (
        lambda: on_ring(evidence=torch.full((5,), math.inf)),
        "observed={name: state} for a state that was seen",
        lambda: on_ring(observed={0: 1}),
    ),
    (
        lambda: on_ring(evidence=torch.zeros(5, 2)),
        "log_weights= for the weights of both states",
        lambda: on_ring(log_weights=torch.zeros(5, 2)),
    ),
    (
        lambda: on_ring(log_weights=torch.zeros(7, 5)),
        "evidence= for log-odds",
        lambda: on_ring(evidence=torch.zeros(7, 5)),
    ),
    (
        lambda: on_ring(log_weights=torch.full((5, 2), math.inf)),
        "-inf for the states that are impossible",
        lambda: on_ring(log_weights=torch.tensor([[-math.inf, 0.0]] * 5)),
    ),
    (
        lambda: on_ring(evidence=torch.ones(5), log_weights=torch.zeros(5, 2)),
        "log_weights alone, with the log-odds added to the weight of state 1",
        lambda: on_ring(log_weights=torch.tensor([[0.0, 1.0]] * 5)),
    ),
    (lambda observed: on_ring(observed=observed), {0: 2}),
    (
        lambda: infer(unary([1, 1]), observed={"B": 1}),
        "'b'; graph.variables has all names",
        lambda: infer(unary([1, 1]), observed={unary([1, 1]).variables[0]: 1}),
    ),
    (
        lambda: infer(CLUSTERS, observed={0: 1}),
        "large log-odds as evidence=, of the shape of the entries",
        lambda: infer(CLUSTERS, torch.full((2, 4), 50.0)),
    ),
    (
        lambda: infer(CLUSTERS, log_weights=torch.tensor([-math.inf, 0.0]).expand(2, 4, 2)),
        "large differences",
        lambda: infer(CLUSTERS, log_weights=torch.tensor([-50.0, 0.0]).expand(2, 4, 2)),
    ),
    (
        lambda: on_clique(30, method="exact", observed={0: 1}),
        "method='bp', or method='strip' for grids",
        lambda: on_clique(30, method="bp", observed={0: 1}),
    ),
    (
        lambda: on_clique(30, method="bp", observed={0: 1}).sample(1, Key(0)),
        "a smaller batch or graph, or its marginals",
        lambda: on_clique(6, method="bp", observed={0: 1}).sample(1, Key(0)),
    ),
    (
        lambda: between().extrinsic,
        "marginals, which do not need that variable free",
        lambda: between().marginals,
    ),
    (
        lambda: on_ring(method="gbp", max_sweeps=10**9),
        "max_sweeps=",
        lambda: on_ring(method="gbp", max_sweeps=100),
    ),
    (
        lambda: infer(FactorGraph.pairwise(nx.star_graph(8000), coupling=0.1), method="gbp"),
        "method='exact' or 'bp'",
        lambda: infer(FactorGraph.pairwise(nx.star_graph(8000), coupling=0.1), method="exact"),
    ),
    (
        lambda: on_ring(method="gbp", init="hi"),
        "state= for other starts",
        lambda: on_ring(method="gbp", state=on_ring(method="gbp").state / 2),
    ),
    (
        lambda: on_ring(method="bp", state=torch.zeros(3)),
        "that of the same graph, method and batch",
        lambda: on_ring(method="bp", state=on_ring(method="bp").state),
    ),
    (many, None),
    (
        lambda: overlapping(TRIPLES),
        "regions that overlap less",
        lambda: overlapping(TRIPLES[:3]),
    ),
    # What `infer` warns of.
    (
        lambda: on_ring(method="bp", max_sweeps=1),
        "more sweeps, damping=0.5, or a weaker coupling",
        lambda: on_ring(method="bp", max_sweeps=100, damping=0.5),
    ),
    (
        lambda: even(0.9, method="bp", certify=True),
        "method='strip'",
        lambda: even(0.9, method="strip"),
    ),
    (
        lambda: even(0.8, method="bp"),
        "method='strip', certify=True",
        lambda: even(0.8, method="strip", certify=True),
    ),
    (
        lambda: even(0.9, (9, 3), method="strip"),
        "larger strip_rows",
        lambda: even(0.9, (8, 3), method="strip", strip_rows=8),
    ),
    (
        lambda: on_clique(6, 3.0, method="bp", certify=True),
        "method='exact'",
        lambda: on_clique(6, 3.0, method="exact", certify=True),
    ),
    (
        lambda: on_clique(6, 3.0, method="gbp", regions=[(0, 1, 2)]),
        "method='exact'",
        lambda: on_clique(6, 3.0, method="exact"),
    ),
    (
        lambda: infer(ring(2, EVEN), method="bp"),
        "method='exact'",
        lambda: infer(ring(2, EVEN), method="exact"),
    ),
]
