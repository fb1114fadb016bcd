"""Supports as priors: draws against exact sums, calibration, learned transitions, patches and
neighbourhoods.
"""

import math
import warnings
from functools import cache

import networkx as nx
import pyro
import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.inference import FactorGraph, calibrate, infer, log_z, maximise
from bayesfed.inference.turbo.exchange import Exchange
from bayesfed.inference.turbo.transitions import even_grid, moments, parameters_of
from bayesfed.keys import Key, forked
from bayesfed.models import ClusteredSupport, Grid, Link, MarkovGrid, Neighbourhood, Transition
from bayesfed.models.random_fields.phase_transition import bulk_density
from bayesfed.models.random_fields.sampling import gibbs, swendsen_wang

DRAWS = 20_000


def normal(*shape, name="evidence"):
    return torch.randn(*shape, generator=Key(0, name).generator(), dtype=torch.float64)


def statistics(drawn):
    """Return probabilities of ones and of both ends of row and column links, over draws
    ``(S, K, M)``.
    """
    return (
        drawn.mean(0),
        (drawn[:, :, 1:] * drawn[:, :, :-1]).mean(0),
        (drawn[:, 1:] * drawn[:, :-1]).mean(0),
    )


# Draws


@pytest.mark.parametrize("size", [(3, 4), (9, 2), (1, 8), (6, 30)])
def test_exact_draws_match_exact_marginals(size):
    grid = Grid(size, Link(1.1, -0.4, -0.5), Link(0.7, -0.3, -0.4), 0.2)
    with forked(Key(0, "draws")):
        drawn = ClusteredSupport(grid).sample((DRAWS,))
    assert drawn.shape == (DRAWS, *size)
    found = infer(grid, method="exact")
    # A share of 20,000 draws has sd 0.0035; the largest of 500 stays below 5 of them.
    exact = (found.marginals, *(table[..., 1, 1] for table in found.pair_marginals))
    assert all(
        float((share - wanted).abs().max()) < 0.018
        for share, wanted in zip(statistics(drawn), exact, strict=True)
        if share.numel()
    )


def test_draws_from_trees_are_exact():
    drawn = nx.Graph([(0, 1), (0, 2), (1, 3), (1, 4), (5, 6)])
    tree = FactorGraph.pairwise(drawn, coupling=1.7, field=-0.6).lower()
    with forked(Key(0, "tree")):
        drawn = ClusteredSupport(tree).sample((DRAWS,)).double()
    found = infer(tree)
    left, right = tree.edges
    assert float((drawn.mean(0) - found.marginals).abs().max()) < 0.018
    assert (
        float(
            ((drawn[:, left] * drawn[:, right]).mean(0) - found.pair_marginals[0][..., 1, 1])
            .abs()
            .max()
        )
        < 0.018
    )


@pytest.mark.parametrize("turn", [gibbs, swendsen_wang])
def test_markov_chain_draws_match_exact_marginals(turn):
    grid = Grid((4, 5), Link(0.9, -0.5, -0.5), Link(0.7, -0.3, -0.4), 0.1)
    model = grid.ising()
    with forked(Key(0, "chain")):
        flat = torch.bernoulli(torch.full((DRAWS, 20), 0.5, dtype=torch.float64))
        for _ in range(25):
            flat = turn(model, flat)
    found = infer(grid, method="exact")
    exact = (found.marginals, *(table[..., 1, 1] for table in found.pair_marginals))
    for share, wanted in zip(statistics(flat.reshape(DRAWS, 4, 5)), exact, strict=True):
        assert float((share - wanted).abs().max()) < 0.018


def test_clusters_cross_the_ordering_transition_where_gibbs_is_stuck():
    grid = Grid((20, 20), Link(3.0, -1.5, -1.5), Link(3.0, -1.5, -1.5))
    with forked(Key(0, "ordered")):
        drawn = ClusteredSupport(grid, sweeps=20).sample((400,))
        stuck = torch.ones(400, 400)
        for _ in range(20):
            stuck = gibbs(grid.ising(), stuck)
    # By symmetry half of the grids are mostly on.
    assert abs(float((drawn.mean((1, 2)) > 0.5).float().mean()) - 0.5) < 0.15
    assert bool((stuck.mean(1) > 0.5).all())


def test_a_clustered_support_is_a_pyro_distribution():
    grid = Grid((3, 3), Link(0.8, -0.4, -0.4), Link(0.8, -0.4, -0.4), 0.1, arrangement=(2, 9))

    def model():
        support = pyro.sample("s", ClusteredSupport(grid))
        pyro.factor("normaliser", -log_z(grid))
        return support

    with forked(Key(0, "pyro")):
        trace = pyro.poutine.trace(model).get_trace()
    support = trace.nodes["s"]["value"]
    assert support.shape == (2, 9)
    states = torch.tensor(
        [[float(bit) for bit in f"{number:09b}"] for number in range(512)], dtype=torch.float64
    )
    single = Grid((3, 3), grid.row, grid.column, grid.field)
    normaliser = 2 * torch.logsumexp(single.energy(states.reshape(-1, 3, 3)), 0)
    assert float(trace.log_prob_sum()) == pytest.approx(
        float(grid.energy(support.double()) - normaliser), abs=1e-5
    )
    with pytest.raises(ArgumentError, match="no batch dimension"):
        ClusteredSupport(grid).expand([3])


