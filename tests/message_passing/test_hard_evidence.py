"""What was observed: three spellings of evidence with one meaning each, and graphs from which
known variables are taken out before they are summed, against sums over all states.
"""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
import torch

from bayesfed import Key
from bayesfed.errors import ArgumentError
from bayesfed.inference import FactorGraph, infer
from bayesfed.inference.sum_product.methods import conditioning
from bayesfed.inference.sum_product.methods.conditioning import (
    ConditionedSums,
    parts_of,
    sum_conditioned,
    whole_part,
)
from bayesfed.inference.sum_product.methods.junction import build, fitting_tree, sum_junction
from bayesfed.models.random_fields.grid import Grid, Link
from tests.message_passing.graphs import bipartite, by_model, states
from tests.message_passing.grids import normal
from tests.message_passing.table_graphs import (
    assert_agrees,
    enumerate_exactly,
    random_evidence,
    random_loops,
)

KEY = Key(0, "hard evidence")
pytestmark = pytest.mark.filterwarnings("ignore::bayesfed.errors.UnverifiedWarning")


def chain(forbids, names="ab"):
    """Bits in a row, whose tables have a zero or not."""
    table = [[0.4, -0.3], [0.1, -math.inf if forbids else 0.2]]
    pairs = itertools.pairwise(names)
    return FactorGraph.from_networkx(
        bipartite(dict.fromkeys(names, 2), [(pair, {"factor": table}) for pair in pairs])
    )


# One meaning


@pytest.mark.parametrize("names", ["ab", "abc"])
@pytest.mark.parametrize("forbids", [False, True], ids=["finite", "with a zero"])
def test_each_spelling_means_the_same_whether_or_not_a_table_has_a_zero(forbids, names):
    """Two variables in a batch of two are the shape that once meant either."""
    graph, odds = chain(forbids, names), 2 * normal(2, len(names))
    weights = by_model(graph)
    support = torch.tensor(states([2] * len(names)), dtype=torch.float64)
    logs = weights + odds @ support.T
    expected = logs.softmax(-1) @ support
    by_odds = infer(graph, odds)
    assert torch.allclose(by_odds.probabilities[..., 1], expected, atol=1e-10)
    assert torch.allclose(by_odds.log_z, logs.logsumexp(-1), atol=1e-10)
    both = torch.stack([torch.full_like(odds, 0.3), odds + 0.3], -1)
    by_weights = infer(graph, log_weights=both)
    assert torch.allclose(by_weights.probabilities[..., 1], expected, atol=1e-10)
    # Log weights weigh both states.
    assert torch.allclose(by_weights.log_z, by_odds.log_z + 0.3 * len(names), atol=1e-10)


@pytest.mark.parametrize("forbids", [False, True])
def test_the_other_spelling_is_named(forbids):
    graph = chain(forbids, "abc")
    with pytest.raises(ArgumentError, match="try log_weights= for the weights of both states"):
        infer(graph, torch.zeros(3, 2))
    with pytest.raises(ArgumentError, match="try evidence= for log-odds"):
        infer(graph, log_weights=torch.zeros(5, 3))
    with pytest.raises(ArgumentError, match="log weights or log-odds, found both"):
        infer(graph, torch.zeros(3), log_weights=torch.zeros(3, 2))
    with pytest.raises(ArgumentError, match="not all finite; try observed="):
        infer(graph, torch.full((3,), -math.inf))
    three = FactorGraph.from_networkx(bipartite({"a": 3}, [(("a",), {"table": [1, 2, 3]})]))
    with pytest.raises(ArgumentError, match=r"try log_weights= of shape \(\.\.\., 1, 3\)"):
        infer(three, torch.zeros(1, 3))
    with pytest.raises(ArgumentError, match="evidence: expected .*or observed="):
        infer(graph, {"a": 1})


