"""`infer` against what theory promises: bounds, symmetries, extremes and gradients."""

import itertools
import math

import networkx as nx
import pytest
import torch

from bayesfed.errors import ArgumentError
from bayesfed.inference import FactorGraph, TableGroup, Tables, infer, log_z
from bayesfed.keys import Key
from bayesfed.models import Grid, Link
from tests.message_passing.grids import enumerate_all, normal, stay

# The kernels are tested with strong couplings as well.
pytestmark = pytest.mark.filterwarnings("ignore::bayesfed.errors.UnverifiedWarning")

# What theory promises


def test_extremes_bracket_every_start_and_bethe_is_a_lower_bound():
    for p, scale in ((0.6, 1.0), (0.75, 0.5), (0.9, 1.0)):
        grid, evidence = Grid((10, 12), stay(p), stay(p)), normal(10, 12, scale=scale)
        high, zero, low = (
            infer(
                grid,
                evidence,
                method="bp",
                init=init,
                tol=1e-10,
                max_sweeps=20_000,
            )
            for init in ("hi", "zero", "lo")
        )
        assert bool((high.belief >= zero.belief - 1e-6).all())
        assert bool((zero.belief >= low.belief - 1e-6).all())
        exact = infer(grid, evidence, method="exact").log_z
        assert all(float(found.log_z) <= float(exact) + 1e-9 for found in (high, zero, low))


def test_transposing_transposes():
    evidence = normal(6, 9)
    for method in ("bp", "exact"):
        one = infer(Grid((6, 9), stay(0.6), stay(0.64)), evidence, method=method, tol=1e-10)
        two = infer(
            Grid((9, 6), stay(0.64), stay(0.6)), evidence.T.contiguous(), method=method, tol=1e-10
        )
        assert float((two.belief.T - one.belief).abs().max()) < 1e-7


@pytest.mark.parametrize("method", ["bp", "strip"])
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
    logs = torch.stack(
        [
            torch.as_tensor(data["factor"])
            for _, data in graph.nodes(data=True)
            if data["type"] == "factor"
        ]
    )
    group = TableGroup(logs, torch.arange(len(scopes)), torch.tensor(scopes))
    tables = Tables(torch.full((12,), 2), torch.zeros(12, 2, dtype=torch.float64), (group,))
    weights = torch.stack([torch.zeros_like(evidence), evidence], dim=-1)
    general = infer(tables, log_weights=weights, method="bp", tol=1e-11)
    pairwise = infer(drawn, evidence, method="bp", tol=1e-11)
    assert isinstance(drawn.lower(), Grid)
    assert torch.allclose(general.marginals[:, 1], pairwise.marginals, atol=1e-8)
    assert float(general.log_z - pairwise.log_z) == pytest.approx(0, abs=1e-7)


