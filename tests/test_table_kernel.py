"""The table kernel against enumeration, against a slow flooding twin, and against another library's junction tree."""

import gc
import itertools
import math
import weakref
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from bayesfed.errors import ArgumentError
from bayesfed.inference.graphs.flat import TableGroup, Tables
from bayesfed.inference.passing import table_schedule
from bayesfed.inference.passing.outcome import Settings
from bayesfed.inference.passing.table_schedule import COLOURS, compile_tables
from bayesfed.inference.passing.tables import pass_tables

TIGHT = Settings(tol=1e-11, max_sweeps=3000)


@dataclass
class Graph:
    """A factor graph as people write it: cardinalities, unary log weights, and (scope, log table) pairs."""

    cards: list[int]
    unary: list[np.ndarray]
    factors: list[tuple[tuple[int, ...], np.ndarray]]

    @property
    def groups(self):
        """Factor numbers by the shape of their table."""
        found = defaultdict(list)
        for number, (_, table) in enumerate(self.factors):
            found[table.shape].append(number)
        return list(found.values())

    def lower(self, padding=-math.inf):
        width = max(self.cards)
        unary = torch.full((len(self.cards), width), padding, dtype=torch.float64)
        for i, weights in enumerate(self.unary):
            unary[i, : len(weights)] = torch.from_numpy(weights)
        groups = []
        for numbers in self.groups:
            distinct = {}
            which = [distinct.setdefault(self.factors[f][1].tobytes(), (len(distinct), self.factors[f][1]))[0] for f in numbers]
            tables = torch.from_numpy(np.stack([table for _, table in distinct.values()]))
            groups.append(TableGroup(tables, torch.tensor(which), torch.tensor([self.factors[f][0] for f in numbers])))
        return Tables(torch.tensor(self.cards), unary, tuple(groups))


def random_graph(generator, cards, scopes, zeros=0.0, scale=1.0):
    """Draw tables from a small pool for each shape; with zeros, one planted assignment stays possible."""
    planted = [int(generator.integers(card)) for card in cards]

    def draw(shape, kept):
        table = scale * generator.normal(size=shape)
        table[generator.random(shape) < zeros] = -np.inf
        table[kept] = scale * generator.normal()
        return table

    pools, factors = defaultdict(list), []
    for scope in scopes:
        shape, kept = tuple(cards[i] for i in scope), tuple(planted[i] for i in scope)
        usable = [table for table in pools[shape] if table[kept] > -np.inf]
        if not usable or generator.random() < 0.6:
            usable = [draw(shape, kept)]
            pools[shape] += usable
        factors.append((scope, usable[-1]))
    return Graph(list(cards), [draw((card,), (state,)) for card, state in zip(cards, planted, strict=True)], factors), planted


def random_forest(generator, variables, zeros=0.0):
    """Grow trees of factors of arity 2 to 4, several of them, and some variables without factors."""
    cards = [int(c) for c in generator.integers(1, 4, variables)]
    scopes, grown = [], 1
    while grown < variables - 1:
        arity = int(min(generator.integers(2, 5), variables - grown + 1))
        scope = [int(generator.integers(grown)), *range(grown, grown + arity - 1)]
        scopes.append(tuple(int(i) for i in generator.permutation(scope)))
        # Now and then a variable is skipped: the next factor may start at it, and if none does it stays alone.
        grown += arity - 1 + int(generator.random() < 0.3)
    return random_graph(generator, cards, scopes, zeros)


def random_loops(generator, zeros=0.0, scale=0.5):
    cards = [int(c) for c in generator.integers(2, 4, 7)]
    scopes = [tuple(int(i) for i in generator.choice(7, int(generator.integers(2, 5)), replace=False)) for _ in range(8)]
    return random_graph(generator, cards, scopes, zeros, scale)


def random_evidence(generator, graph, planted, batch=3, zeros=0.0):
    evidence = generator.normal(size=(batch, len(graph.cards), max(graph.cards)))
    evidence[generator.random(evidence.shape) < zeros] = -np.inf
    evidence[:, np.arange(len(planted)), planted] = generator.normal(size=(batch, len(planted)))
    return torch.from_numpy(evidence)