@pytest.mark.parametrize("forbids", [False, True])
def test_log_weights_have_gradients(forbids):
    graph = chain(forbids, "abc")
    leaf = normal(3, 2).requires_grad_()
    result = infer(graph, log_weights=leaf)
    result.log_z.backward()
    assert torch.allclose(leaf.grad, result.probabilities.detach(), atol=1e-10)


# Every way of summing bits


def bits(kind):
    """A graph of nine bits, and the methods that serve it."""
    if kind == "forest":
        edges = nx.random_labeled_tree(9, seed=3).edges
    elif kind == "dense":
        edges = nx.complete_graph(9).edges
    else:
        edges = nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 3)).edges
    random = KEY.child(kind).numpy()
    graph = nx.Graph()
    graph.add_nodes_from((node, {"field": float(random.normal())}) for node in range(9))
    graph.add_edges_from((*edge, {"coupling": float(0.8 * random.normal())}) for edge in edges)
    return FactorGraph.pairwise(graph)


def even_grid():
    return FactorGraph(Grid((3, 3), Link(0.5), Link(0.3), 0.2))


@pytest.mark.parametrize(
    ("graph", "method", "within"),
    [
        (bits("forest"), "exact", 1e-9),
        (bits("dense"), "exact", 1e-9),
        (bits("grid"), "exact", 1e-9),
        (bits("grid").lower().ising(), "exact", 1e-9),
        (even_grid(), "strip", 1e-6),
        (even_grid(), "bp", 0.05),
        (bits("grid").lower().ising(), "bp", 0.05),
        (bits("grid").lower().ising(), "gbp", 0.05),
    ],
)
def test_bits_that_were_observed(graph, method, within):
    """One-hot marginals, log Z, pairs, extrinsic part, most probable state and draws are those of
    the states that agree with the observation.
    """
    model = graph if isinstance(graph, FactorGraph) else FactorGraph(graph)
    odds = normal(9)
    seen = {2: 1, 4: 0, 7: 1}
    result = infer(
        graph,
        odds.reshape(model.shape),
        observed=seen,
        method=method,
        strip_rows=3 if method == "strip" else 4,
        tol=1e-10,
    )
    support = torch.tensor(states([2] * 9))
    logs = by_model(model) + support.double() @ odds
    agrees = (support[:, list(seen)] == torch.tensor(list(seen.values()))).all(1)
    known = logs.where(agrees, -math.inf)
    found = result.marginals.flatten()
    assert torch.allclose(found, known.softmax(0) @ support.double(), atol=within)
    assert found[list(seen)].tolist() == [1.0, 0.0, 1.0]
    assert float(result.log_z) == pytest.approx(float(known.logsumexp(0)), abs=max(within, 1e-8))
    if method != "exact":
        return
    for variable in (2, 4, 5):
        others = [number for number in seen if number != variable]
        freed = logs - support[:, variable] * odds[variable]
        freed = freed.where(
            (support[:, others] == torch.tensor([seen[one] for one in others])).all(1), -math.inf
        )
        expected = freed[support[:, variable] == 1].logsumexp(0)
        expected = expected - freed[support[:, variable] == 0].logsumexp(0)
        assert float(result.extrinsic.flatten()[variable]) == pytest.approx(
            float(expected), abs=1e-8
        )
    state, log_probability = result.most_probable
    assert torch.equal(state.flatten(), support[known.argmax()])
    assert float(log_probability) == pytest.approx(float(known.log_softmax(0).max()), abs=1e-8)
    draws = result.sample(2000, KEY).flatten(1)
    assert (draws[:, list(seen)] == torch.tensor([1, 0, 1])).all()
    assert float((draws.double().mean(0) - found).abs().max()) < 4.5 * 0.5 / math.sqrt(2000)
    pairs = [table.reshape(-1, 2, 2) for table in result.pair_marginals]
    assert all(torch.allclose(part.sum((1, 2)), torch.ones(()).double()) for part in pairs)