def test_independent_supports_are_normalised_and_drawn_exactly():
    model = bf.Independent(0.3).lower((4, 50))
    ones = torch.ones(4, 50)
    assert float(ClusteredSupport(model).log_prob(ones)) == pytest.approx(
        200 * math.log(0.3), rel=1e-5
    )
    with forked(Key(0, "independent")):
        assert float(ClusteredSupport(model).sample((500,)).mean()) == pytest.approx(0.3, abs=0.01)


# Calibration and learning


@cache
def calibrated(density, cluster_size):
    return calibrate(density, cluster_size)


@pytest.mark.parametrize(
    ("density", "cluster_size"),
    [
        (0.2, 1.6),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in ((0.05, 1.15), (0.5, 2.2), (0.8, 5.6))
        ),
    ],
)
@pytest.mark.slow
def test_calibrated_priors_have_the_density_and_clusters_asked_for(density, cluster_size):
    grid = calibrated(density, cluster_size).lower((30, 9))
    found = infer(grid, method="exact")
    ones = float(found.marginals[10:-10, 4].mean())
    assert ones == pytest.approx(density, abs=0.01)
    # Runs end where a one is followed by a zero.
    ends = float(found.pair_marginals[1][10:-10, 4, 1, 0].mean())
    assert ones / ends == pytest.approx(cluster_size, rel=0.02)


@pytest.mark.slow
def test_calibrated_draws_look_as_asked():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        grid = calibrated(0.2, 1.6).lower((64, 64))
    with forked(Key(0, "calibrated")):
        drawn = ClusteredSupport(grid, sweeps=60).sample((30,))
    assert float(drawn.mean()) == pytest.approx(0.2, abs=0.015)
    assert float(
        drawn[:, :, :-1].sum() / (drawn[:, :, :-1] * (1 - drawn[:, :, 1:])).sum()
    ) == pytest.approx(1.6, abs=0.05)


def test_calibrate_says_what_can_be_had():
    with pytest.raises(ArgumentError, match=r"a cluster_size from 1.053 \(independent\) to 1.2"):
        calibrate(0.05, 5.0)
    with pytest.raises(ArgumentError, match="from 1.250"):
        calibrate(0.2, 1.0)
    for bad in ((0.0, 2.0), (1.0, 2.0), (math.nan, 2.0), (0.2, math.inf), (0.2, -1.0)):
        with pytest.raises(ArgumentError, match="expected a number in"):
            calibrate(*bad)


def test_chains_and_grids_differ_in_density():
    """What W5 warns of: the published product of tables of chains that are on 31 % of the time
    makes a grid of 7 %.
    """
    chain = bf.models.Transition(0.78, 0.5)
    assert chain.stationary() == pytest.approx(0.306, abs=0.001)
    with pytest.warns(bf.errors.DensityWarning):
        grid = MarkovGrid(chain, chain).lower((40, 12))
    exact = float(infer(grid, method="exact").marginals[15:25, 5:7].mean())
    assert exact == pytest.approx(bulk_density(grid), abs=0.002)
    assert exact < 0.1


@pytest.mark.slow
def test_em_finds_the_transitions_that_made_the_data():
    truth = even_grid((150, 140), torch.tensor([1.2, 0.5, -0.45], dtype=torch.float64))
    with forked(Key(0, "truth")):
        support = ClusteredSupport(truth, sweeps=80).sample()
    # Consistent Gaussian evidence: the log-likelihood ratio of s + noise.
    evidence = 2 * normal(150, 140) + (2 * support.double() - 1) * 2
    grid, state = even_grid((150, 140), torch.tensor([0.4, 0.4, -1.5], dtype=torch.float64)), None
    for _ in range(25):
        found = infer(grid, evidence, method="strip", state=state, tol=1e-4)
        grid, state = maximise(grid, found), found.state
    assert parameters_of(grid).tolist() == pytest.approx([1.2, 0.5, -0.45], abs=0.15)
    # A fixed point of EM: the prior expects what the posterior says.
    along, across = (table[2:-2, 2:-2, 1, 1].mean() for table in found.pair_marginals)
    assert torch.allclose(
        moments(parameters_of(grid)),
        torch.stack([along, across, found.marginals[2:-2, 2:-2].mean()]),
        atol=2e-3,
    )


def test_em_on_small_patches_matches_the_patch_as_a_whole():
    truth = even_grid(
        (3, 3), torch.tensor([0.9, 0.9, -0.6], dtype=torch.float64), arrangement=(4000, 9)
    )
    with forked(Key(0, "kernels")):
        support = ClusteredSupport(truth).sample()
    grid = even_grid(
        (3, 3), torch.tensor([0.2, 0.2, 0.0], dtype=torch.float64), arrangement=(4000, 9)
    )
    for _ in range(5):
        grid = maximise(grid, infer(grid, 30 * (2 * support.double() - 1)))
    assert parameters_of(grid).tolist() == pytest.approx([0.9, 0.9, -0.6], abs=0.1)