def enumerate_exactly(graph, evidence):
    """Return marginals (n lists), factor marginals and log Z of one batch entry by summing over all assignments."""
    total = np.zeros(graph.cards)
    for i, weights in enumerate(graph.unary):
        total = total + (weights + evidence[i, : graph.cards[i]]).reshape([-1 if j == i else 1 for j in range(len(graph.cards))])
    for scope, table in graph.factors:
        order = np.argsort(scope)
        total = total + table.transpose(order).reshape([card if j in scope else 1 for j, card in enumerate(graph.cards)])
    peak = total.max()
    weights = np.exp(total - peak)
    weights, log_z = weights / weights.sum(), peak + math.log(weights.sum())

    def marginal(scope):
        kept = weights.sum(tuple(j for j in range(len(graph.cards)) if j not in scope))
        return kept.transpose(np.argsort(np.argsort(scope)))

    return [marginal((i,)) for i in range(len(graph.cards))], [marginal(scope) for scope, _ in graph.factors], log_z


def flood(graph, evidence, damping=0.5, rounds=2000):
    """Return what plain damped flooding settles at: marginals, factor marginals, Bethe log Z and the last change."""
    fields = [weights + evidence[i, : graph.cards[i]] for i, weights in enumerate(graph.unary)]
    messages = {(f, k): np.zeros(graph.cards[i]) for f, (scope, _) in enumerate(graph.factors) for k, i in enumerate(scope)}
    on = defaultdict(list)
    for f, k in messages:
        on[graph.factors[f][0][k]].append((f, k))

    def cavity(f, k):
        i = graph.factors[f][0][k]
        return fields[i] + sum(messages[edge] for edge in on[i] if edge != (f, k))

    def joint(f, without=None):
        scope, table = graph.factors[f]
        for k in range(len(scope)):
            if k != without:
                table = table + cavity(f, k).reshape([-1 if j == k else 1 for j in range(len(scope))])
        return table

    for _ in range(rounds):
        fresh = {}
        for (f, k), old in messages.items():
            table = joint(f, without=k)
            sums = np.maximum(np.logaddexp.reduce(table, axis=tuple(j for j in range(table.ndim) if j != k)), -700)
            fresh[f, k] = damping * old + (1 - damping) * (sums - sums.max())
        change = max(float(np.abs(fresh[edge] - messages[edge]).max()) for edge in messages)
        messages = fresh
    beliefs = [fields[i] + sum(messages[edge] for edge in on[i]) for i in range(len(fields))]
    log_z = sum((1 - len(on[i])) * np.logaddexp.reduce(belief) for i, belief in enumerate(beliefs))
    log_z += sum(np.logaddexp.reduce(joint(f), axis=None) for f in range(len(graph.factors)))
    pairs = [np.exp(joint(f) - np.logaddexp.reduce(joint(f), axis=None)) for f in range(len(graph.factors))]
    return [np.exp(belief - np.logaddexp.reduce(belief)) for belief in beliefs], pairs, log_z, change


def assert_agrees(graph, outcome, entry, marginals, pairs, log_z, within):
    assert float(outcome.log_z()[entry]) == pytest.approx(log_z, abs=within, rel=within)
    for i, expected in enumerate(marginals):
        found = outcome.belief[entry, i].exp().numpy()
        assert found[: len(expected)] == pytest.approx(expected, abs=within)
        assert not found[len(expected) :].any()
    found = outcome.pairs()
    assert [tuple(table.shape) for table in found] == [
        (len(outcome.belief), len(numbers), *graph.factors[numbers[0]][1].shape) for numbers in graph.groups
    ]
    for group, numbers in zip(found, graph.groups, strict=True):
        for place, number in enumerate(numbers):
            assert group[entry, place].numpy() == pytest.approx(pairs[number], abs=within)