def test_a_row_with_one_state_is_an_observation():
    """Whether it is a name, a row of log weights, or one entry of a batch."""
    graph = bits("dense")
    weights = torch.zeros(3, 9, 2, dtype=torch.float64)
    weights[0, 2, 0] = weights[1, 2, 0] = weights[1, 5, 1] = -math.inf
    batch = infer(graph, log_weights=weights)
    for entry, seen in enumerate([{2: 1}, {2: 1, 5: 0}, {}]):
        single = infer(graph, observed=seen)
        assert torch.allclose(batch.belief[entry], single.belief, atol=1e-10)
        assert torch.allclose(batch.log_z[entry], single.log_z, atol=1e-10)
    assert batch.belief[1, 2] == math.inf
    assert batch.belief[1, 5] == -math.inf


# What is left of a graph


def observe(generator, graph, planted, evidence):
    """Fix some variables in each entry: in two of them the same ones, in different states or in
    all.
    """
    for entry in range(len(evidence)):
        count = int(generator.integers(0, 5))
        for variable in generator.choice(len(graph.cards), count, replace=False):
            weight = float(evidence[entry, variable, planted[variable]])
            evidence[entry, variable] = -math.inf
            evidence[entry, variable, planted[variable]] = weight
    return evidence


def alone(part):
    """Clique trees of entries that have the same possible states only."""
    same = bool((part.possible == part.possible[:1]).all())
    return conditioning.fitting(part) if same else None


@pytest.mark.parametrize("zeros", [0.0, 0.3, 0.5])
@pytest.mark.parametrize("fits", [conditioning.fitting, alone], ids=["together", "apart"])
def test_what_is_left_has_the_sums_of_the_whole(zeros, fits):
    """Beliefs, extrinsic parts, pairs, log Z, most probable states and draws equal those of the
    graph from which nothing was taken, and those of all states.
    """
    for seed in range(8):
        generator = np.random.default_rng(seed)
        graph, planted = random_loops(generator, zeros, scale=2.0)
        model = graph.lower()
        evidence = random_evidence(generator, graph, planted, batch=3, zeros=zeros)
        evidence = observe(generator, graph, planted, evidence)
        parts = parts_of(whole_part(model, evidence), fits)
        left, whole = (
            sum_conditioned(model, evidence, parts),
            sum_junction(model, evidence, fitting_tree(model, 3)),
        )
        for entry in range(3):
            exact = enumerate_exactly(graph, evidence[entry].numpy())
            assert_agrees(graph, left, entry, *exact, within=1e-10)
        extrinsic = left.extrinsic if left.later is None else left.later()
        assert torch.allclose(extrinsic.exp(), whole.extrinsic.exp(), atol=1e-10)
        sums = ConditionedSums(model, evidence, parts)
        twin, _ = build(model, evidence, fitting_tree(model, 3))
        assert torch.allclose(sums.most_probable()[1], twin.most_probable()[1], atol=1e-10)
        draws = sums.sample(2000, KEY.generator())
        for variable, card in enumerate(graph.cards):
            shares = torch.nn.functional.one_hot(draws[..., variable], card).double().mean(0)
            expected = left.belief[:, variable, :card].exp()
            assert float((shares - expected).abs().max()) < 4.5 * 0.5 / math.sqrt(2000)


def dense(count, forbids):
    """A complete graph, as bits with couplings or as tables of which one has a zero."""
    random = KEY.child("dense").numpy()
    graph = nx.complete_graph(count)
    couplings = {edge: float(0.3 * random.normal()) for edge in graph.edges}
    if not forbids:
        nx.set_edge_attributes(graph, couplings, "coupling")
        return FactorGraph.pairwise(graph), couplings
    factors = [(edge, {"factor": [[0.0, 0.0], [0.0, value]]}) for edge, value in couplings.items()]
    factors.append(((0, 1), {"factor": [[0.0, 0.0], [0.0, -math.inf]]}))
    return FactorGraph.from_networkx(bipartite(dict.fromkeys(range(count), 2), factors)), couplings


