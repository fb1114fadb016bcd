"""Exact sums by junction tree, against all states (pgmpy's elimination: `test_table_kernel`); and
the trust that `infer` reports.
"""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, UnverifiedWarning
from bayesfed.inference import FactorGraph, infer
from bayesfed.inference.sum_product.methods.junction import fitting_tree, sum_junction
from bayesfed.models.random_fields.elimination import clique_tree
from bayesfed.models.random_fields.sampling import ClusteredSupport
from tests.message_passing.graphs import bipartite
from tests.message_passing.grids import normal
from tests.message_passing.table_graphs import (
    assert_agrees,
    enumerate_exactly,
    random_evidence,
    random_forest,
    random_loops,
)
from tests.support.beliefs import enumerate_log_odds

KEY = bf.Key(0, "junction tree")
EQUAL, DIFFERENT = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_tables_equal_enumeration(zeros):
    """Marginals, factor marginals, log Z, the most probable state: on graphs with cycles, trees,
    zeros, isolated variables, single states.
    """
    for seed in range(6):
        generator = np.random.default_rng(seed)
        graph, planted = (
            random_forest(generator, 7, zeros)
            if seed % 4 == 0
            else random_loops(generator, zeros, scale=2.0)
        )
        model, evidence = (
            graph.lower(),
            random_evidence(generator, graph, planted, batch=2, zeros=zeros),
        )
        tree = fitting_tree(model, 2)
        outcome = sum_junction(model, evidence, tree)
        for entry in range(2):
            assert_agrees(
                graph,
                outcome,
                entry,
                *enumerate_exactly(graph, evidence[entry].numpy()),
                within=1e-11,
            )
        # The message to a variable does not know of its own evidence.
        other = evidence.clone()
        other[:, 2, : graph.cards[2]] = torch.where(
            torch.isneginf(evidence[:, 2, : graph.cards[2]]), -math.inf, normal(2, graph.cards[2])
        )
        assert torch.equal(
            sum_junction(model, other, tree).extrinsic[:, 2], outcome.extrinsic[:, 2]
        )
        result = infer(model, log_weights=evidence, method="exact")
        state, log_probability = result.most_probable
        weights = [
            enumerate_weight(graph, evidence[0].numpy(), states)
            for states in itertools.product(*map(range, graph.cards))
        ]
        assert float(log_probability[0]) == pytest.approx(
            max(weights) - float(result.log_z[0]), abs=1e-10
        )
        assert enumerate_weight(graph, evidence[0].numpy(), state[0].tolist()) == pytest.approx(
            max(weights), abs=1e-10
        )


def enumerate_weight(graph, evidence, states):
    total = sum(graph.unary[i][s] + evidence[i, s] for i, s in enumerate(states))
    return total + sum(table[tuple(states[i] for i in scope)] for scope, table in graph.factors)


def test_bits_equal_enumeration_in_every_shape():
    """Pairwise models on their own, in a batch, as a grid in another order; log Z has
    gradients; draws have the marginals.
    """
    complete = FactorGraph.pairwise(nx.complete_graph(9), coupling=1.2, field=-3.0)
    evidence = 2 * normal(2, 3, 9)
    result = infer(complete, evidence)
    assert (result.method, result.trust, result.log_z.shape) == ("exact", "exact", (2, 3))
    assert torch.allclose(
        result.belief[1, 2], enumerate_log_odds(complete.lower(), evidence[1, 2]), atol=1e-11
    )
    single = infer(complete, evidence[1, 2])
    assert torch.allclose(single.belief, result.belief[1, 2], atol=1e-12)
    leaf = evidence[1, 2].clone().requires_grad_()
    infer(complete, leaf).log_z.backward()
    assert torch.allclose(leaf.grad, single.marginals, atol=1e-12)
    draws = infer(complete, evidence).sample(4000, KEY)
    assert draws.shape == (4000, 2, 3, 9)
    assert float((draws.double().mean(0) - result.marginals).abs().max()) < 4.5 * 0.5 / math.sqrt(
        4000
    )
    assert torch.equal(draws, result.sample(4000, KEY))
    with pytest.raises(ArgumentError, match="Inferred.sample, count: expected a whole number >= 1"):
        result.sample(0, KEY)
    # A support prior of that shape draws from the same tree.
    with bf.keys.forked(KEY):
        supports = ClusteredSupport(complete.lower()).sample((4000,))
    assert float(
        (supports.double().mean(0) - infer(complete).marginals).abs().max()
    ) < 4.5 * 0.5 / math.sqrt(4000)
    shuffled = nx.Graph()
    shuffled.add_nodes_from(
        sorted(
            itertools.product(range(3), range(4)),
            key=lambda place: (place[1] * 7 + place[0] * 5) % 12,
        )
    )
    shuffled.add_edges_from(nx.grid_2d_graph(3, 4).edges, coupling=1.5)
    grid, strong = FactorGraph.pairwise(shuffled, field=-1.0), 30 * torch.sign(normal(12))
    assert torch.equal(infer(grid, strong).most_probable[0], (strong > 0).long())
    assert torch.equal(infer(grid, strong).sample(1, KEY)[0], (strong > 0).long())