def test_the_exchange_learns_transitions_and_says_where_it_cannot():
    declared = bf.declare(
        nn.Sequential(nn.Linear(20, 16, bias=False)), bf.Prior(support=MarkovGrid(0.6, 0.6))
    )
    site, exchange = declared.sites["0.weight"], Exchange(learn_transitions=True)
    state = exchange.start(site)
    assert torch.allclose(state.transitions, parameters_of(site.support))
    clustered = torch.zeros(16, 20)
    clustered[4:10, 5:14] = 1.0
    belief = bf.models.SiteBelief(
        clustered,
        torch.tensor(0.01),
        torch.full((16, 20), 20.0),
        torch.ones(2, 1, 1),
        torch.ones(2, 1, 1),
    )
    blocks = bf.inference.Structured()
    for _ in range(4):
        after, state, found = exchange.run(site, belief, state, blocks)
    learned = exchange.support(site, state)
    assert learned.strength() > site.support.strength()
    assert float(state.transitions[:2].max()) <= 4 * 0.42 + 1e-6
    assert found.multistable_share is not None
    assert bool((after.active == clustered.bool())[5:9, 6:13].all())
    independent = bf.declare(nn.Sequential(nn.Linear(4, 4)), bf.Prior(support=bf.Independent(0.5)))
    with pytest.raises(ArgumentError, match="a MarkovGrid"):
        exchange.start(independent.sites["0.weight"])


# Patches and neighbourhoods


def test_a_patch_is_its_own_grid_in_every_unit():
    grid = MarkovGrid(0.62, 0.6, field=-0.3, patch=(3, 4)).lower((5, 24))
    assert (grid.size, grid.copies, grid.shape) == ((3, 4), 10, (5, 24))
    evidence = normal(5, 24)
    whole = infer(grid, evidence)
    alone = MarkovGrid(0.62, 0.6, field=-0.3).lower((3, 4))
    for unit in range(5):
        for part in range(2):
            piece = evidence[unit, 12 * part : 12 * part + 12]
            assert torch.allclose(
                infer(alone, piece.reshape(3, 4)).belief.reshape(-1),
                whole.belief[unit, 12 * part : 12 * part + 12],
            )
    with pytest.raises(ArgumentError, match="to divide the inputs of a unit, found 23"):
        MarkovGrid(patch=(3, 4)).lower((5, 23))
    with pytest.raises(ArgumentError, match="two sides"):
        MarkovGrid(patch=(0, 4))


def test_a_neighbourhood_of_a_grid_is_that_grid():
    support, evidence = Neighbourhood(nx.grid_2d_graph(4, 5), 0.62, -0.3), normal(3, 20)
    patch = MarkovGrid(0.62, 0.62, field=-0.3, patch=(4, 5)).lower((3, 20))
    graph, lowered = (
        FactorGraph.pairwise(nx.grid_2d_graph(4, 5), coupling=1.0),
        support.lower((3, 20)),
    )
    assert isinstance(graph.lower(), Grid)
    one, two = (
        infer(lowered, evidence, method="bp", tol=1e-11),
        infer(patch, evidence, method="bp", tol=1e-11),
    )
    assert torch.allclose(one.belief, two.belief, atol=1e-5)
    with pytest.raises(ArgumentError, match="a simple undirected graph of 21 nodes"):
        support.lower((3, 21))


def test_a_declared_network_draws_from_a_neighbourhood_prior():
    king = nx.strong_product(nx.path_graph(8), nx.path_graph(8))
    net = bf.mlp([64, 6, 10], Key(0, "net"))
    declared = bf.declare(
        net,
        bf.Prior(support=Neighbourhood(king, 0.53, -0.5)),
        where=lambda name, module: name == "1.weight",
    )
    points = {name: value for name, value in declared.initial.items() if name != "1.weight"}
    with forked(Key(0, "draw")):
        trace = pyro.poutine.trace(declared.model).get_trace(points, torch.zeros(1, 8, 8))
    assert trace.nodes["1.weight.s"]["value"].shape == (6, 64)


@pytest.mark.parametrize(
    ("grid", "shape"),
    [
        (MarkovGrid(Transition(0.9, 0.6), 0.5), (1, 7)),
        (MarkovGrid(0.5, Transition(0.9, 0.6)), (7, 2)),
        (MarkovGrid(Transition(0.9, 0.6), 0.5, patch=(2, 3)), (2, 6)),
    ],
)
@pytest.mark.filterwarnings("ignore:MarkovGrid. the chains")
def test_a_chain_starts_in_its_stationary_state(grid, shape):
    """It started even: .5, .3, .26, ... where 0.2 are active in the long run."""
    marginals = infer(grid.lower(shape), torch.zeros(shape), method="exact").marginals
    assert torch.allclose(marginals, torch.full(shape, 0.2), atol=1e-6)