@pytest.mark.parametrize("forbids", [False, True], ids=["bits", "tables"])
def test_the_price_is_that_of_what_is_left(forbids):
    """The table of thirty bits has 2^30 entries; with twenty of them known it has 2^10."""
    graph, couplings = dense(30, forbids)
    seen = {variable: variable % 2 for variable in range(2, 22)}
    with pytest.raises(ArgumentError, match="one of 1.1e"):
        infer(graph, method="exact")
    words = "one of 2.7e.*, after 2 variables whose state is known were taken out"
    with pytest.raises(ArgumentError, match=words):
        infer(graph, observed={2: 0, 3: 1}, method="exact")
    for method in ("auto", "exact"):
        result = infer(graph, observed=seen, method=method)
        assert result.trust == "exact"
    free = [variable for variable in range(30) if variable not in seen]
    support = torch.zeros(2**10, 30, dtype=torch.float64)
    support[:, free] = torch.tensor(states([2] * 10), dtype=torch.float64)
    support[:, list(seen)] = torch.tensor(list(seen.values()), dtype=torch.float64)
    coupling = torch.zeros(30, 30, dtype=torch.float64)
    for (one, two), value in couplings.items():
        coupling[one, two] = value
    logs = torch.einsum("si,ij,sj->s", support, coupling, support)
    if forbids:
        logs = logs.where(support[:, 0] * support[:, 1] == 0, -math.inf)
    assert torch.allclose(result.probabilities[:, 1], logs.softmax(0) @ support, atol=1e-10)
    assert float(result.log_z) == pytest.approx(float(logs.logsumexp(0)), abs=1e-9)
    state, log_probability = result.most_probable
    assert torch.equal(state, support[logs.argmax()].long())
    assert float(log_probability) == pytest.approx(float(logs.log_softmax(0).max()), abs=1e-9)
    assert (result.sample(50, KEY)[:, list(seen)] == torch.tensor(list(seen.values()))).all()
    # What others say about a bit that was observed: the sums with that bit free.
    freed = infer(graph, observed={one: seen[one] for one in seen if one != 5})
    expected = freed.probabilities[5].log()
    extrinsic = result.extrinsic[5]
    if forbids:
        assert torch.allclose(extrinsic, expected, atol=1e-10)
    else:
        assert float(extrinsic) == pytest.approx(float(expected[1] - expected[0]), abs=1e-10)


def test_a_batch_of_different_observations_is_summed_apart():
    graph, _ = dense(26, False)
    weights = torch.zeros(2, 26, 2, dtype=torch.float64)
    weights[0, :16, 1] = weights[1, 10:, 0] = -math.inf
    batch = infer(graph, log_weights=weights)
    assert batch.trust == "exact"
    for entry, seen in enumerate([dict.fromkeys(range(16), 0), dict.fromkeys(range(10, 26), 1)]):
        single = infer(graph, observed=seen)
        assert torch.allclose(batch.belief[entry], single.belief, atol=1e-10)
        assert torch.allclose(batch.log_z[entry], single.log_z, atol=1e-10)
        assert torch.allclose(batch.pair_marginals[0][entry], single.pair_marginals[0], atol=1e-10)


def test_zeros_of_tables_fix_variables():
    """Copies of observed bits are known without being observed, and what depends on one state of a
    table only is no factor of the others.
    """
    random, count = KEY.child("copies").numpy(), 13
    factors = [
        (edge, {"factor": 0.3 * random.normal(size=(2, 2))})
        for edge in itertools.combinations(range(count, 2 * count), 2)
    ]
    factors += [((one, count + one), {"table": [[1.0, 0.0], [0.0, 1.0]]}) for one in range(count)]
    # A second copy of all: 2^26 entries, unless the first one is known.
    factors += [
        ((2 * count + one, 2 * count + two), {"factor": 0.3 * random.normal(size=(2, 2))})
        for one, two in itertools.combinations(range(count), 2)
    ]
    factors += [
        ((count + one, 2 * count + two), {"factor": 0.1 * random.normal(size=(2, 2))})
        for one, two in itertools.product(range(count), repeat=2)
    ]
    graph = FactorGraph.from_networkx(bipartite(dict.fromkeys(range(3 * count), 2), factors))
    with pytest.raises(ArgumentError, match="junction tree"):
        infer(graph, method="exact")
    result = infer(graph, observed=dict.fromkeys(range(count), 1))
    assert result.trust == "exact"
    assert result.probabilities[count : 2 * count, 1].tolist() == [1.0] * count
    assert 0 < float(result.probabilities[2 * count :].min()) < 0.5


