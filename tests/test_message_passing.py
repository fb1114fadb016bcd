"""`infer` against enumeration, against slow twins, and against itself: other methods, backends, orders and starts."""

import itertools
import math

import networkx as nx
import numba
import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, ConvergenceWarning, MissingExtraError, MultistableWarning, OrderingWarning
from bayesfed.inference import Exchange, FactorGraph, TableGroup, Tables, infer, log_z
from bayesfed.keys import Key
from bayesfed.models import Grid, Ising, Link, MarkovGrid
from bayesfed.testing.beliefs import enumerate_log_odds

BACKENDS = ["numba", "torch"]


def normal(*shape, name="evidence", scale=2.0):
    return scale * torch.randn(*shape, generator=Key(0, name).generator(), dtype=torch.float64)


def stay(p):
    coupling = 2 * math.log(p / (1 - p))
    return Link(coupling, -coupling / 2, -coupling / 2)


def enumerate_all(model, evidence):
    """Return exact log Z, probabilities and the probability that each ordered pair of variables is on, by summing over every state."""
    count = evidence.numel()
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=count)), dtype=torch.float64)
    logs = model.energy(states.reshape(-1, *model.shape)).double() + states @ evidence.reshape(-1)
    weights = torch.softmax(logs, 0)
    return torch.logsumexp(logs, 0), (weights @ states).reshape(evidence.shape), torch.einsum("s,si,sj->ij", weights, states, states)


def uneven(size):
    return Grid(size, Link(1.3, 0.2, -0.5), Link(normal(size[0] - 1, size[1], name="columns", scale=1.0)), normal(*size, name="field", scale=0.5))


# Exactness


@pytest.mark.parametrize("backend", BACKENDS)
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
def test_exact_methods_equal_enumeration(size, method, backend):
    grid, evidence = uneven(size), normal(*size)
    found = infer(grid, evidence, method=method, tol=1e-12, backend=backend)
    total, marginals, both = enumerate_all(grid, evidence)
    assert found.converged
    assert float((found.marginals - marginals).abs().max()) < 1e-9
    assert float(found.log_z - total) == pytest.approx(0, abs=1e-9)
    edges = grid.ising().edges
    pairs = torch.cat([table[..., 1, 1].reshape(-1) for table in found.pair_marginals])
    assert [tuple(table.shape) for table in found.pair_marginals] == [(size[0], size[1] - 1, 2, 2), (size[0] - 1, size[1], 2, 2)]
    assert torch.allclose(pairs, both[edges[0], edges[1]], rtol=0, atol=1e-9)
    assert torch.allclose(found.belief, evidence + found.extrinsic, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("method", ["auto", "bp"])
@pytest.mark.parametrize("kind", ["chain", "star", "tree", "forest", "lonely"])
def test_trees_are_exact(kind, method, backend):
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
    found = infer(drawn, evidence, method=method, tol=1e-13, backend=backend)
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
@pytest.mark.parametrize("size", [(3, 3), (4, 5), (6, 6)])
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
        network.add_factors(DiscreteFactor([f"v{i}", f"v{j}"], [2, 2], [1.0, 1.0, 1.0, math.exp(coupling)]))
    oracle = BeliefPropagation(network)
    oracle.calibrate()
    found = infer(grid, evidence, method="exact")
    for i in range(0, unary.numel(), 5):
        expected = oracle.query([f"v{i}"], show_progress=False).values[1]
        assert float(found.marginals.reshape(-1)[i]) == pytest.approx(expected, abs=1e-8)


def test_copies_and_batches_are_independent_problems():
    grid = Grid((3, 4), stay(0.62), stay(0.58), -0.2, arrangement=(5, 12))
    evidence = normal(2, 5, 12)
    for method in ("exact", "bp", "strip", "chains"):
        whole = infer(grid, evidence, method=method, tol=1e-11)
        assert whole.log_z.shape == (2,)
        total = torch.zeros(2, dtype=torch.float64)
        for b, copy in itertools.product(range(2), range(5)):
            single = infer(Grid((3, 4), stay(0.62), stay(0.58), -0.2), evidence[b, copy].reshape(3, 4), method=method, tol=1e-11)
            assert torch.allclose(single.belief.reshape(-1), whole.belief[b, copy], atol=1e-8)
            assert torch.allclose(single.pair_marginals[1], whole.pair_marginals[1][b, copy], atol=1e-8)
            total[b] += single.log_z
        assert torch.allclose(total, whole.log_z, atol=1e-7)


# Slow twins


def test_belief_propagation_matches_a_plain_one():
    """The slow twin: dictionaries of normalised two-state messages, one at a time, on a 4 x 5 grid."""
    model = Grid((4, 5), stay(0.62), stay(0.58), -0.2)
    edges, evidence = model.ising(), normal(4, 5)
    unary = (evidence.reshape(-1) + edges.field).tolist()
    couplings = {}
    for (i, j), k in zip(edges.edges.T.tolist(), edges.coupling.tolist(), strict=True):
        couplings[i, j] = couplings[j, i] = k
    messages = dict.fromkeys(couplings, (0.5, 0.5))
    for _ in range(200):
        for i, j in messages:
            into = [math.prod(messages[k, to][s] for k, to in messages if to == i and k != j) for s in (0, 1)]
            out = [sum(math.exp(unary[i] * a + couplings[i, j] * a * b) * into[a] for a in (0, 1)) for b in (0, 1)]
            messages[i, j] = (out[0] / sum(out), out[1] / sum(out))
    slow = [unary[i] + sum(math.log(messages[k, to][1] / messages[k, to][0]) for k, to in messages if to == i) for i in range(20)]
    for graph, method, backend in itertools.product((model, edges), ("bp", "chains"), BACKENDS):
        if method == "chains" and graph is edges:
            continue
        found = infer(graph, evidence.reshape(graph.shape), method=method, tol=1e-12, backend=backend)
        assert found.belief.reshape(-1).tolist() == pytest.approx(slow, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(5, 7), (6, 8), (2, 2), (9, 2), (2, 9), (3, 130)])
