"""The table kernel against enumeration, against a slow flooding twin, and against another library's
junction tree.
"""

import itertools
import math

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from bayesfed.inference import infer
from bayesfed.inference.sum_product.graphs.flat import TableGroup
from bayesfed.inference.sum_product.methods.outcome import Settings
from bayesfed.inference.sum_product.methods.tables.propagation import pass_tables
from bayesfed.inference.sum_product.trust import uniqueness
from bayesfed.inference.sum_product.trust.uniqueness import _influence
from bayesfed.models.random_fields import junction_tree
from benchmarks.parts.message_passing import networks
from tests.message_passing.table_graphs import (
    TIGHT,
    Graph,
    assert_agrees,
    enumerate_exactly,
    flood,
    random_evidence,
    random_forest,
    random_graph,
    random_loops,
)

KEY = bf.Key(0, "table kernel")


@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(8))
def test_forests_are_exact_after_one_sweep(seed, zeros):
    generator = np.random.default_rng(seed)
    graph, planted = random_forest(generator, 10, zeros)
    evidence = random_evidence(generator, graph, planted, zeros=zeros / 2)
    # Damping and an old state are for loops: here the answer is exact without them.
    outcome = pass_tables(graph.lower(), evidence, Settings(damping=0.7))
    assert (outcome.sweeps, outcome.residual) == (1, 0.0)
    for entry in range(3):
        assert_agrees(
            graph, outcome, entry, *enumerate_exactly(graph, evidence[entry].numpy()), within=1e-9
        )
    again = pass_tables(graph.lower(), evidence, Settings(), torch.ones_like(outcome.state))
    assert torch.equal(outcome.belief, again.belief)


def test_the_random_forests_cover_what_they_should():
    graphs = [random_forest(np.random.default_rng(seed), 10)[0] for seed in range(8)]
    arities = {len(scope) for graph in graphs for scope, _ in graph.factors}
    lonely = [set(range(10)) - {i for scope, _ in graph.factors for i in scope} for graph in graphs]
    assert arities >= {2, 3, 4}
    assert any(lonely)
    assert {card for graph in graphs for card in graph.cards} >= {1, 2, 3}


def test_variables_without_factors_keep_their_own_weights():
    graph, planted = random_graph(np.random.default_rng(0), [2, 3], [])
    evidence = random_evidence(np.random.default_rng(1), graph, planted)
    outcome = pass_tables(graph.lower(), evidence, Settings())
    assert outcome.state.shape == (3, 0)
    assert outcome.extrinsic.shape == (3, 2, 3)
    assert_agrees(graph, outcome, 2, *enumerate_exactly(graph, evidence[2].numpy()), within=1e-12)


@pytest.mark.parametrize("zeros", [0.0, 0.15])
@pytest.mark.parametrize("seed", range(3))
def test_loops_settle_where_damped_flooding_does(seed, zeros):
    generator = np.random.default_rng(seed)
    graph, planted = random_loops(generator, zeros)
    evidence = random_evidence(generator, graph, planted, batch=2)
    outcome = pass_tables(graph.lower(), evidence, TIGHT)
    assert outcome.residual <= TIGHT.tol
    assert outcome.sweeps > 1
    for entry in range(2):
        *expected, change = flood(graph, evidence[entry].numpy(), rounds=250)
        assert change < 1e-9
        assert_agrees(graph, outcome, entry, *expected, within=1e-6)
    exact = enumerate_exactly(graph, evidence[0].numpy())[2]
    assert abs(float(outcome.log_z()[0]) - exact) > 1e-5, (
        "a graph with loops on which Bethe is exact tests nothing"
    )


def test_damping_does_not_move_the_fixed_point():
    generator = np.random.default_rng(4)
    graph, planted = random_loops(generator)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    plain, damped = (
        pass_tables(model, evidence, TIGHT),
        pass_tables(model, evidence, Settings(tol=1e-11, max_sweeps=3000, damping=0.6)),
    )
    assert damped.sweeps > plain.sweeps
    assert torch.allclose(plain.belief.exp(), damped.belief.exp(), atol=1e-9, rtol=0)
    one = Settings(tol=0, max_sweeps=1)
    half = pass_tables(model, evidence, Settings(tol=0, max_sweeps=1, damping=1 - 1e-6))
    assert half.state.abs().max() < 1e-4 < pass_tables(model, evidence, one).state.abs().max(), (
        "a share of the old message is kept"
    )


