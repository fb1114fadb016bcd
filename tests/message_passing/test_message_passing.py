"""`infer` against enumeration and against slow twins."""

import itertools
import math

import networkx as nx
import pytest
import torch

from bayesfed.inference import FactorGraph, infer
from bayesfed.inference.sum_product.methods.edges import propagation as edges
from bayesfed.inference.sum_product.methods.grids import checkerboard_jit
from bayesfed.inference.sum_product.methods.strips import propagation as strips
from bayesfed.keys import Key
from bayesfed.models import Grid
from tests.message_passing import twins
from tests.message_passing.grids import enumerate_all, normal, stay, uneven

# The kernels are tested with strong couplings as well.
pytestmark = pytest.mark.filterwarnings("ignore::bayesfed.errors.UnverifiedWarning")

# Exactness


@pytest.mark.parametrize(
    ("size", "method"),
    [
        ((3, 4), "exact"),
        ((4, 3), "exact"),
        ((1, 9), "auto"),
        ((9, 1), "auto"),
        ((1, 1), "auto"),
        ((2, 7), "strip"),
        ((2, 1), "strip"),
        ((7, 1), "strip"),
    ],
)
def test_exact_methods_equal_enumeration(size, method):
    grid, evidence = uneven(size), normal(*size)
    found = infer(grid, evidence, method=method, tol=1e-12)
    total, marginals, both = enumerate_all(grid, evidence)
    assert found.converged
    assert float((found.marginals - marginals).abs().max()) < 1e-9
    assert float(found.log_z - total) == pytest.approx(0, abs=1e-9)
    edges = grid.ising().edges
    pairs = torch.cat([table[..., 1, 1].reshape(-1) for table in found.pair_marginals])
    assert [tuple(table.shape) for table in found.pair_marginals] == [
        (size[0], size[1] - 1, 2, 2),
        (size[0] - 1, size[1], 2, 2),
    ]
    assert torch.allclose(pairs, both[edges[0], edges[1]], rtol=0, atol=1e-9)
    assert torch.allclose(found.belief, evidence + found.extrinsic, atol=1e-12)


@pytest.mark.parametrize("method", ["auto", "bp"])
@pytest.mark.parametrize("kind", ["chain", "star", "tree", "forest", "lonely"])
def test_trees_are_exact(kind, method):
    graph = {
        "chain": nx.path_graph(9),
        "star": nx.star_graph(8),
        "tree": nx.random_labeled_tree(12, seed=1),
        "forest": nx.disjoint_union(nx.path_graph(4), nx.path_graph(5)),
        "lonely": nx.empty_graph(3),
    }[kind]
    random = Key(1, "tree").numpy()
    for node in graph:
        graph.nodes[node]["field"] = float(random.normal())
    for edge in graph.edges:
        graph.edges[edge]["coupling"] = float(2 * random.normal())
    drawn = FactorGraph.pairwise(graph)
    evidence = normal(len(graph), scale=3.0)
    found = infer(drawn, evidence, method=method, tol=1e-13)
    total, marginals, both = enumerate_all(drawn.lower(), evidence)
    assert found.method == ("exact" if method == "auto" else "bp")
    assert float((found.marginals - marginals).abs().max()) < 1e-9
    assert float(found.log_z - total) == pytest.approx(0, abs=1e-9)
    left, right = drawn.lower().edges
    assert torch.allclose(found.pair_marginals[0][..., 1, 1], both[left, right], atol=1e-9)


def test_extrinsic_ignores_a_variables_own_evidence_on_trees():
    graph = nx.random_labeled_tree(12, seed=0)
    nx.set_edge_attributes(graph, 1.2, "coupling")
    model, evidence = FactorGraph.pairwise(graph), normal(12)
    before = infer(model, evidence).extrinsic
    for i in range(12):
        moved = evidence.clone()
        moved[i] += 5
        assert float(infer(model, moved).extrinsic[i] - before[i]) == pytest.approx(0, abs=1e-13)