def test_checkerboard_backends_agree_to_the_last_bit(size, dtype):
    grid, evidence = Grid(size, stay(0.7), stay(0.66), 0.3), normal(3, *size).to(dtype)
    for damping, init in itertools.product((0.0, 0.3), ("zero", "hi", "lo")):
        first, second = (
            infer(grid, evidence, method="bp", backend=backend, damping=damping, init=init, tol=1e-5, max_sweeps=50, warn=False)
            for backend in BACKENDS
        )
        assert torch.equal(first.belief, second.belief)
        assert torch.equal(first.state, second.state)
        assert (first.sweeps, first.residual) == (second.sweeps, second.residual)


def test_threads_change_no_bit():
    grid, evidence = Grid((160, 120), stay(0.66), stay(0.64)), normal(160, 120).float()
    for method in ("bp", "strip", "chains"):
        before = numba.get_num_threads()
        results = []
        for threads in (1, before):
            numba.set_num_threads(threads)
            results.append(infer(grid, evidence, method=method, backend="numba").belief)
        numba.set_num_threads(before)
        assert torch.equal(*results)


@pytest.mark.parametrize("size", [(3, 5), (17, 6), (40, 4)])
def test_strip_backends_agree(size):
    grid, evidence = Grid(size, stay(0.72), stay(0.7), -0.3), normal(2, *size, scale=1.0)
    for damping, rows in ((0.0, 2), (0.2, 2), (0.0, 3), (0.0, 4), (0.1, 5)):
        how = {"method": "strip", "strip_rows": rows, "tol": 1e-9, "damping": damping}
        first, second = (infer(grid, evidence, backend=backend, **how) for backend in BACKENDS)
        assert first.sweeps == second.sweeps
        assert torch.allclose(first.belief, second.belief, atol=1e-9)
        assert torch.allclose(first.log_z, second.log_z, atol=1e-9)


def test_edge_backends_agree_and_fall_back_to_logs_where_odds_would_overflow():
    graph = nx.random_regular_graph(4, 40, seed=0)
    nx.set_edge_attributes(graph, {edge: float(value) for edge, value in zip(graph.edges, normal(80, scale=1.0), strict=True)}, "coupling")
    first, second = (infer(FactorGraph.pairwise(graph), normal(3, 40), backend=b, damping=0.5, tol=1e-10, max_sweeps=5000) for b in BACKENDS)
    assert first.converged
    assert torch.allclose(first.belief, second.belief, atol=1e-8)
    hub = nx.complete_graph(60)
    nx.set_edge_attributes(hub, 40.0, "coupling")
    found = infer(FactorGraph.pairwise(hub, field=-1000.0), torch.full((60,), -200.0, dtype=torch.float64), method="bp", backend="numba")
    assert bool(torch.isfinite(found.belief).all())