@pytest.mark.parametrize("zeros", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(8))
def test_forests_are_exact_after_one_sweep(seed, zeros):
    generator = np.random.default_rng(seed)
    graph, planted = random_forest(generator, 10, zeros)
    evidence = random_evidence(generator, graph, planted, zeros=zeros / 2)
    # Damping and an old state are for loops: here the answer is exact without them.
    outcome = pass_tables(graph.lower(), evidence, Settings(damping=0.7))
    assert (outcome.sweeps, outcome.residual, outcome.converged) == (1, 0.0, True)
    for entry in range(3):
        assert_agrees(graph, outcome, entry, *enumerate_exactly(graph, evidence[entry].numpy()), within=1e-9)
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
    assert outcome.converged
    assert outcome.sweeps > 1
    for entry in range(2):
        *expected, change = flood(graph, evidence[entry].numpy(), rounds=250)
        assert change < 1e-9
        assert_agrees(graph, outcome, entry, *expected, within=1e-6)
    exact = enumerate_exactly(graph, evidence[0].numpy())[2]
    assert abs(float(outcome.log_z()[0]) - exact) > 1e-5, "a graph with loops on which Bethe is exact tests nothing"


def test_damping_does_not_move_the_fixed_point():
    generator = np.random.default_rng(4)
    graph, planted = random_loops(generator)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    plain, damped = pass_tables(model, evidence, TIGHT), pass_tables(model, evidence, Settings(tol=1e-11, max_sweeps=3000, damping=0.6))
    assert damped.sweeps > plain.sweeps
    assert torch.allclose(plain.belief.exp(), damped.belief.exp(), atol=1e-9, rtol=0)
    one = Settings(tol=0, max_sweeps=1)
    half = pass_tables(model, evidence, Settings(tol=0, max_sweeps=1, damping=1 - 1e-6))
    assert half.state.abs().max() < 1e-4 < pass_tables(model, evidence, one).state.abs().max(), "a share of the old message is kept"


def test_a_strong_grid_does_not_oscillate():
    """Undamped flooding falls into a cycle of two here."""
    generator, side, stay = np.random.default_rng(0), 6, 0.95
    number = np.arange(side * side).reshape(side, side)
    scopes = [*zip(number[:, :-1].flat, number[:, 1:].flat, strict=True), *zip(number[:-1].flat, number[1:].flat, strict=True)]
    table = np.log([[stay, 1 - stay], [1 - stay, stay]])
    graph = Graph([2] * side**2, [np.zeros(2)] * side**2, [(tuple(map(int, scope)), table) for scope in scopes])
    sign = (-1.0) ** np.add.outer(np.arange(side), np.arange(side)).reshape(-1)
    evidence = torch.from_numpy(np.stack([sign, -sign], 1)[None] + 0.1 * generator.normal(size=(1, side**2, 2)))
    assert flood(graph, evidence[0].numpy(), damping=0.0, rounds=60)[3] > 0.1
    assert pass_tables(graph.lower(), evidence, Settings(tol=1e-8)).converged


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
    assert pass_tables(model, evidence, TIGHT, pass_tables(model, evidence, TIGHT).state).sweeps == 1


def test_without_sweeps_nothing_is_claimed():
    generator = np.random.default_rng(5)
    graph, planted = random_loops(generator)
    outcome = pass_tables(graph.lower(), random_evidence(generator, graph, planted), Settings(max_sweeps=0))
    assert (outcome.sweeps, outcome.residual, outcome.converged) == (0, math.inf, False)


def test_the_residual_is_the_largest_change_of_a_message():
    generator = np.random.default_rng(6)
    graph, planted = random_loops(generator)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    states = [pass_tables(model, evidence, Settings(tol=0, max_sweeps=sweeps)) for sweeps in (3, 4)]
    assert states[1].residual == pytest.approx(float((states[1].state - states[0].state).abs().max()), rel=1e-9)
    assert float(states[1].state.max()) == 0, "messages are normalised"


def test_single_precision_agrees_and_stays_single():
    generator = np.random.default_rng(7)
    graph, planted = random_loops(generator, zeros=0.1)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    exact, single = pass_tables(model, evidence, TIGHT), pass_tables(model, evidence.float(), Settings(tol=1e-5))
    assert single.converged
    assert {tensor.dtype for tensor in (single.belief, single.extrinsic, single.state, single.log_z(), *single.pairs())} == {torch.float32}
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
    assert torch.allclose(pass_tables(model, shifted, Settings()).extrinsic[:, 3], outcome.extrinsic[:, 3], atol=1e-12, rtol=0)


def test_padded_states_are_ignored_whatever_stands_in_them():
    generator = np.random.default_rng(9)
    graph, planted = random_loops(generator)
    evidence = random_evidence(generator, graph, planted)
    dirty = evidence.clone()
    for i, card in enumerate(graph.cards):
        dirty[:, i, card:] = math.nan
    clean, other = (pass_tables(graph.lower(pad), given, TIGHT) for pad, given in ((-math.inf, evidence), (50.0, dirty)))
    assert torch.equal(clean.belief, other.belief)