# Said by the library itself when it is imported.
@pytest.mark.filterwarnings("ignore:.pgmpy.estimators.StructureScore. is deprecated:FutureWarning")
@pytest.mark.parametrize("size", [(3, 3), (4, 5), pytest.param((6, 6), marks=pytest.mark.slow)])
def test_grids_agree_with_a_junction_tree(size):
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import BeliefPropagation
    from pgmpy.models import DiscreteMarkovNetwork

    grid, evidence = uneven(size), normal(*size)
    edges, unary = grid.ising(), (evidence + grid.fields()).reshape(-1)
    network = DiscreteMarkovNetwork([(f"v{i}", f"v{j}") for i, j in edges.edges.T.tolist()])
    for i, value in enumerate(unary.tolist()):
        network.add_factors(DiscreteFactor([f"v{i}"], [2], [1.0, math.exp(value)]))
    for (i, j), coupling in zip(edges.edges.T.tolist(), edges.coupling.tolist(), strict=True):
        network.add_factors(
            DiscreteFactor([f"v{i}", f"v{j}"], [2, 2], [1.0, 1.0, 1.0, math.exp(coupling)])
        )
    oracle = BeliefPropagation(network)
    oracle.calibrate()
    found = infer(grid, evidence, method="exact")
    for i in range(0, unary.numel(), 5):
        expected = oracle.query([f"v{i}"], show_progress=False).values[1]
        assert float(found.marginals.reshape(-1)[i]) == pytest.approx(expected, abs=1e-8)


@pytest.mark.slow
def test_copies_and_batches_are_independent_problems():
    grid = Grid((3, 4), stay(0.62), stay(0.58), -0.2, arrangement=(5, 12))
    evidence = normal(2, 5, 12)
    for method in ("exact", "bp", "strip"):
        whole = infer(grid, evidence, method=method, tol=1e-11)
        assert whole.log_z.shape == (2,)
        total = torch.zeros(2, dtype=torch.float64)
        for b, copy in itertools.product(range(2), range(5)):
            single = infer(
                Grid((3, 4), stay(0.62), stay(0.58), -0.2),
                evidence[b, copy].reshape(3, 4),
                method=method,
                tol=1e-11,
            )
            assert torch.allclose(single.belief.reshape(-1), whole.belief[b, copy], atol=1e-8)
            assert torch.allclose(
                single.pair_marginals[1], whole.pair_marginals[1][b, copy], atol=1e-8
            )
            total[b] += single.log_z
        assert torch.allclose(total, whole.log_z, atol=1e-7)


# Slow twins


def with_and_without(monkeypatch, replaced, *arguments, **options):
    """The same call with the package's kernel, and with another one in its place."""
    first = infer(*arguments, **options)
    with monkeypatch.context() as patch:
        patch.setattr(*replaced)
        return first, infer(*arguments, **options)


def test_belief_propagation_matches_a_plain_one():
    """The slow twin: dictionaries of normalised two-state messages, one at a time, on a 4 x
    5 grid.
    """
    model = Grid((4, 5), stay(0.62), stay(0.58), -0.2)
    listed, evidence = model.ising(), normal(4, 5)
    unary = (evidence.reshape(-1) + listed.field).tolist()
    couplings = {}
    for (i, j), k in zip(listed.edges.T.tolist(), listed.coupling.tolist(), strict=True):
        couplings[i, j] = couplings[j, i] = k
    messages = dict.fromkeys(couplings, (0.5, 0.5))
    for _ in range(200):
        for i, j in messages:
            into = [
                math.prod(messages[k, to][s] for k, to in messages if to == i and k != j)
                for s in (0, 1)
            ]
            out = [
                sum(math.exp(unary[i] * a + couplings[i, j] * a * b) * into[a] for a in (0, 1))
                for b in (0, 1)
            ]
            messages[i, j] = (out[0] / sum(out), out[1] / sum(out))
    slow = [
        unary[i]
        + sum(math.log(messages[k, to][1] / messages[k, to][0]) for k, to in messages if to == i)
        for i in range(20)
    ]
    for graph in (model, listed):
        found = infer(graph, evidence.reshape(graph.shape), method="bp", tol=1e-12)
        assert found.belief.reshape(-1).tolist() == pytest.approx(slow, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(5, 7), (6, 8), (2, 2), (9, 2), (2, 9), (3, 130), (97, 4)])
