"""Generalised belief propagation on regions: exact where regions are a tree, plain where they are
factors, near where they are short cycles.
"""

import itertools

import networkx as nx
import numpy as np
import pytest
import torch

from bayesfed.errors import ArgumentError, ConvergenceWarning
from bayesfed.inference import FactorGraph, infer
from bayesfed.inference.sum_product.methods.edges import propagation as edges
from bayesfed.inference.sum_product.methods.settle import PATIENCE
from benchmarks.parts.message_passing.networks import glass, machine, potts
from tests.message_passing.graphs import bipartite
from tests.message_passing.grids import normal
from tests.message_passing.table_graphs import (
    assert_agrees,
    enumerate_exactly,
    random_evidence,
    random_loops,
)

pytestmark = pytest.mark.filterwarnings("ignore::bayesfed.errors.UnverifiedWarning")


def off(graph, **options):
    """Largest error of a marginal."""
    return float(
        (infer(graph, max_sweeps=3000, **options).marginals - infer(graph).marginals).abs().max()
    )


def test_regions_of_one_tree_are_exact_and_factors_alone_are_bethes():
    for seed in range(4):
        generator = np.random.default_rng(seed)
        graph, planted = random_loops(generator, zeros=0.2 if seed % 2 else 0.0)
        model, evidence = graph.lower(), random_evidence(generator, graph, planted, batch=2)
        whole = infer(model, log_weights=evidence, method="gbp", regions=[range(7)])
        exact = infer(model, log_weights=evidence)
        assert float((whole.marginals - exact.marginals).abs().max()) < 1e-10
        assert torch.allclose(whole.log_z, exact.log_z, atol=1e-9)
        for entry in range(2):
            assert_agrees(
                graph,
                whole._outcome,
                entry,
                *enumerate_exactly(graph, evidence[entry].numpy()),
                within=1e-9,
            )
    ring = FactorGraph.pairwise(nx.cycle_graph(7), coupling=1.5, field=-0.8)
    evidence = normal(2, 7)
    pairs = infer(ring, evidence, method="gbp", regions=list(nx.cycle_graph(7).edges), tol=1e-10)
    plain = infer(ring, evidence, method="bp", tol=1e-10)
    assert torch.allclose(pairs.belief, plain.belief, atol=1e-8)
    assert torch.allclose(pairs.log_z, plain.log_z, atol=1e-8)
    assert torch.allclose(pairs.pair_marginals[0], plain.pair_marginals[0], atol=1e-8)


def test_short_cycles_cut_the_error_by_five_and_more():
    for graph in (potts(5, 3, 1.2), glass(8)):
        assert 5 * off(graph, method="gbp") < off(graph, method="bp")
    # Blocks of a strip, on tables and on bits.
    assert off(potts(5, 3, 1.2), method="strip") < 1e-4
    bits, evidence = FactorGraph.grid((7, 6), 0.7, 0.7), normal(7, 6)
    blocks = [
        tuple(row * 6 + column for row in range(top, top + 3) for column in (left, left + 1))
        for top in (0, 2, 4)
        for left in range(5)
    ]
    one = infer(bits, evidence, method="gbp", regions=blocks, tol=1e-9, max_sweeps=2000)
    two = infer(bits, evidence, method="strip", strip_rows=3, tol=1e-10)
    assert torch.allclose(one.belief, two.belief, atol=1e-6)
    assert float(one.log_z) == pytest.approx(float(two.log_z), abs=1e-6)
    again = infer(bits, evidence, method="gbp", regions=blocks, state=one.state)
    assert again.sweeps <= 2


def test_regions_are_checked():
    ring = FactorGraph.pairwise(nx.cycle_graph(5), coupling=1.0)
    with pytest.raises(ArgumentError, match="regions and tables: expected init='zero', found 'hi'"):
        infer(ring, method="gbp", init="hi")
    assert infer(ring, method="gbp", certify=True).multistable_share == 0
    for regions in ([(0, 5)], [()], []):
        with pytest.raises(
            ArgumentError, match="infer regions: expected sequences of variables from 0 to 4"
        ):
            infer(ring, method="gbp", regions=regions)
    words = "infer, regions: expected a sequence, each a sequence, each a whole number"
    with pytest.raises(ArgumentError, match=words):
        infer(ring, method="gbp", regions=[("a",)])
    with pytest.raises(ArgumentError, match="at most 20000 cycles of three or four"):
        infer(machine(40, 40, 0.1), method="gbp")
    tables = [(edge, {"factor": np.eye(9)}) for edge in nx.grid_2d_graph(3, 3).edges]
    wide = FactorGraph.from_networkx(
        bipartite(dict.fromkeys(itertools.product(range(3), range(3)), 9), tables)
    )
    with pytest.raises(ArgumentError, match="9 states a variable in strips of 3 rows"):
        infer(wide, method="strip")
    ring = FactorGraph.from_networkx(
        bipartite(
            dict.fromkeys("abc", 3),
            [(tuple(ends), {"factor": np.eye(3)}) for ends in ("ab", "bc", "ac")],
        )
    )
    with pytest.raises(ArgumentError, match="method 'strip'"):
        infer(ring, method="strip")


def test_a_run_that_oscillates_is_damped(monkeypatch):
    """A frustrated complete graph under undamped updates in colours swings for ever; the run finds
    a share of old messages by itself.
    """
    random, graph = np.random.default_rng(1), nx.complete_graph(8)
    nx.set_edge_attributes(
        graph, {edge: float(3 * random.normal()) for edge in graph.edges}, "coupling"
    )
    pull = {
        node: 0.5 * float(random.normal())
        - sum(data["coupling"] for *_, data in graph.edges(node, data=True)) / 2
        for node in graph
    }
    nx.set_node_attributes(graph, pull, "field")
    model = FactorGraph.pairwise(graph)
    for odds in (edges.SAFE, 0.0):
        monkeypatch.setattr(edges, "SAFE", odds)
        result = infer(model, method="bp", max_sweeps=600)
        assert result.converged
        assert result.sweeps > PATIENCE
    with pytest.warns(ConvergenceWarning):
        infer(model, method="bp", max_sweeps=PATIENCE)


def test_regions_are_priced_before_a_run():
    """What a run reads, batch and sweeps included, or a table that no memory holds; nothing is
    summed before it is refused.
    """
    ring = FactorGraph.pairwise(nx.cycle_graph(5), coupling=1.0)
    words = r"found 8.0e\+01 \(regions: 5, overlaps: 5\), and .*, or max_sweeps="
    with pytest.raises(ArgumentError, match="entries in 100000000 sweeps, " + words):
        infer(ring, torch.zeros(4, 5), method="gbp", max_sweeps=10**8)
    dense = FactorGraph.pairwise(nx.complete_graph(40), coupling=0.01)
    with pytest.raises(ArgumentError, match=r"tables of at most 67108864 entries.*found 1.1e\+12"):
        infer(dense, method="gbp", regions=[range(40)])
    with pytest.raises(ArgumentError, match="at most 16777216 pairs of neighbours"):
        infer(FactorGraph.pairwise(nx.star_graph(8000), coupling=0.1), method="gbp")
    with pytest.raises(ArgumentError, match="at most 16777216 pairs of .*regions"):
        infer(machine(20, 10, 0.1), method="gbp")