def test_pairs_of_a_table_that_says_nothing(monkeypatch):
    """A table that is constant where the evidence leaves something is no edge of the tree; its
    joint probabilities are those of all states, in one tree, or in one for each such table.
    """
    factors = [(pair, {"factor": normal(3, 3, name="".join(pair))}) for pair in ("ad", "bd", "cd")]
    silent = torch.zeros(3, 3, dtype=torch.float64)
    silent[2] = -1.0
    factors += [(pair, {"factor": silent}) for pair in ("ab", "bc", "ca")]
    factors = [(tuple(scope), data) for scope, data in factors]
    graph = FactorGraph.from_networkx(bipartite(dict.fromkeys("adbc", 3), factors))
    weights = torch.zeros(4, 3, dtype=torch.float64)
    weights[[0, 2, 3], 2] = -math.inf
    exact = infer(graph, log_weights=weights)
    part = whole_part(graph.model, weights[None])
    assert {len(factor.scope) for factor in part.cut.factors} == {2}
    assert len(part.cut.factors) == 3
    for limit in (2**24, 12):
        monkeypatch.setattr(conditioning, "LARGEST", limit)
        found = sum_conditioned(graph.model, weights[None], parts_of(part, conditioning.fitting))
        for one, two in zip(found.pairs(), exact.pair_marginals, strict=True):
            assert torch.allclose(one[0], two, atol=1e-12)
    monkeypatch.setattr(conditioning, "LARGEST", 6)
    left = sum_conditioned(graph.model, weights[None], parts_of(part, conditioning.fitting))
    with pytest.raises(ArgumentError, match="try the marginals of single variables"):
        left.pairs()


# 31 cells are given, and 33 ways to fill the others are left.
SUDOKU = """
000100009
100209005
000060000
000032094
032090050
790051832
008000006
020900508
040000027
"""