def test_the_checkerboards_kernel_agrees_with_its_twin_to_the_last_bit(size, dtype, monkeypatch):
    grid, evidence = Grid(size, stay(0.7), stay(0.66), 0.3), normal(3, *size).to(dtype)
    for damping, init in itertools.product((0.0, 0.3), ("zero", "hi", "lo")):
        first, second = with_and_without(
            monkeypatch,
            (checkerboard_jit, "sweeper", twins.sweeper),
            grid,
            evidence,
            method="bp",
            damping=damping,
            init=init,
            tol=1e-5,
            max_sweeps=50,
            warn=False,
        )
        assert torch.equal(first.belief, second.belief)
        assert torch.equal(first.state, second.state)
        assert (first.sweeps, first.residual) == (second.sweeps, second.residual)


@pytest.mark.slow
def test_threads_change_no_bit():
    grid, evidence = Grid((160, 120), stay(0.66), stay(0.64)), normal(160, 120).float()
    before = torch.get_num_threads()
    for method in ("bp", "strip"):
        results = []
        # As many threads as torch may use.
        for threads in (1, 2):
            torch.set_num_threads(threads)
            results.append(infer(grid, evidence, method=method).belief)
        torch.set_num_threads(before)
        assert torch.equal(*results)


@pytest.mark.parametrize("size", [(3, 5), (17, 6), (40, 4)])
@pytest.mark.parametrize(
    "ways",
    [((0.0, 2), (0.2, 2)), pytest.param(((0.0, 3), (0.0, 4), (0.1, 5)), marks=pytest.mark.slow)],
    ids=["few", "many"],
)
def test_the_kernel_of_strips_agrees_with_its_twin(size, ways, monkeypatch):
    grid, evidence = Grid(size, stay(0.72), stay(0.7), -0.3), normal(2, *size, scale=1.0)
    for damping, rows in ways:
        how = {"method": "strip", "strip_rows": rows, "tol": 1e-9, "damping": damping}
        first, second = with_and_without(
            monkeypatch, (strips, "sweep_strips", twins.sweep_strips), grid, evidence, **how
        )
        assert first.sweeps == second.sweeps
        assert torch.allclose(first.belief, second.belief, atol=1e-9)
        assert torch.allclose(first.log_z, second.log_z, atol=1e-9)


def test_edges_in_odds_and_in_logs_agree_and_odds_that_would_overflow_are_logs(monkeypatch):
    graph = nx.random_regular_graph(4, 40, seed=0)
    nx.set_edge_attributes(
        graph,
        {
            edge: float(value)
            for edge, value in zip(graph.edges, normal(80, scale=1.0), strict=True)
        },
        "coupling",
    )
    first, second = with_and_without(
        monkeypatch,
        (edges, "SAFE", 0.0),
        FactorGraph.pairwise(graph),
        normal(3, 40),
        damping=0.5,
        tol=1e-10,
        max_sweeps=5000,
    )
    assert first.converged
    assert torch.allclose(first.belief, second.belief, atol=1e-8)
    hub = nx.complete_graph(60)
    nx.set_edge_attributes(hub, 40.0, "coupling")
    found = infer(
        FactorGraph.pairwise(hub, field=-1000.0),
        torch.full((60,), -200.0, dtype=torch.float64),
        method="bp",
    )
    assert bool(torch.isfinite(found.belief).all())


def test_a_strip_is_kikuchis_fixed_point(monkeypatch):
    """Strips in lanes, in one block, and turned by 90 degrees agree closely, where plain belief
    propagation is ten times further away.
    """
    grid, evidence = Grid((9, 9), stay(0.7), stay(0.7)), normal(9, 9, scale=1.0)
    exact = infer(grid, evidence, method="exact")
    strip, turned = (
        infer(grid, u, method="strip", strip_rows=2, tol=1e-9)
        for u in (evidence, evidence.T.contiguous())
    )
    bp = infer(grid, evidence, method="bp", tol=1e-6)
    error = float((strip.marginals - exact.marginals).abs().mean())
    assert error < 0.1 * float((bp.marginals - exact.marginals).abs().mean())
    assert error < 0.002
    assert float((strip.belief - turned.belief.T).abs().max()) < 1e-3
    assert abs(float(strip.log_z - exact.log_z)) < 0.1 * abs(float(bp.log_z - exact.log_z))
    # A kernel for every number of rows would have to be compiled.
    monkeypatch.setattr(strips, "sweep_strips", twins.sweep_strips)
    wider = [infer(grid, evidence, method="strip", strip_rows=rows, tol=1e-9) for rows in (3, 5, 8)]
    errors = [error, *(float((found.marginals - exact.marginals).abs().mean()) for found in wider)]
    assert errors == sorted(errors, reverse=True)