def test_a_strip_is_kikuchis_fixed_point():
    """Strips in lanes, in one block, and turned by 90 degrees agree closely, where plain belief propagation is ten times further away."""
    grid, evidence = Grid((9, 9), stay(0.7), stay(0.7)), normal(9, 9, scale=1.0)
    exact = infer(grid, evidence, method="exact")
    strip, turned = (infer(grid, u, method="strip", strip_rows=2, tol=1e-9) for u in (evidence, evidence.T.contiguous()))
    bp = infer(grid, evidence, method="bp", tol=1e-6)
    error = float((strip.marginals - exact.marginals).abs().mean())
    assert error < 0.1 * float((bp.marginals - exact.marginals).abs().mean())
    assert error < 0.002
    assert float((strip.belief - turned.belief.T).abs().max()) < 1e-3
    assert abs(float(strip.log_z - exact.log_z)) < 0.1 * abs(float(bp.log_z - exact.log_z))
    wider = [infer(grid, evidence, method="strip", strip_rows=rows, tol=1e-9) for rows in (3, 5, 8)]
    errors = [error, *(float((found.marginals - exact.marginals).abs().mean()) for found in wider)]
    assert errors == sorted(errors, reverse=True)


# What theory promises


@pytest.mark.parametrize("backend", BACKENDS)
def test_extremes_bracket_every_start_and_bethe_is_a_lower_bound(backend):
    for p, scale in ((0.6, 1.0), (0.75, 0.5), (0.9, 1.0)):
        grid, evidence = Grid((10, 12), stay(p), stay(p)), normal(10, 12, scale=scale)
        high, zero, low = (
            infer(grid, evidence, method="bp", init=init, tol=1e-10, max_sweeps=20_000, backend=backend) for init in ("hi", "zero", "lo")
        )
        assert bool((high.belief >= zero.belief - 1e-6).all())
        assert bool((zero.belief >= low.belief - 1e-6).all())
        exact = infer(grid, evidence, method="exact").log_z
        assert all(float(found.log_z) <= float(exact) + 1e-9 for found in (high, zero, low))


def test_transposing_transposes():
    evidence = normal(6, 9)
    for method in ("bp", "chains", "exact"):
        one = infer(Grid((6, 9), stay(0.6), stay(0.64)), evidence, method=method, tol=1e-10)
        two = infer(Grid((9, 6), stay(0.64), stay(0.6)), evidence.T.contiguous(), method=method, tol=1e-10)
        assert float((two.belief.T - one.belief).abs().max()) < 1e-7


@pytest.mark.parametrize("method", ["bp", "strip", "chains"])
def test_a_warm_start_continues_and_ends_where_a_cold_one_does(method):
    grid, evidence = Grid((20, 30), stay(0.64), stay(0.62)), normal(20, 30)
    cold = infer(grid, evidence, method=method, tol=1e-11, certify=True)
    assert cold.multistable_share == 0
    kept = cold.state.clone()
    assert infer(grid, evidence, method=method, tol=1e-8, state=cold.state).sweeps <= 2
    moved = evidence + 0.05 * normal(20, 30, name="noise", scale=1.0)
    warm = infer(grid, moved, method=method, tol=1e-11, state=cold.state)
    fresh = infer(grid, moved, method=method, tol=1e-11)
    assert warm.sweeps <= fresh.sweeps
    assert float((warm.belief - fresh.belief).abs().max()) < 1e-8
    assert torch.equal(cold.state, kept)


