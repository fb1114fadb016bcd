"""Factor graphs of tables for tests of their kernel: drawn, summed over every state, and flooded by
a slow twin.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from bayesfed.inference.sum_product.graphs.flat import TableGroup, Tables
from bayesfed.inference.sum_product.methods.outcome import Settings

TIGHT = Settings(tol=1e-11, max_sweeps=3000)


@dataclass
class Graph:
    """A factor graph as people write it: cardinalities, unary log weights, and (scope, log table)
    pairs.
    """

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
            which = [
                distinct.setdefault(
                    self.factors[f][1].tobytes(), (len(distinct), self.factors[f][1])
                )[0]
                for f in numbers
            ]
            tables = torch.from_numpy(np.stack([table for _, table in distinct.values()]))
            groups.append(
                TableGroup(
                    tables, torch.tensor(which), torch.tensor([self.factors[f][0] for f in numbers])
                )
            )
        return Tables(torch.tensor(self.cards), unary, tuple(groups))


def random_graph(generator, cards, scopes, zeros=0.0, scale=1.0):
    """Draw tables from a small pool for each shape; with zeros, one planted assignment stays
    possible.
    """
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
    return Graph(
        list(cards),
        [draw((card,), (state,)) for card, state in zip(cards, planted, strict=True)],
        factors,
    ), planted


def random_forest(generator, variables, zeros=0.0):
    """Grow trees of factors of arity 2 to 4, several of them, and some variables without
    factors.
    """
    cards = [int(c) for c in generator.integers(1, 4, variables)]
    scopes, grown = [], 1
    while grown < variables - 1:
        arity = int(min(generator.integers(2, 5), variables - grown + 1))
        scope = [int(generator.integers(grown)), *range(grown, grown + arity - 1)]
        scopes.append(tuple(int(i) for i in generator.permutation(scope)))
        # Now and then a variable is skipped: the next factor may start at it, and if none does it
        # stays alone.
        grown += arity - 1 + int(generator.random() < 0.3)
    return random_graph(generator, cards, scopes, zeros)


def random_loops(generator, zeros=0.0, scale=0.5):
    cards = [int(c) for c in generator.integers(2, 4, 7)]
    scopes = [
        tuple(int(i) for i in generator.choice(7, int(generator.integers(2, 5)), replace=False))
        for _ in range(8)
    ]
    return random_graph(generator, cards, scopes, zeros, scale)


def random_evidence(generator, graph, planted, batch=3, zeros=0.0):
    evidence = generator.normal(size=(batch, len(graph.cards), max(graph.cards)))
    evidence[generator.random(evidence.shape) < zeros] = -np.inf
    evidence[:, np.arange(len(planted)), planted] = generator.normal(size=(batch, len(planted)))
    return torch.from_numpy(evidence)


def enumerate_exactly(graph, evidence):
    """Return marginals (n lists), factor marginals and log Z of one batch entry by summing over all
    assignments.
    """
    total = np.zeros(graph.cards)
    for i, weights in enumerate(graph.unary):
        total = total + (weights + evidence[i, : graph.cards[i]]).reshape(
            [-1 if j == i else 1 for j in range(len(graph.cards))]
        )
    for scope, table in graph.factors:
        order = np.argsort(scope)
        total = total + table.transpose(order).reshape(
            [card if j in scope else 1 for j, card in enumerate(graph.cards)]
        )
    peak = total.max()
    weights = np.exp(total - peak)
    weights, log_z = weights / weights.sum(), peak + math.log(weights.sum())

    def marginal(scope):
        kept = weights.sum(tuple(j for j in range(len(graph.cards)) if j not in scope))
        return kept.transpose(np.argsort(np.argsort(scope)))

    return (
        [marginal((i,)) for i in range(len(graph.cards))],
        [marginal(scope) for scope, _ in graph.factors],
        log_z,
    )


def flood(graph, evidence, damping=0.5, rounds=2000):
    """Return what plain damped flooding settles at: marginals, factor marginals, Bethe log Z and
    the last change.
    """
    fields = [weights + evidence[i, : graph.cards[i]] for i, weights in enumerate(graph.unary)]
    messages = {
        (f, k): np.zeros(graph.cards[i])
        for f, (scope, _) in enumerate(graph.factors)
        for k, i in enumerate(scope)
    }
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
                table = table + cavity(f, k).reshape(
                    [-1 if j == k else 1 for j in range(len(scope))]
                )
        return table

    for _ in range(rounds):
        fresh = {}
        for (f, k), old in messages.items():
            table = joint(f, without=k)
            sums = np.maximum(
                np.logaddexp.reduce(table, axis=tuple(j for j in range(table.ndim) if j != k)), -700
            )
            fresh[f, k] = damping * old + (1 - damping) * (sums - sums.max())
        change = max(float(np.abs(fresh[edge] - messages[edge]).max()) for edge in messages)
        messages = fresh
    beliefs = [fields[i] + sum(messages[edge] for edge in on[i]) for i in range(len(fields))]
    log_z = sum((1 - len(on[i])) * np.logaddexp.reduce(belief) for i, belief in enumerate(beliefs))
    log_z += sum(np.logaddexp.reduce(joint(f), axis=None) for f in range(len(graph.factors)))
    pairs = [
        np.exp(joint(f) - np.logaddexp.reduce(joint(f), axis=None))
        for f in range(len(graph.factors))
    ]
    return (
        [np.exp(belief - np.logaddexp.reduce(belief)) for belief in beliefs],
        pairs,
        log_z,
        change,
    )


def assert_agrees(graph, outcome, entry, marginals, pairs, log_z, within):
    assert float(outcome.log_z()[entry]) == pytest.approx(log_z, abs=within, rel=within)
    for i, expected in enumerate(marginals):
        found = outcome.belief[entry, i].exp().numpy()
        assert found[: len(expected)] == pytest.approx(expected, abs=within)
        assert not found[len(expected) :].any()
    found = outcome.pairs()
    assert [tuple(table.shape) for table in found] == [
        (len(outcome.belief), len(numbers), *graph.factors[numbers[0]][1].shape)
        for numbers in graph.groups
    ]
    for group, numbers in zip(found, graph.groups, strict=True):
        for place, number in enumerate(numbers):
            assert group[entry, place].numpy() == pytest.approx(pairs[number], abs=within)