def equality(card=2):
    return np.where(np.eye(card, dtype=bool), 0.0, -np.inf)


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_forbidden_is_never_outvoted(dtype, loop):
    """A floored message would lose: in float32 a thousand nats of evidence weigh more than any number that can be floored at."""
    factors = [((0, 1), equality()), ((1, 2), equality()), *([((2, 0), equality())] if loop else [])]
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
    outcome = pass_tables(Graph([2] * 2, [np.zeros(2)] * 2, [((0, 1), table)]).lower(), evidence, Settings())
    assert outcome.belief[0].tolist() == evidence[0].tolist()


@pytest.mark.parametrize("loop", [False, True])
def test_a_contradiction_is_an_error_not_a_nan(loop):
    factors = [((0, 1), equality()), ((1, 2), equality()), *([((2, 0), equality())] if loop else [])]
    model, evidence = Graph([2] * 3, [np.zeros(2)] * 3, factors).lower(), torch.zeros(2, 3, 2)
    evidence[1, 0, 0] = evidence[1, 2, 1] = -math.inf
    with pytest.raises(ArgumentError, match="expected a possible state for every variable, found none for variable . of batch entry 1"):
        pass_tables(model, evidence, Settings())
    with pytest.raises(ArgumentError, match="none for variable 1 of batch entry 0"):
        pass_tables(Graph([2, 2], [np.zeros(2), np.full(2, -np.inf)], []).lower(), torch.zeros(1, 2, 2), Settings())
    with pytest.raises(ArgumentError, match="possible state"):
        pass_tables(Graph([2, 2], [np.zeros(2)] * 2, [((0, 1), np.full((2, 2), -np.inf))]).lower(), torch.zeros(1, 2, 2), Settings())


def test_wrong_arguments_are_refused():
    generator = np.random.default_rng(0)
    graph, planted = random_loops(generator)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted)
    size = pass_tables(model, evidence, Settings(max_sweeps=0)).state.shape[1]
    for state in (torch.zeros(3, size + 1), torch.zeros(2, size), torch.full((3, size), math.nan)):
        with pytest.raises(ArgumentError, match=rf"state: expected finite, of shape \(3, {size}\)"):
            pass_tables(model, evidence, Settings(), state)
    for wrong in (evidence[0], evidence[:, 1:], evidence[..., 1:], evidence.half(), evidence.long()):
        with pytest.raises(ArgumentError, match="evidence: expected float32 or float64 of shape"):
            pass_tables(model, wrong, Settings())
    for value in (math.nan, math.inf):
        wrong = evidence.clone()
        wrong[0, 0, 0] = value
        with pytest.raises(ArgumentError, match="finite or -inf"):
            pass_tables(model, wrong, Settings())
    with pytest.raises(ArgumentError, match="expected init='zero', found 'hi'"):
        pass_tables(model, evidence, Settings(init="hi"))


def test_factors_that_speak_together_share_no_variable():
    generator = np.random.default_rng(0)
    scopes = [tuple(int(i) for i in generator.choice(300, int(generator.integers(2, 5)), replace=False)) for _ in range(400)]
    graph, _ = random_graph(generator, [2] * 300, scopes)
    program = compile_tables(graph.lower())
    assert not program.forest
    assert sorted((batch.group, f) for batch in program.batches for f in batch.factors.tolist()) == [
        (g, f) for g, numbers in enumerate(graph.groups) for f in range(len(numbers))
    ]
    for batch in program.batches:
        assert batch.apart
        assert batch.scope.unique().numel() == batch.scope.numel()


def test_a_hub_of_very_many_factors_still_settles_where_flooding_does():
    generator = np.random.default_rng(1)
    leaves = COLOURS + 20
    scopes = [(0, i) for i in range(1, leaves + 1)] + [(i, i + 1) for i in range(1, leaves, 2)]
    graph, planted = random_graph(generator, [2] * (leaves + 1), scopes, scale=0.3)
    model, evidence = graph.lower(), random_evidence(generator, graph, planted, batch=1)
    assert not all(batch.apart for batch in compile_tables(model).batches)
    outcome = pass_tables(model, evidence, TIGHT)
    *expected, change = flood(graph, evidence[0].numpy(), damping=0.3, rounds=60)
    assert change < 1e-9
    assert_agrees(graph, outcome, 0, *expected, within=1e-6)