def test_asymmetric_tables_through_couplings_equal_the_table_kernel():
    random = Key(0, "tables").numpy()
    graph = nx.Graph()
    graph.add_nodes_from(range(12), type="variable")
    for number, (i, j) in enumerate(nx.grid_2d_graph(3, 4).edges):
        ends = (4 * i[0] + i[1], 4 * j[0] + j[1])[:: 1 if number % 2 else -1]
        graph.add_node(("f", number), type="factor", factor=random.normal(size=(2, 2)), scope=ends)
        graph.add_edges_from((("f", number), end) for end in ends)
    drawn, evidence = FactorGraph.from_networkx(graph), normal(12, scale=1.0)
    scopes = [data["scope"] for _, data in graph.nodes(data=True) if data["type"] == "factor"]
    logs = torch.stack([torch.as_tensor(data["factor"]) for _, data in graph.nodes(data=True) if data["type"] == "factor"])
    group = TableGroup(logs, torch.arange(len(scopes)), torch.tensor(scopes))
    tables = Tables(torch.full((12,), 2), torch.zeros(12, 2, dtype=torch.float64), (group,))
    weights = torch.stack([torch.zeros_like(evidence), evidence], dim=-1)
    general = infer(tables, weights, tol=1e-11)
    pairwise = infer(drawn, evidence, method="bp", tol=1e-11)
    assert isinstance(drawn.lower(), Grid)
    assert torch.allclose(general.marginals[:, 1], pairwise.marginals, atol=1e-8)
    assert float(general.log_z - pairwise.log_z) == pytest.approx(0, abs=1e-7)