def test_a_strong_grid_does_not_oscillate():
    """Undamped flooding falls into a cycle of two here."""
    generator, side, stay = np.random.default_rng(0), 6, 0.95
    number = np.arange(side * side).reshape(side, side)
    scopes = [
        *zip(number[:, :-1].flat, number[:, 1:].flat, strict=True),
        *zip(number[:-1].flat, number[1:].flat, strict=True),
    ]
    table = np.log([[stay, 1 - stay], [1 - stay, stay]])
    graph = Graph(
        [2] * side**2,
        [np.zeros(2)] * side**2,
        [(tuple(map(int, scope)), table) for scope in scopes],
    )
    sign = (-1.0) ** np.add.outer(np.arange(side), np.arange(side)).reshape(-1)
    evidence = torch.from_numpy(
        np.stack([sign, -sign], 1)[None] + 0.1 * generator.normal(size=(1, side**2, 2))
    )
    assert flood(graph, evidence[0].numpy(), damping=0.0, rounds=60)[3] > 0.1
    assert pass_tables(graph.lower(), evidence, Settings(tol=1e-8)).residual <= 1e-8


def test_a_warm_start_continues():
    generator = np.random.default_rng(5)
    graph, planted = random_loops(generator)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    first = pass_tables(model, evidence, Settings(tol=0, max_sweeps=3))
    kept = first.state.clone()
    then = pass_tables(model, evidence, Settings(tol=0, max_sweeps=2), first.state)
    whole = pass_tables(model, evidence, Settings(tol=0, max_sweeps=5))
    assert torch.allclose(then.state, whole.state, atol=1e-12, rtol=0)
    assert torch.equal(first.state, kept), "the caller's state is not written to"
    assert (
        pass_tables(model, evidence, TIGHT, pass_tables(model, evidence, TIGHT).state).sweeps == 1
    )


def test_without_sweeps_nothing_is_claimed():
    generator = np.random.default_rng(5)
    graph, planted = random_loops(generator)
    outcome = pass_tables(
        graph.lower(), random_evidence(generator, graph, planted), Settings(max_sweeps=0)
    )
    assert (outcome.sweeps, outcome.residual) == (0, math.inf)


def test_the_residual_is_the_largest_change_of_a_message():
    generator = np.random.default_rng(6)
    graph, planted = random_loops(generator)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    states = [pass_tables(model, evidence, Settings(tol=0, max_sweeps=sweeps)) for sweeps in (3, 4)]
    assert states[1].residual == pytest.approx(
        float((states[1].state - states[0].state).abs().max()), rel=1e-9
    )
    assert float(states[1].state.max()) == 0, "messages are normalised"


def test_single_precision_agrees_and_stays_single():
    generator = np.random.default_rng(7)
    graph, planted = random_loops(generator, zeros=0.1)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    exact, single = (
        pass_tables(model, evidence, TIGHT),
        pass_tables(model, evidence.float(), Settings(tol=1e-5)),
    )
    assert single.residual <= 1e-5
    assert {
        tensor.dtype
        for tensor in (
            single.belief,
            single.extrinsic,
            single.state,
            single.log_z(),
            *single.pairs(),
        )
    } == {torch.float32}
    assert torch.allclose(single.belief.exp().double(), exact.belief.exp(), atol=1e-5, rtol=0)
    assert torch.allclose(single.log_z().double(), exact.log_z(), atol=1e-4, rtol=0)


def test_the_extrinsic_part_is_the_belief_without_the_evidence():
    generator = np.random.default_rng(8)
    graph, planted = random_forest(generator, 9)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    outcome = pass_tables(model, evidence, Settings())
    for i, card in enumerate(graph.cards):
        expected = (outcome.belief - evidence)[:, i, :card].log_softmax(-1)
        assert torch.allclose(outcome.extrinsic[:, i, :card], expected, atol=1e-10, rtol=0)
        assert outcome.extrinsic[:, i, card:].isneginf().all()
        assert outcome.belief[:, i, card:].isneginf().all()
    shifted = evidence.clone()
    shifted[:, 3] += torch.randn(3, evidence.shape[2], dtype=torch.float64)
    shifted[0, 3, (planted[3] + 1) % graph.cards[3]] = -math.inf
    assert graph.cards[3] > 1
    assert torch.allclose(
        pass_tables(model, shifted, Settings()).extrinsic[:, 3],
        outcome.extrinsic[:, 3],
        atol=1e-12,
        rtol=0,
    )


def test_padded_states_are_ignored_whatever_stands_in_them():
    generator = np.random.default_rng(9)
    graph, planted = random_loops(generator)
    evidence = random_evidence(generator, graph, planted)
    dirty = evidence.clone()
    for i, card in enumerate(graph.cards):
        dirty[:, i, card:] = math.nan
    clean, other = (
        pass_tables(graph.lower(pad), given, TIGHT)
        for pad, given in ((-math.inf, evidence), (50.0, dirty))
    )
    assert torch.equal(clean.belief, other.belief)