@pytest.mark.slow
def test_a_recognised_grid_keeps_the_users_order():
    shuffled = nx.Graph()
    shuffled.add_nodes_from((i, j) for j in range(5) for i in range(4))
    shuffled.add_edges_from(nx.grid_2d_graph(4, 5).edges)
    nx.set_edge_attributes(shuffled, 0.8, "coupling")
    nx.set_node_attributes(
        shuffled,
        {node: float(value) for node, value in zip(shuffled, normal(20, name="f"), strict=True)},
        "field",
    )
    drawn, evidence = FactorGraph.pairwise(shuffled), normal(2, 20)
    assert isinstance(drawn.lower(), Grid)
    slow = torch.stack([torch.zeros(20, dtype=torch.float64)] * 2)
    index = {node: i for i, node in enumerate(shuffled)}
    states = torch.tensor(list(itertools.product([0.0, 1.0], repeat=20)), dtype=torch.float64)
    energy = states @ torch.tensor(
        [shuffled.nodes[node]["field"] for node in shuffled], dtype=torch.float64
    )
    for left, right in shuffled.edges:
        energy += 0.8 * states[:, index[left]] * states[:, index[right]]
    for b in range(2):
        slow[b] = torch.softmax(energy + states @ evidence[b], 0) @ states
    for method in ("exact", "strip"):
        assert torch.allclose(
            infer(drawn, evidence, method=method).marginals,
            slow,
            atol=1e-9 if method == "exact" else 1e-2,
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_stays_finite_at_the_edge(dtype):
    evidence = 40 * normal(8, 9).sign().to(dtype)
    for method in ("bp", "strip", "exact"):
        found = infer(
            Grid((8, 9), stay(1 - 1e-6), stay(1 - 1e-6)),
            evidence,
            method=method,
            warn=False,
        )
        assert bool(torch.isfinite(found.belief).all())
        assert bool(torch.isfinite(found.log_z).all())
        assert all(bool(torch.isfinite(table).all()) for table in found.pair_marginals)


@pytest.mark.parametrize("strength", [28.0, 50.0, -28.0, 2 * math.log(1e6 - 1)])
@pytest.mark.parametrize("size", [40.0, 1e4])
def test_extreme_couplings_and_evidence_are_right_not_merely_finite(strength, size):
    """On two rows, where strips and the transfer matrix are exact, and on a chain, where everything
    is.
    """
    for shape in ((2, 5), (1, 7)):
        grid, evidence = (
            Grid(
                shape,
                Link(strength, -strength / 2, -strength / 2),
                Link(strength, -strength / 2, -strength / 2),
            ),
            size * normal(*shape).sign(),
        )
        evidence = evidence + normal(*shape, name="jitter")
        total, marginals, _ = enumerate_all(grid, evidence)
        for method, dtype in itertools.product(
            ("exact", "strip", "bp"), (torch.float32, torch.float64)
        ):
            if shape[0] > 1 and method == "bp":
                continue
            found = infer(grid, evidence.to(dtype), method=method, max_sweeps=100)
            assert found.converged
            assert bool(found.extrinsic.isfinite().all())
            assert float((found.marginals - marginals).abs().max()) < 1e-4
            assert float(found.log_z) == pytest.approx(float(total), rel=1e-5)


def test_strong_couplings_leave_float32_for_float64():
    grid, evidence = Grid((6, 7), stay(1 - 1e-7), stay(1 - 1e-7)), 40 * normal(6, 7).sign() - 2
    single, double = (
        infer(grid, values, method="bp", max_sweeps=5000, warn=False)
        for values in (evidence.float(), evidence)
    )
    assert float((single.marginals - double.marginals).abs().max()) < 1e-5
    assert single.belief.dtype == torch.float32


def test_a_state_of_a_wider_grid_of_the_same_storage_does_no_harm():
    wide = infer(Grid((20, 14), stay(0.65), stay(0.65)), normal(20, 14), method="bp").state
    grid, evidence = Grid((20, 13), stay(0.65), stay(0.65)), normal(20, 13)
    warm, cold = (
        infer(grid, evidence, method="bp", state=state, tol=1e-9) for state in (wide, None)
    )
    assert torch.allclose(warm.belief, cold.belief, atol=1e-6)


def test_float32_agrees_with_float64():
    grid, evidence = Grid((40, 33), stay(0.68), stay(0.66)), normal(40, 33)
    for method in ("bp", "strip"):
        single, double = (
            infer(grid, values, method=method, tol=1e-5, max_sweeps=5000)
            for values in (evidence.float(), evidence)
        )
        assert single.belief.dtype == torch.float32
        assert float((single.belief - double.belief).abs().max()) < 1e-3


# Gradients


@pytest.mark.parametrize("method", ["exact", "bp", "strip"])
def test_log_z_has_the_marginals_as_gradients(method):
    evidence = normal(3, 4, scale=1.0).requires_grad_()
    row, column, field = (
        torch.tensor(value, dtype=torch.float64, requires_grad=True) for value in (0.5, 0.4, -0.2)
    )
    log_z(
        Grid((3, 4), Link(row), Link(column), field), evidence, method=method, tol=1e-13
    ).backward()

    def value(change, *, at=None, **shift):
        moved = evidence.detach().clone()
        if at is not None:
            moved[at] += change
        parts = {
            name: float(part.detach()) + (change if name in shift else 0)
            for name, part in (("row", row), ("column", column), ("field", field))
        }
        return float(
            log_z(
                Grid((3, 4), Link(parts["row"]), Link(parts["column"]), parts["field"]),
                moved,
                method=method,
                tol=1e-13,
            )
        )

    for name, leaf in (("row", row), ("column", column), ("field", field)):
        slope = (value(1e-4, **{name: True}) - value(-1e-4, **{name: True})) / 2e-4
        assert float(leaf.grad) == pytest.approx(slope, abs=2e-6)
    slope = (value(1e-4, at=(1, 2)) - value(-1e-4, at=(1, 2))) / 2e-4
    assert float(evidence.grad[1, 2]) == pytest.approx(slope, abs=2e-6)


def test_general_graphs_are_exact_by_name():
    pair = TableGroup(
        normal(1, 2, 3, name="t", scale=1.0), torch.tensor([0]), torch.tensor([[0, 1]])
    )
    tree = Tables(
        torch.tensor([2, 3]),
        torch.tensor([[0.0, 0.0, -math.inf], [0.0, 0.0, 0.0]], dtype=torch.float64),
        (pair,),
    )
    assert {infer(tree, method=method).method for method in ("auto", "bp", "exact")} == {"exact"}
    assert infer(tree, certify=True).multistable_share == 0
    corners = torch.tensor([[0, 1], [1, 2], [2, 0]])
    loop = Tables(
        torch.full((3,), 2),
        torch.zeros(3, 2, dtype=torch.float64),
        (TableGroup(torch.eye(2)[None], torch.zeros(3).long(), corners),),
    )
    assert (infer(loop).method, infer(loop, method="bp").method) == ("exact", "bp")
    with pytest.raises(ArgumentError, match="'strip'"):
        infer(tree, method="strip")


def test_log_z_of_general_tables_has_gradients():
    tables = normal(1, 2, 3, name="t", scale=1.0).requires_grad_()
    unary = torch.tensor([[0.1, 0.2, -math.inf], [0.3, -0.4, 0.5]], dtype=torch.float64)
    model = Tables(
        torch.tensor([2, 3]),
        unary,
        (TableGroup(tables, torch.tensor([0]), torch.tensor([[0, 1]])),),
    )
    infer(model).log_z.backward()
    weights = torch.softmax(
        (unary[0, :2, None] + unary[1] + tables.detach()[0]).flatten(), 0
    ).reshape(2, 3)
    assert torch.allclose(tables.grad[0], weights, atol=1e-9)