def different(size, block):
    """Cells of a Latin square with blocks, and the tables that keep them apart."""
    cells = list(itertools.product(range(size), repeat=2))
    apart = [
        (one, two)
        for one, two in itertools.combinations(cells, 2)
        if one[0] == two[0]
        or one[1] == two[1]
        or [side // block for side in one] == [side // block for side in two]
    ]
    table = {"table": 1 - np.eye(size)}
    return FactorGraph.from_networkx(
        bipartite(dict.fromkeys(cells, size), [(pair, table) for pair in apart])
    )


def solutions(size, block, board):
    """All ways to fill a board, by search."""
    empty = [cell for cell, value in board.items() if value is None]
    if not empty:
        return [dict(board)]

    def fits(cell):
        return [
            value
            for value in range(size)
            if all(
                other != value
                for (row, column), other in board.items()
                if row == cell[0]
                or column == cell[1]
                or (row // block, column // block) == (cell[0] // block, cell[1] // block)
            )
        ]

    options = {cell: fits(cell) for cell in empty}
    cell = min(empty, key=lambda one: len(options[one]))
    return list(
        itertools.chain(
            *(solutions(size, block, {**board, cell: value}) for value in options[cell])
        )
    )


def test_a_sudoku_is_the_mean_of_its_solutions():
    graph, lines = different(9, 3), SUDOKU.split()
    board = {(row, column): int(lines[row][column]) - 1 for row, column in graph.variables}
    given = {cell: value for cell, value in board.items() if value >= 0}
    filled = solutions(9, 3, {cell: given.get(cell) for cell in board})
    assert (len(given), len(filled)) == (31, 33)
    result = infer(graph, observed=given)
    values = torch.tensor([[one[cell] for cell in board] for one in filled])
    expected = torch.nn.functional.one_hot(values, 9).double().mean(0)
    assert result.trust == "exact"
    assert torch.allclose(result.marginals, expected, atol=1e-12)
    assert float(result.log_z) == pytest.approx(math.log(33), abs=1e-10)
    assert float(result.most_probable[1]) == pytest.approx(-math.log(33), abs=1e-10)
    draws = {tuple(state) for state in result.sample(500, KEY).tolist()}
    assert draws == {tuple(state) for state in values.tolist()}


def test_regions_say_what_others_say_of_a_variable_that_was_observed():
    """A region of all variables is exact, in its extrinsic part too."""
    for seed in range(4):
        generator = np.random.default_rng(seed)
        graph, planted = random_loops(generator, zeros=0.3)
        model = graph.lower()
        evidence = random_evidence(generator, graph, planted, batch=2, zeros=0.3)
        evidence = observe(generator, graph, planted, evidence)
        exact = infer(model, log_weights=evidence)
        whole = infer(model, log_weights=evidence, method="gbp", regions=[range(7)])
        assert torch.allclose(whole.extrinsic.exp(), exact.extrinsic.exp(), atol=1e-9)


# What cannot be


@pytest.mark.parametrize("method", ["auto", "exact", "bp", "gbp"])
def test_what_is_impossible_is_refused(method):
    words = "possible.* contradict"
    square = different(4, 2)
    twice = {(0, 0): 1, (0, 3): 1}
    # Neither of two neighbours may be 1 where the first has to be.
    with pytest.raises(ArgumentError, match=words):
        infer(square, observed=twice, method=method)
    graph = bits("dense")
    weights = torch.zeros(9, 2, dtype=torch.float64)
    weights[3, 0] = -math.inf
    with pytest.raises(ArgumentError, match=words):
        infer(graph, log_weights=weights, observed={3: 0}, method=method)
    batch = torch.zeros(2, 3, 2, dtype=torch.float64)
    batch[1, :2, 0] = -math.inf
    with pytest.raises(ArgumentError, match="entry 1"):
        infer(chain(True, "abc"), log_weights=batch, method=method)


def test_contradictions_that_no_single_table_shows():
    """Three cells in a row of a square that may only be 0 or 1."""
    weights = torch.zeros(81, 9, dtype=torch.float64)
    weights[:3, 2:] = -math.inf
    with pytest.raises(ArgumentError, match="a state of all variables that is possible"):
        infer(different(9, 3), log_weights=weights, method="exact")


@pytest.mark.parametrize(
    ("observed", "words"),
    [
        ({"c": 1}, r"infer observed: expected a variable of the graph, one of 'a', 'b', found 'c'"),
        ({"A": 1}, "found 'A'; try 'a'"),
        ({0: 1}, "found 0"),
        ({"a": 2}, r"infer observed\['a'\]: expected a state, a whole number from 0 to 1, found 2"),
        ({"a": -1}, "found -1"),
        ({"a": 0.5}, "observed.*found"),
        ({"a": "yes"}, "observed.*found"),
        ([1, 0], "infer, observed"),
    ],
)
@pytest.mark.parametrize("forbids", [False, True])
def test_names_and_states_that_do_not_exist(observed, words, forbids):
    with pytest.raises(ArgumentError, match=words):
        infer(chain(forbids), observed=observed)


def test_variables_of_grids_have_numbers_and_places():
    grid = FactorGraph.grid((3, 4), 0.6, 0.6)
    by_number, by_place = infer(grid, observed={6: 1}), infer(grid, observed={(1, 2): 1})
    assert torch.equal(by_number.belief, by_place.belief)
    assert by_place.belief[1, 2] == math.inf
    with pytest.raises(ArgumentError, match=r"found \(3, 0\)"):
        infer(grid, observed={(3, 0): 1})