def equality(card=2):
    return np.where(np.eye(card, dtype=bool), 0.0, -np.inf)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_forbidden_is_never_outvoted(dtype, loop):
    """A floored message would lose: in float32 a thousand nats of evidence weigh more than any
    number that can be floored at.
    """
    factors = [
        ((0, 1), equality()),
        ((1, 2), equality()),
        *([((2, 0), equality())] if loop else []),
    ]
    evidence = torch.zeros(1, 3, 2, dtype=dtype)
    evidence[0, 0, 0], evidence[0, 2, 0] = -math.inf, 1000.0
    outcome = pass_tables(Graph([2] * 3, [np.zeros(2)] * 3, factors).lower(), evidence, Settings())
    assert outcome.belief[0].tolist() == [[-math.inf, 0.0]] * 3
    assert outcome.extrinsic[0, 2].tolist() == [-math.inf, 0.0]
    assert bool(torch.isfinite(outcome.log_z()))


def test_a_small_weight_is_not_a_zero():
    """exp(-1000) is 0 in floating point, but only what a table forbids may be impossible."""
    table = np.array([[0.0, -1000.0], [-np.inf, 0.0]])
    evidence = torch.tensor([[[0.0, -math.inf], [-math.inf, 0.0]]], dtype=torch.float64)
    outcome = pass_tables(
        Graph([2] * 2, [np.zeros(2)] * 2, [((0, 1), table)]).lower(), evidence, Settings()
    )
    assert outcome.belief[0].tolist() == evidence[0].tolist()


@pytest.mark.parametrize("loop", [False, True])
def test_a_contradiction_is_an_error_not_a_nan(loop):
    factors = [
        ((0, 1), equality()),
        ((1, 2), equality()),
        *([((2, 0), equality())] if loop else []),
    ]
    model, evidence = Graph([2] * 3, [np.zeros(2)] * 3, factors).lower(), torch.zeros(2, 3, 2)
    evidence[1, 0, 0] = evidence[1, 2, 1] = -math.inf
    with pytest.raises(
        ArgumentError,
        match=(
            "expected a possible state for every variable, found none for variable . of batch "
            "entry 1"
        ),
    ):
        pass_tables(model, evidence, Settings())
    with pytest.raises(ArgumentError, match="none for variable 1 of batch entry 0"):
        pass_tables(
            Graph([2, 2], [np.zeros(2), np.full(2, -np.inf)], []).lower(),
            torch.zeros(1, 2, 2),
            Settings(),
        )
    with pytest.raises(ArgumentError, match="possible state"):
        pass_tables(
            Graph([2, 2], [np.zeros(2)] * 2, [((0, 1), np.full((2, 2), -np.inf))]).lower(),
            torch.zeros(1, 2, 2),
            Settings(),
        )


def test_wrong_arguments_are_refused():
    generator = np.random.default_rng(0)
    graph, planted = random_loops(generator)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    size = pass_tables(model, evidence, Settings(max_sweeps=0)).state.shape[1]
    for state in (torch.zeros(3, size + 1), torch.zeros(2, size), torch.full((3, size), math.nan)):
        with pytest.raises(ArgumentError, match=rf"finite messages of shape \(3, {size}\)"):
            pass_tables(model, evidence, Settings(), state)
    for wrong in (
        evidence[:, 1:],
        evidence[..., 1:],
        evidence.half(),
        evidence.long(),
    ):
        with pytest.raises(ArgumentError, match="log_weights: expected float32 or float64 log"):
            infer(model, log_weights=wrong)
    for value in (math.nan, math.inf):
        wrong = evidence.clone()
        wrong[0, 0, 0] = value
        with pytest.raises(ArgumentError, match="with inf or NaN"):
            infer(model, log_weights=wrong)
    with pytest.raises(ArgumentError, match="expected init='zero', found 'hi'"):
        pass_tables(model, evidence, Settings(init="hi"))


# Said by the library itself when it is imported.
@pytest.mark.filterwarnings("ignore:.pgmpy.estimators.StructureScore. is deprecated:FutureWarning")
@pytest.mark.slow
def test_trees_agree_with_a_junction_tree():
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import BeliefPropagation
    from pgmpy.models import DiscreteMarkovNetwork

    for seed in range(4):
        generator = np.random.default_rng(seed)
        cards = [int(c) for c in generator.integers(2, 5, 12)]
        graph, planted = random_graph(
            generator, cards, [(int(generator.integers(i)), i) for i in range(1, 12)]
        )
        evidence = random_evidence(generator, graph, planted, batch=1)
        outcome = pass_tables(graph.lower(), evidence, Settings())

        network = DiscreteMarkovNetwork(
            [(f"v{left}", f"v{right}") for (left, right), _ in graph.factors]
        )
        for i, card in enumerate(cards):
            network.add_factors(
                DiscreteFactor(
                    [f"v{i}"], [card], np.exp(graph.unary[i] + evidence[0, i, :card].numpy())
                )
            )
        for scope, table in graph.factors:
            network.add_factors(
                DiscreteFactor([f"v{i}" for i in scope], list(table.shape), np.exp(table))
            )
        assert float(outcome.log_z()[0]) == pytest.approx(
            math.log(network.get_partition_function()), abs=1e-8
        )
        oracle = BeliefPropagation(network)
        oracle.calibrate()
        for i, card in enumerate(cards):
            expected = oracle.query([f"v{i}"], show_progress=False).values
            assert outcome.belief[0, i, :card].exp().numpy() == pytest.approx(expected, abs=1e-8)
        found = dict(
            zip(
                itertools.chain(*graph.groups),
                itertools.chain(*(table[0] for table in outcome.pairs())),
                strict=True,
            )
        )
        for number, (scope, _) in itertools.islice(enumerate(graph.factors), 3):
            joint = oracle.query([f"v{i}" for i in scope], show_progress=False)
            order = [joint.variables.index(f"v{i}") for i in scope]
            assert found[number].numpy() == pytest.approx(joint.values.transpose(order), abs=1e-8)