@pytest.mark.parametrize("arity", [2, 3, 4])
def test_a_shared_table_gives_what_copies_of_it_give(arity, monkeypatch):
    generator = np.random.default_rng(arity)
    scopes = [tuple(int(i) for i in generator.choice(12, arity, replace=False)) for _ in range(14)]
    tables = [0.4 * generator.normal(size=(3,) * arity) for _ in range(2)]
    graph = Graph([3] * 12, [np.zeros(3)] * 12, [(scope, tables[f % 2]) for f, scope in enumerate(scopes)])
    evidence = torch.from_numpy(generator.normal(size=(3, 12, 3)))
    copies = pass_tables(graph.lower(), evidence, TIGHT)
    monkeypatch.setattr(table_schedule, "_SHARE", 1)
    model = graph.lower()
    assert {batch.weights.shape[2] for batch in compile_tables(model).batches} == {1}
    shared = pass_tables(model, evidence, TIGHT)
    assert torch.allclose(shared.belief, copies.belief, atol=1e-9, rtol=0)
    assert torch.allclose(shared.log_z(), copies.log_z(), atol=1e-9, rtol=0)
    assert torch.allclose(shared.pairs()[0], copies.pairs()[0], atol=1e-9, rtol=0)


def test_a_model_is_compiled_once_and_forgotten_with_it():
    model = random_loops(np.random.default_rng(0))[0].lower()
    program = compile_tables(model)
    assert compile_tables(model) is program
    assert compile_tables(model, torch.float32) is not program
    gone = weakref.ref(program)
    del model, program
    gc.collect()
    assert gone() is None


def test_the_root_is_in_the_middle_of_its_tree():
    graph, _ = random_graph(np.random.default_rng(0), [2] * 101, [(i, i + 1) for i in range(100)])
    assert len(compile_tables(graph.lower()).batches) == 50


# Said by the library itself when it is imported.
@pytest.mark.filterwarnings("ignore:.pgmpy.estimators.StructureScore. is deprecated:FutureWarning")
def test_trees_agree_with_a_junction_tree():
    from pgmpy.factors.discrete import DiscreteFactor
    from pgmpy.inference import BeliefPropagation
    from pgmpy.models import DiscreteMarkovNetwork

    for seed in range(4):
        generator = np.random.default_rng(seed)
        cards = [int(c) for c in generator.integers(2, 5, 12)]
        graph, planted = random_graph(generator, cards, [(int(generator.integers(i)), i) for i in range(1, 12)])
        evidence = random_evidence(generator, graph, planted, batch=1)
        outcome = pass_tables(graph.lower(), evidence, Settings())

        network = DiscreteMarkovNetwork([(f"v{left}", f"v{right}") for (left, right), _ in graph.factors])
        for i, card in enumerate(cards):
            network.add_factors(DiscreteFactor([f"v{i}"], [card], np.exp(graph.unary[i] + evidence[0, i, :card].numpy())))
        for scope, table in graph.factors:
            network.add_factors(DiscreteFactor([f"v{i}" for i in scope], list(table.shape), np.exp(table)))
        assert float(outcome.log_z()[0]) == pytest.approx(math.log(network.get_partition_function()), abs=1e-8)
        oracle = BeliefPropagation(network)
        oracle.calibrate()
        for i, card in enumerate(cards):
            expected = oracle.query([f"v{i}"], show_progress=False).values
            assert outcome.belief[0, i, :card].exp().numpy() == pytest.approx(expected, abs=1e-8)
        found = dict(zip(itertools.chain(*graph.groups), itertools.chain(*(table[0] for table in outcome.pairs())), strict=True))
        for number, (scope, _) in itertools.islice(enumerate(graph.factors), 3):
            joint = oracle.query([f"v{i}" for i in scope], show_progress=False)
            order = [joint.variables.index(f"v{i}") for i in scope]
            assert found[number].numpy() == pytest.approx(joint.values.transpose(order), abs=1e-8)