def test_cliques_are_a_tree_and_caps_are_said():
    for cards, scopes in (
        ([2] * 30, [(i, 20 + j) for i in range(20) for j in range(10)]),
        (
            [3] * 25,
            [
                tuple(edge)
                for edge in nx.convert_node_labels_to_integers(nx.grid_2d_graph(5, 5)).edges
            ],
        ),
        ([2, 3, 1, 4], [(0, 1, 2), (3, 1)]),
    ):
        tree = clique_tree(cards, scopes, 2**20)
        assert sorted(itertools.chain(*(clique.own for clique in tree.cliques))) == list(
            range(len(cards))
        )
        for number, clique in enumerate(tree.cliques):
            assert clique.parent == -1 if not clique.separator else number < clique.parent
            assert clique.parent == -1 or set(clique.separator) <= set(
                tree.cliques[clique.parent].scope
            )
        assert all(set(scope) <= set(tree.cliques[tree.clique_of(scope)].scope) for scope in scopes)
    # The larger side of a bipartite graph goes first: tables over the smaller side and one more.
    assert (
        clique_tree([2] * 30, [(i, 20 + j) for i in range(20) for j in range(10)], 2**20).largest
        == 2**11
    )
    wide = FactorGraph.pairwise(nx.complete_graph(30), coupling=0.01)
    assert infer(wide).method == "bp"
    with pytest.raises(
        ArgumentError, match="a clique tree whose largest table has at most 16777216 entries"
    ):
        infer(wide, method="exact")
    with pytest.raises(ArgumentError, match="entries for 40000 batch entries"):
        infer(
            FactorGraph.pairwise(nx.complete_graph(9), coupling=0.1),
            torch.zeros(40_000, 9),
            method="exact",
        )


def test_contradictions_are_refused():
    tables = [{"table": EQUAL}, {"table": EQUAL}, {"table": DIFFERENT}]
    cyclic = FactorGraph.from_networkx(
        bipartite(
            dict.fromkeys("abc", 2),
            [
                (tuple(scope), table)
                for scope, table in zip(["ab", "bc", "ac"], tables, strict=True)
            ],
        )
    )
    for method in ("auto", "exact", "bp"):
        with pytest.raises(
            ArgumentError, match="a state of all variables that is possible, found none"
        ):
            infer(cyclic, method=method)
    odd = torch.zeros(2, 3, 2, dtype=torch.float64)
    tables[2] = {"table": EQUAL}
    agreeing = FactorGraph.from_networkx(
        bipartite(
            dict.fromkeys("abc", 2),
            [
                (tuple(scope), table)
                for scope, table in zip(["ab", "bc", "ac"], tables, strict=True)
            ],
        )
    )
    odd[1, 0, 0], odd[1, 1, 1] = -math.inf, -math.inf
    with pytest.raises(ArgumentError, match=r"found none .*batch entry 1"):
        infer(agreeing, log_weights=odd)
    with pytest.warns(UnverifiedWarning, match="tables that forbid combinations form cycles"):
        assert infer(agreeing, method="bp").trust == "unverified"


def test_trust_is_the_bound_of_mooij_and_kappen():
    # On a regular graph of degree d with equal couplings the spectral radius is (d - 1) tanh J.
    for coupling, degree, graph in (
        (0.8, 4, nx.circulant_graph(40, [1, 2])),
        (-1.6, 19, nx.complete_graph(20)),
    ):
        model = FactorGraph.pairwise(graph, coupling=coupling)
        result = infer(model, method="bp", warn=False)
        assert result.trust_bound == pytest.approx(
            (degree - 1) * math.tanh(abs(coupling) / 4), rel=1e-3
        )
        assert result.trust == ("unique" if result.trust_bound < 1 else "unverified")
    with pytest.warns(UnverifiedWarning, match="couplings are strong"):
        infer(model, method="bp", damping=0.5)
    # A strip of all rows is exact.
    whole, cut = (
        infer(FactorGraph.grid((rows, 9), 0.8, 0.8), method="strip", strip_rows=3, warn=False)
        for rows in (3, 4)
    )
    assert (whole.trust, cut.trust) == ("exact", "unverified")
    # An even grid has it in closed form, an edge list by power iteration; tables of bits agree with
    # couplings.
    grid = FactorGraph.grid((20, 30), 0.6, 0.65).lower()
    closed = infer(grid, method="bp", warn=False).trust_bound
    listed = infer(grid.ising(), method="bp", warn=False).trust_bound
    assert 0.95 * closed < listed <= closed * (1 + 1e-6)
    pairs = [((a, b), {"factor": [[0.0, 0.3], [-0.2, 0.9]]}) for a, b in nx.complete_graph(5).edges]
    triple = ((0, 1, 2), {"factor": np.zeros((2, 2, 2))})
    bits, tables = (
        FactorGraph.from_networkx(bipartite(dict.fromkeys(range(5), 2), factors))
        for factors in (pairs, [*pairs, triple])
    )
    one, two = (infer(model, method="bp", warn=False).trust_bound for model in (bits, tables))
    assert one == pytest.approx(3 * math.tanh(0.8 / 4), rel=1e-3)
    assert two == pytest.approx(one, rel=0.02)


def test_certify_compares_starts_on_any_graph():
    plaquettes = [
        (tuple(scope), {"factor": 4.0 * np.eye(2)}) for scope in itertools.combinations(range(5), 2)
    ]
    ordered = FactorGraph.from_networkx(
        bipartite(
            dict.fromkeys(range(5), 2), [*plaquettes, ((0, 1, 2), {"factor": np.zeros((2, 2, 2))})]
        )
    )
    assert infer(ordered, method="bp", certify=True, warn=False).multistable_share == 1
    loose = nx.complete_bipartite_graph(6, 5)
    nx.set_edge_attributes(
        loose, {edge: (-1) ** number * 0.5 for number, edge in enumerate(loose.edges)}, "coupling"
    )
    assert infer(FactorGraph.pairwise(loose), method="bp", certify=True).multistable_share == 0