# Said by the library itself when it is imported.
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["sachs", "child"])
def test_networks_equal_pgmpys_elimination(name):
    graph = networks.network(name)
    for evidence in (None, networks.observe(graph)[0]):
        result = infer(graph, log_weights=evidence)
        assert (result.method, result.trust) == ("exact", "exact")
        for number, expected in enumerate(networks.by_pgmpy(graph, evidence)[0]):
            assert result.marginals[number, : len(expected)].numpy() == pytest.approx(
                expected, abs=1e-10
            )


# Their largest tables have 2^17 to 2^23 entries; one of mildew's own has 201,300.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", networks.WIDE)
def test_networks_with_large_cliques_equal_a_contraction(name):
    graph = networks.network(name)
    for evidence in (None, networks.observe(graph)[0]):
        result = infer(graph, log_weights=evidence, method="exact")
        for variable, expected in networks.by_einsum(name, evidence):
            found = result.marginals[variable, : len(expected)].numpy()
            assert found == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize(("block", "huge"), [(64, 2**28), (64, 1)])
def test_draws_do_not_depend_on_blocks(monkeypatch, block, huge):
    """All draws of a root at once are other ones, of the same distribution."""
    graph, _ = random_loops(np.random.default_rng(1), 0.0, scale=2.0)
    evidence = torch.zeros(2, *graph.lower().unary.shape, dtype=torch.float64)
    result = infer(graph.lower(), log_weights=evidence, method="exact")
    whole = result.sample(4000, KEY)
    monkeypatch.setattr(junction_tree, "BLOCK", block)
    monkeypatch.setattr(junction_tree, "HUGE", huge)
    drawn = result.sample(4000, KEY)
    assert torch.equal(whole, drawn) == (huge > 1)
    shares = torch.nn.functional.one_hot(drawn, evidence.shape[-1]).double().mean(0)
    assert float((shares - result.marginals).abs().max()) < 4.5 * 0.5 / math.sqrt(4000)


def test_the_influence_of_a_table_is_that_of_all_its_ratios(monkeypatch):
    """With impossible entries, a single state, and one table beyond what is computed."""
    generator = np.random.default_rng(0)
    tables = generator.normal(size=(3, 3, 4, 1, 2)) * 2
    tables[generator.random(tables.shape) < 0.3] = -math.inf
    found = _influence(TableGroup(torch.from_numpy(tables), torch.arange(3), torch.zeros(3, 4)))
    for table, matrix in zip(tables, found, strict=True):  # Ratios with 0 / 0 are nothing.
        for i, j in itertools.permutations(range(4), 2):
            moved = np.moveaxis(table, (i, j), (0, 1)).reshape(table.shape[i], table.shape[j], -1)
            largest = 0.0
            for a, c in itertools.permutations(range(len(moved)), 2):
                for b, d in itertools.permutations(range(moved.shape[1]), 2):
                    with np.errstate(invalid="ignore"):
                        one, two = (
                            (moved[x, y] - moved[z, y])[moved[x, y] > -math.inf].max(
                                initial=-math.inf
                            )
                            for x, y, z in ((a, b, c), (c, d, a))
                        )
                    if min(one, two) > -math.inf:
                        largest = max(largest, one + two)
            assert float(matrix[i, j]) == pytest.approx(math.tanh(largest / 4), abs=1e-12)
    monkeypatch.setattr(uniqueness, "MOST", 24 * 4)
    group = TableGroup(torch.from_numpy(tables), torch.arange(3), torch.zeros(3, 4))
    assert torch.equal(_influence(group), found)
    monkeypatch.undo()
    wide = TableGroup(torch.zeros(1, 6000, 2), torch.zeros(1), torch.zeros(1, 2))
    assert _influence(wide).tolist() == [[[0.0, 1.0], [0.0, 0.0]]]