def test_a_recognised_grid_keeps_the_users_order():
    shuffled = nx.Graph()
    places = list(itertools.product(range(4), range(5)))
    Key(0, "order").numpy().shuffle(places)
    shuffled.add_nodes_from(tuple(place) for place in places)
    shuffled.add_edges_from(nx.grid_2d_graph(4, 5).edges)
    nx.set_edge_attributes(shuffled, 0.8, "coupling")
    nx.set_node_attributes(shuffled, {node: float(value) for node, value in zip(shuffled, normal(20, name="f"), strict=True)}, "field")
    drawn, evidence = FactorGraph.pairwise(shuffled), normal(2, 20)
    assert isinstance(drawn.lower(), Grid)
    slow = torch.stack([torch.zeros(20, dtype=torch.float64)] * 2)
    index = {node: i for i, node in enumerate(shuffled)}
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=20)), dtype=torch.float64)
    energy = states @ torch.tensor([shuffled.nodes[node]["field"] for node in shuffled], dtype=torch.float64)
    for left, right in shuffled.edges:
        energy += 0.8 * states[:, index[left]] * states[:, index[right]]
    for b in range(2):
        slow[b] = torch.softmax(energy + states @ evidence[b], 0) @ states
    for method in ("exact", "strip"):
        assert torch.allclose(infer(drawn, evidence, method=method).marginals, slow, atol=1e-9 if method == "exact" else 1e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_stays_finite_at_the_edge(dtype):
    evidence = 40 * normal(8, 9).sign().to(dtype)
    for method, backend in itertools.product(("bp", "strip", "chains", "exact"), BACKENDS):
        found = infer(Grid((8, 9), stay(1 - 1e-6), stay(1 - 1e-6)), evidence, method=method, backend=backend, warn=False)
        assert bool(torch.isfinite(found.belief).all())
        assert bool(torch.isfinite(found.log_z).all())
        assert all(bool(torch.isfinite(table).all()) for table in found.pair_marginals)


@pytest.mark.parametrize("strength", [28.0, 50.0, -28.0, 2 * math.log(1e6 - 1)])
@pytest.mark.parametrize("size", [40.0, 1e4])
def test_extreme_couplings_and_evidence_are_right_not_merely_finite(strength, size):
    """On two rows, where strips and the transfer matrix are exact, and on a chain, where everything is."""
    for shape in ((2, 5), (1, 7)):
        grid, evidence = (
            Grid(shape, Link(strength, -strength / 2, -strength / 2), Link(strength, -strength / 2, -strength / 2)),
            size * normal(*shape).sign(),
        )
        evidence = evidence + normal(*shape, name="jitter")
        total, marginals, _ = enumerate_all(grid, evidence)
        for method, backend, dtype in itertools.product(("exact", "strip", "bp", "chains"), BACKENDS, (torch.float32, torch.float64)):
            if shape[0] > 1 and method in ("bp", "chains"):
                continue
            found = infer(grid, evidence.to(dtype), method=method, backend=backend, max_sweeps=100)
            assert found.converged
            assert bool(found.extrinsic.isfinite().all())
            assert float((found.marginals - marginals).abs().max()) < 1e-4
            assert float(found.log_z) == pytest.approx(float(total), rel=1e-5)


def test_strong_couplings_leave_float32_for_float64():
    grid, evidence = Grid((6, 7), stay(1 - 1e-7), stay(1 - 1e-7)), 40 * normal(6, 7).sign() - 2
    for method in ("bp", "chains"):
        single, double = (infer(grid, values, method=method, max_sweeps=5000, warn=False) for values in (evidence.float(), evidence))
        assert float((single.marginals - double.marginals).abs().max()) < 1e-5
        assert single.belief.dtype == torch.float32


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_of_a_wider_grid_of_the_same_storage_does_no_harm(backend):
    wide = infer(Grid((20, 14), stay(0.65), stay(0.65)), normal(20, 14), method="bp").state
    grid, evidence = Grid((20, 13), stay(0.65), stay(0.65)), normal(20, 13)
    warm, cold = (infer(grid, evidence, method="bp", state=state, tol=1e-9, backend=backend) for state in (wide, None))
    assert torch.allclose(warm.belief, cold.belief, atol=1e-6)


def test_chains_on_uneven_grids_start_from_extremes():
    grid, evidence = uneven((13, 14)), normal(13, 14)
    grid = Grid(grid.size, grid.row, Link(grid.column.coupling.abs() / 2), grid.field)
    assert infer(grid, evidence, method="chains", certify=True).multistable_share == 0


def test_float32_agrees_with_float64():
    grid, evidence = Grid((40, 33), stay(0.68), stay(0.66)), normal(40, 33)
    for method in ("bp", "strip", "chains"):
        single, double = (infer(grid, values, method=method, tol=1e-5, max_sweeps=5000) for values in (evidence.float(), evidence))
        assert single.belief.dtype == torch.float32
        assert float((single.belief - double.belief).abs().max()) < 1e-3


# Gradients


@pytest.mark.parametrize("method", ["exact", "bp", "strip"])
def test_log_z_has_the_marginals_as_gradients(method):
    evidence = normal(3, 4, scale=1.0).requires_grad_()
    row, column, field = (torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.5, 0.4, -0.2))
    log_z(Grid((3, 4), Link(row), Link(column), field), evidence, method=method, tol=1e-13).backward()

    def value(change, *, at=None, **shift):
        moved = evidence.detach().clone()
        if at is not None:
            moved[at] += change
        parts = {name: float(part.detach()) + (change if name in shift else 0) for name, part in (("row", row), ("column", column), ("field", field))}
        return float(log_z(Grid((3, 4), Link(parts["row"]), Link(parts["column"]), parts["field"]), moved, method=method, tol=1e-13))

    for name, leaf in (("row", row), ("column", column), ("field", field)):
        slope = (value(1e-4, **{name: True}) - value(-1e-4, **{name: True})) / 2e-4
        assert float(leaf.grad) == pytest.approx(slope, abs=2e-6)
    slope = (value(1e-4, at=(1, 2)) - value(-1e-4, at=(1, 2))) / 2e-4
    assert float(evidence.grad[1, 2]) == pytest.approx(slope, abs=2e-6)


def test_general_trees_are_exact_by_name_and_loops_are_not():
    pair = TableGroup(normal(1, 2, 3, name="t", scale=1.0), torch.tensor([0]), torch.tensor([[0, 1]]))
    tree = Tables(torch.tensor([2, 3]), torch.tensor([[0.0, 0.0, -math.inf], [0.0, 0.0, 0.0]], dtype=torch.float64), (pair,))
    assert {infer(tree, method=method).method for method in ("auto", "bp", "exact")} == {"exact"}
    assert infer(tree, certify=True).multistable_share == 0
    corners = torch.tensor([[0, 1], [1, 2], [2, 0]])
    loop = Tables(torch.full((3,), 2), torch.zeros(3, 2, dtype=torch.float64), (TableGroup(torch.eye(2)[None], torch.zeros(3).long(), corners),))
    assert infer(loop).method == "bp"
    with pytest.raises(ArgumentError, match="a general factor graph with cycles"):
        infer(loop, method="exact")
    with pytest.raises(ArgumentError, match="'strip'"):
        infer(tree, method="strip")


