"""`infer` says when it cannot be trusted, and refuses what it cannot do."""

import math

import networkx as nx
import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import (
    ArgumentError,
    ConvergenceWarning,
    MultistableWarning,
    OrderingWarning,
)
from bayesfed.inference import Exchange, FactorGraph, infer
from bayesfed.models import Grid, Ising, Link, MarkovGrid
from tests.message_passing.grids import normal, stay
from tests.support.beliefs import enumerate_log_odds

# Honesty


def test_certify_finds_several_fixed_points_and_warns():
    evidence = normal(13, 14, scale=0.5)
    with pytest.warns(MultistableWarning, match="depend"):
        found = infer(
            Grid((13, 14), stay(0.9), stay(0.9)), evidence, certify=True, max_sweeps=20_000
        )
    assert found.multistable_share > 0.5
    assert (
        infer(Grid((13, 14), stay(0.6), stay(0.6)), evidence, certify=True).multistable_share == 0
    )
    assert (
        infer(Grid((5, 5), stay(0.9), stay(0.9)), normal(5, 5), certify=True).multistable_share == 0
    )
    assert (
        infer(Grid((13, 14), stay(0.4), stay(0.6)), evidence, certify=True).multistable_share == 0
    )


def test_it_says_that_it_did_not_converge():
    with pytest.warns(ConvergenceWarning, match="after 3 sweeps"):
        found = infer(Grid((13, 14), stay(0.9), stay(0.9)), normal(13, 14), max_sweeps=3)
    assert not found.converged
    assert found.residual > 1e-4


def test_flooding_would_oscillate_where_the_checkerboard_settles():
    """Undamped flooding is two checkerboard runs interleaved; started apart they stay apart. Ours
    settles on the same problem.
    """
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
    assert infer(grid, evidence, method="bp", max_sweeps=3000, warn=False).converged


# Bad input


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda grid: infer(grid, torch.zeros(9)),
            r"evidence: expected .* shape \(..., 3, 3\), found torch.float32 of shape \(9,\)",
        ),
        (lambda grid: infer(grid, torch.full((3, 3), math.nan)), "not all finite"),
        (lambda grid: infer(grid, torch.full((3, 3), math.inf)), "not all finite"),
        (lambda grid: infer(grid, torch.zeros(3, 3, dtype=torch.long)), "torch.int64"),
        (lambda grid: infer(grid, np.zeros((3, 3))), "ndarray"),
        (
            lambda grid: infer(grid, torch.zeros(3, 3), method="magic"),
            "'auto', 'exact', 'bp', 'strip', 'gbp', found 'magic'",
        ),
        (
            lambda grid: infer(grid, torch.zeros(3, 3), method="bp", state=torch.zeros(3)),
            "infer state: expected finite messages of shape",
        ),
        (
            lambda grid: infer(grid, torch.zeros(3, 3), method="strip", state=torch.zeros(3)),
            "infer state",
        ),
        (
            lambda grid: infer(grid.ising(), torch.zeros(3, 3), method="bp", state=torch.zeros(3)),
            "infer state",
        ),
        (lambda grid: infer(grid, torch.zeros(3, 3), damping=1.0), "damping"),
        (
            lambda grid: infer(grid, torch.zeros(3, 3), strip_rows=1),
            "strip_rows: expected an integer from 2 to 8, found 1",
        ),
        (lambda grid: infer(grid, torch.zeros(3, 3), tol=-1.0), "tol"),
        (lambda grid: infer(grid, torch.zeros(3, 3), max_sweeps=0), "max_sweeps"),
        (
            lambda grid: infer(grid, torch.zeros(3, 3), max_sweeps=2.5),
            "max_sweeps: expected a whole number >= 1, found 2.5",
        ),
        (lambda grid: infer(grid, torch.zeros(3, 3), tol="a"), "infer, tol"),
        (lambda grid: infer(grid, torch.zeros(0, 3, 3)), "infer evidence"),
        (lambda grid: infer(nx.path_graph(3)), "a FactorGraph or a flat model, found a Graph"),
        (
            lambda grid: infer(grid, torch.zeros(3, 3), method="bp", state=[1]),
            "infer, state: expected a Tensor or None",
        ),
        (
            lambda grid: infer(
                grid,
                torch.zeros(3, 3),
                method="bp",
                state=infer(grid, method="bp").state * math.nan,
            ),
            "finite messages",
        ),
        (
            lambda grid: grid.energy(torch.zeros(9)),
            r"energy: expected supports of shape \(\.\.\., 3, 3\)",
        ),
        (lambda grid: Grid((3, 3), row=0.5), "Grid.row: expected a Link"),
        (lambda grid: Grid((3, 3), row=Link("a")), "Grid.row: expected finite"),
        (lambda grid: Grid((3.5, 2)), "size: expected .a whole number, a whole number"),
        (
            lambda grid: Ising(
                torch.zeros(2),
                torch.tensor([[0, 1], [1, 0]]),
                torch.ones(2),
                (2,),
                torch.tensor([0, 1]),
            ),
            "at most once",
        ),
        (
            lambda grid: Ising(
                torch.zeros(2), torch.tensor([[0], [2]]), torch.ones(1), (2,), torch.tensor([0, 1])
            ),
            "integers from 0 to 1",
        ),
        (
            lambda grid: Ising(
                torch.full((2,), math.nan),
                torch.tensor([[0], [1]]),
                torch.ones(1),
                (2,),
                torch.tensor([0, 1]),
            ),
            "finite field",
        ),
        (lambda grid: Exchange(turns=0), "Exchange, turns: expected a whole number >= 1"),
        (
            lambda grid: infer(grid.ising(), torch.zeros(3, 3), method="strip"),
            "'strip': expected a graph it can serve",
        ),
        (
            lambda grid: infer(Grid((40, 40), stay(0.6), stay(0.6)), method="exact"),
            "a side of at most 12, or a clique tree .* at most 16777216",
        ),
        (lambda grid: Grid((0, 3)), "sides >= 1"),
        (lambda grid: Grid((2, 3), arrangement=(4, 4)), "divide the arrangement"),
        (lambda grid: Grid((2, 3), row=Link(math.nan)), "Grid.row: expected finite"),
        (
            lambda grid: Grid((2, 3), column=Link(torch.zeros(2, 3))),
            r"Grid.column: expected finite numbers, or tensors of shape \(1, 3\)",
        ),
    ],
)
def test_bad_input_is_refused(call, words):
    with pytest.raises(ArgumentError, match=words):
        call(Grid((3, 3), stay(0.6), stay(0.6)))


def test_disconnected_parts_are_fine():
    graph = nx.disjoint_union(nx.cycle_graph(5), nx.path_graph(3))
    nx.set_edge_attributes(graph, 0.7, "coupling")
    model, evidence = FactorGraph.pairwise(graph), normal(8)
    assert torch.allclose(
        infer(model, evidence, tol=1e-10).belief[5:],
        enumerate_log_odds(model.lower(), evidence)[5:],
        atol=1e-8,
    )


def test_the_prior_warns_before_it_is_used():
    with pytest.warns(OrderingWarning, match="multistable"):
        MarkovGrid(0.68, 0.68).lower((12, 12))
    with pytest.warns(OrderingWarning, match="the grid itself is ordered"):
        MarkovGrid(0.8, 0.8).lower((12, 12))
    with pytest.warns(
        bf.errors.DensityWarning, match="the chains are active 0.294 of the time, but the grid"
    ):
        MarkovGrid(bf.models.Transition(0.75, 0.4), bf.models.Transition(0.75, 0.4)).lower((12, 12))
