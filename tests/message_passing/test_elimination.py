"""Orders of elimination against a slow twin, and the most probable state of trees: the right one,
the same at every call, and in time that grows with the tree.
"""

import itertools
import random
import time

import networkx as nx
import numpy as np
import pytest
import torch

from bayesfed.inference import FactorGraph, infer
from bayesfed.models.random_fields import elimination
from bayesfed.models.random_fields.elimination import _Entries, _Fill, _Missing
from tests.message_passing.graphs import bipartite, by_tables, states


def price(kind, adjacency, cards, variable):
    """What an elimination costs, from nothing."""
    near = adjacency[variable]
    if kind is _Entries:
        return int(np.prod([cards[other] for other in near], initial=cards[variable], dtype=object))
    return sum(
        cards[one] * cards[two] if kind is _Fill else 1
        for one, two in itertools.combinations(near, 2)
        if two not in adjacency[one]
    )


def eliminate_slowly(start, cards, kind, limit):
    """The order in which costs are computed anew after every variable."""
    adjacency = [set(near) for near in start]
    gone, order = set(), []
    while len(gone) < len(cards):
        left = (one for one in range(len(cards)) if one not in gone)
        variable = min(left, key=lambda one: (price(kind, adjacency, cards, one), one))
        near = adjacency[variable]
        order.append((variable, near))
        gone.add(variable)
        for one in near:
            adjacency[one] = (adjacency[one] | near) - {one, variable}
    return order


@pytest.mark.parametrize("kind", [_Entries, _Fill, _Missing])
def test_costs_that_are_kept_are_those_computed_anew(kind):
    for seed in range(40):
        draw = random.Random(seed)
        count = draw.randint(1, 14)
        cards = [draw.randint(1, 4) for _ in range(count)]
        adjacency = [set() for _ in cards]
        for one, two in itertools.combinations(range(count), 2):
            if draw.random() < 0.3:
                adjacency[one].add(two)
                adjacency[two].add(one)
        found = elimination._eliminate(adjacency, cards, kind, 4**20)
        assert found == eliminate_slowly(adjacency, cards, kind, 4**20)


def tree(kind, count, card, ties=False):
    """A tree of variables with random tables, or with tables of a few equal values."""
    shape = {
        "star": nx.star_graph(count - 1),
        "path": nx.path_graph(count),
        "random": nx.random_labeled_tree(count, seed=1),
    }[kind]
    draw = np.random.default_rng(count)

    def table():
        size = (card, card)
        return draw.integers(0, 2, size).astype(float) if ties else draw.normal(size=size)

    factors = [(edge, {"factor": table()}) for edge in shape.edges]
    return bipartite(dict.fromkeys(range(count), card), factors)


@pytest.mark.parametrize("ties", [False, True], ids=["distinct", "ties"])
@pytest.mark.parametrize("card", [2, 3])
@pytest.mark.parametrize("kind", ["star", "path", "random"])
def test_the_most_probable_state_of_a_tree_is_that_of_all_states(kind, card, ties):
    graph = tree(kind, 7, card, ties)
    logs = by_tables(graph)
    read = FactorGraph.from_networkx(graph)
    state, log_probability = infer(read).most_probable
    best = states([card] * 7).index(tuple(state.tolist()))
    assert float(logs[best]) == pytest.approx(float(logs.max()), abs=1e-12)
    assert float(log_probability) == pytest.approx(float(logs.log_softmax(0).max()), abs=1e-10)
    for _ in range(2):
        again = infer(FactorGraph.from_networkx(tree(kind, 7, card, ties)))
        assert torch.equal(again.most_probable[0], state)


def seconds(count):
    graph = FactorGraph.from_networkx(tree("star", count, 3))
    result = infer(graph)
    start = time.perf_counter()
    _ = result.most_probable
    return time.perf_counter() - start


def test_the_most_probable_state_of_a_star_takes_no_cube_of_its_size():
    """Four times as many leaves took 64 times as long."""
    few, many = (min(seconds(count) for _ in range(3)) for count in (200, 800))
    assert many < 20 * few