def test_log_z_of_general_tables_has_gradients():
    tables = normal(1, 2, 3, name="t", scale=1.0).requires_grad_()
    unary = torch.tensor([[0.1, 0.2, -math.inf], [0.3, -0.4, 0.5]], dtype=torch.float64)
    model = Tables(torch.tensor([2, 3]), unary, (TableGroup(tables, torch.tensor([0]), torch.tensor([[0, 1]])),))
    infer(model).log_z.backward()
    weights = torch.softmax((unary[0, :2, None] + unary[1] + tables.detach()[0]).flatten(), 0).reshape(2, 3)
    assert torch.allclose(tables.grad[0], weights, atol=1e-9)


# Honesty


def test_certify_finds_several_fixed_points_and_warns():
    evidence = normal(13, 14, scale=0.5)
    with pytest.warns(MultistableWarning, match="depend"):
        found = infer(Grid((13, 14), stay(0.9), stay(0.9)), evidence, certify=True, max_sweeps=20_000)
    assert found.multistable_share > 0.5
    assert infer(Grid((13, 14), stay(0.6), stay(0.6)), evidence, certify=True).multistable_share == 0
    assert infer(Grid((5, 5), stay(0.9), stay(0.9)), normal(5, 5), certify=True).multistable_share == 0
    with pytest.raises(ArgumentError, match="attractive"):
        infer(Grid((13, 14), stay(0.4), stay(0.6)), evidence, certify=True)


def test_it_says_that_it_did_not_converge():
    with pytest.warns(ConvergenceWarning, match="after 3 sweeps"):
        found = infer(Grid((13, 14), stay(0.9), stay(0.9)), normal(13, 14), max_sweeps=3)
    assert not found.converged
    assert found.residual > 1e-4


def test_flooding_would_oscillate_where_the_checkerboard_settles():
    """Undamped flooding is two checkerboard runs interleaved; started apart they stay apart. Ours settles on the same problem."""
    grid, evidence = Grid((16, 16), stay(0.9), stay(0.9)), normal(16, 16, scale=0.5)
    edges = grid.ising()
    source, target = torch.cat([edges.edges, edges.edges.flip(0)], dim=1)
    count, half = len(edges.coupling), torch.cat([edges.coupling, edges.coupling]) / 2
    unary = evidence.reshape(-1) + edges.field.clone().index_add_(0, source, half)
    messages = torch.zeros(2 * count, dtype=torch.float64)
    for _ in range(3000):
        belief = unary.clone().index_add_(0, target, messages)
        x = belief[source] - messages.roll(count)
        fresh = torch.logaddexp(x + half, torch.zeros(())) - torch.logaddexp(x, half)
        change, messages = float((fresh - messages).abs().max()), fresh
    assert change > 1
    assert infer(grid, evidence, method="bp", max_sweeps=3000).converged


# Bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda grid: infer(grid, torch.zeros(9)), r"evidence: expected .* shape \(..., 3, 3\), found torch.float32 of shape \(9,\)"),
        (lambda grid: infer(grid, torch.full((3, 3), math.nan)), "not all finite"),
        (lambda grid: infer(grid, torch.full((3, 3), math.inf)), "not all finite"),
        (lambda grid: infer(grid, torch.zeros(3, 3, dtype=torch.long)), "torch.int64"),
        (lambda grid: infer(grid, np.zeros((3, 3))), "ndarray"),
        (lambda grid: infer(grid, torch.zeros(3, 3), method="magic"), "auto, exact, bp, strip or chains, found 'magic'"),
        (lambda grid: infer(grid, torch.zeros(3, 3), backend="jax"), "'auto', 'numba' or 'torch'"),
        (lambda grid: infer(grid, torch.zeros(3, 3), method="bp", state=torch.zeros(3)), "infer state: expected finite messages of shape"),
        (lambda grid: infer(grid, torch.zeros(3, 3), method="strip", state=torch.zeros(3)), "infer state"),
        (lambda grid: infer(grid.ising(), torch.zeros(3, 3), method="bp", state=torch.zeros(3)), "infer state"),
        (lambda grid: infer(grid, torch.zeros(3, 3), damping=1.0), "damping"),
        (lambda grid: infer(grid, torch.zeros(3, 3), strip_rows=1), "strip_rows: expected an integer from 2 to 8, found 1"),
        (lambda grid: infer(grid, torch.zeros(3, 3), tol=-1.0), "tol"),
        (lambda grid: infer(grid, torch.zeros(3, 3), max_sweeps=0), "max_sweeps"),
        (lambda grid: infer(grid, torch.zeros(3, 3), max_sweeps=2.5), "max_sweeps: expected an integer >= 1, found 2.5"),
        (lambda grid: infer(grid, torch.zeros(3, 3), tol="a"), "infer tol"),
        (lambda grid: infer(grid, torch.zeros(0, 3, 3)), "infer evidence"),
        (lambda grid: infer(nx.path_graph(3)), "a FactorGraph or a flat model, found Graph"),
        (lambda grid: infer(grid, torch.zeros(3, 3), method="bp", state=[1]), "infer state: .* found list"),
        (lambda grid: infer(grid, torch.zeros(3, 3), method="bp", state=infer(grid, method="bp").state * math.nan), "finite messages"),
        (lambda grid: grid.energy(torch.zeros(9)), r"energy: expected supports of shape \(\.\.\., 3, 3\)"),
        (lambda grid: Grid((3, 3), row=0.5), "Grid.row: expected a Link"),
        (lambda grid: Grid((3, 3), row=Link("a")), "Grid.row: expected finite"),
        (lambda grid: Grid((3.5, 2)), "sides >= 1"),
        (lambda grid: Ising(torch.zeros(2), torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2,), torch.tensor([0, 1])), "at most once"),
        (lambda grid: Ising(torch.zeros(2), torch.tensor([[0], [2]]), torch.ones(1), (2,), torch.tensor([0, 1])), "integers from 0 to 1"),
        (lambda grid: Ising(torch.full((2,), math.nan), torch.tensor([[0], [1]]), torch.ones(1), (2,), torch.tensor([0, 1])), "finite field"),
        (lambda grid: Exchange(turns=0), "turns and max_sweeps >= 1"),
        (lambda grid: infer(grid.ising(), torch.zeros(3, 3), method="strip"), "'strip': expected a graph it can serve"),
        (lambda grid: infer(grid.ising(), torch.zeros(3, 3), method="exact"), "a tree or a grid"),
        (lambda grid: infer(Grid((13, 13), stay(0.6), stay(0.6)), method="exact"), "a side of at most 12"),
        (lambda grid: Grid((0, 3)), "sides >= 1"),
        (lambda grid: Grid((2, 3), arrangement=(4, 4)), "divide the arrangement"),
        (lambda grid: Grid((2, 3), row=Link(math.nan)), "Grid.row: expected finite"),
        (lambda grid: Grid((2, 3), column=Link(torch.zeros(2, 3))), r"Grid.column: expected finite numbers, or tensors of shape \(1, 3\)"),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call(Grid((3, 3), stay(0.6), stay(0.6)))


def test_numba_missing_is_said_or_done_without(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    grid, evidence = Grid((13, 13), stay(0.6), stay(0.6)), normal(13, 13)
    assert infer(grid, evidence).converged
    with pytest.raises(MissingExtraError, match=r"bayesfed\[fast\]"):
        infer(grid, evidence, backend="numba")


def test_disconnected_parts_are_fine():
    graph = nx.disjoint_union(nx.cycle_graph(5), nx.path_graph(3))
    nx.set_edge_attributes(graph, 0.7, "coupling")
    model, evidence = FactorGraph.pairwise(graph), normal(8)
    assert torch.allclose(infer(model, evidence, tol=1e-10).belief[5:], enumerate_log_odds(model.lower(), evidence)[5:], atol=1e-8)


def test_the_prior_warns_before_it_is_used():
    with pytest.warns(OrderingWarning, match="multistable"):
        MarkovGrid(0.68, 0.68).lower((12, 12))
    with pytest.warns(OrderingWarning, match="the grid itself is ordered"):
        MarkovGrid(0.8, 0.8).lower((12, 12))
    with pytest.warns(bf.errors.DensityWarning, match="the chains are active 0.294 of the time, but the grid"):
        MarkovGrid(bf.models.Transition(0.75, 0.4), bf.models.Transition(0.75, 0.4)).lower((12, 12))
