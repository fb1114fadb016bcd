"""Graphs with cycles that others use, and their exact marginals by pgmpy's variable elimination.

The networks are those of pgmpy (bnlearn's), without evidence and with a fifth of the variables
observed as one joint draw has them. pgmpy eliminates on the same tables: some networks'
tables are rounded and sum to 1 only to 1e-8, and its elimination on the Bayesian network leaves out
what would sum to 1.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

import networkx as nx
import numpy as np
import opt_einsum
import torch
from numpy.typing import NDArray
from torch import Tensor

import bayesfed as bf
from bayesfed.inference import FactorGraph, Tables, infer
from bayesfed.inference.sum_product.methods.structure import (
    as_flat,
    log_tables,
    structure,
    unary_weights,
)

NAMES = ("alarm", "asia", "cancer", "earthquake", "survey", "sachs", "child", "insurance")
# Their cliques are too large for "auto".
WIDE = ("water", "pigs", "mildew", "barley")
KEY = bf.Key(0, "networks")


@dataclass(frozen=True)
class Case:
    """A graph, evidence for it, and how many variables are observed."""

    name: str
    graph: FactorGraph
    evidence: Tensor | None = None
    observed: int = 0


Factors = list[tuple[tuple[str, ...], NDArray[np.float64]]]


@cache
def tables(name: str) -> tuple[dict[str, int], Factors]:
    """Return the variables of one of pgmpy's networks, each with its number of states, and its
    tables with their variables.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from pgmpy.utils import get_example_model

        model = get_example_model(name)
    factors = [given.to_factor() for given in model.cpds]
    cards = {variable: int(model.get_cardinality(variable)) for variable in model.nodes()}
    return cards, [(tuple(factor.variables), factor.values) for factor in factors]


def network(name: str) -> FactorGraph:
    """Return one of pgmpy's networks as a factor graph; its variables are in pgmpy's order."""
    cards, factors = tables(name)
    graph: nx.Graph[Any] = nx.Graph()
    for variable, card in cards.items():
        graph.add_node(variable, type="variable", card=card)
    for number, (scope, table) in enumerate(factors):
        graph.add_node(number, type="factor", scope=scope, table=table)
        graph.add_edges_from((number, variable) for variable in scope)
    return FactorGraph.from_networkx(graph)


def by_einsum(name: str, evidence: Tensor | None) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield eight variables of one of pgmpy's networks, each with its marginal: one contraction of
    all tables, by opt_einsum.
    """
    cards, factors = tables(name)
    place = {variable: number for number, variable in enumerate(cards)}
    operands = list[Any]()
    for scope, table in factors:
        operands += [table, [place[one] for one in scope]]
    for number, weights in enumerate([] if evidence is None else evidence.exp().numpy()):
        operands += [weights[: list(cards.values())[number]], [number]]
    for variable in range(0, len(cards), len(cards) // 8):
        found = opt_einsum.contract(*operands, [variable], optimize="greedy")
        yield variable, np.asarray(found / found.sum())


def observe(graph: FactorGraph, share: float = 0.2) -> tuple[Tensor, int]:
    """Return log weights ``(n, C)`` in which a share of the variables has the state of a joint
    draw, and how many that is.
    """
    found = infer(graph, method="exact")
    state = found.sample(1, KEY.child("state"))[0]
    count = len(graph.variables)
    evidence = torch.zeros(found.probabilities.shape, dtype=torch.float64)
    chosen = torch.randperm(count, generator=KEY.child("observed").generator())[
        : max(1, int(share * count))
    ]
    evidence[chosen] = -math.inf
    evidence[chosen, state[chosen]] = 0.0
    return evidence, len(chosen)


def by_pgmpy(
    graph: FactorGraph, evidence: Tensor | None
) -> tuple[list[NDArray[np.float64]], float]:
    """Return the marginals of all variables by pgmpy's variable elimination, a query for each, and
    the time in ms.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        from pgmpy.factors.discrete import DiscreteFactor
        from pgmpy.inference import VariableElimination
        from pgmpy.models import DiscreteMarkovNetwork
    logging.getLogger("pgmpy").setLevel(logging.ERROR)
    flat = as_flat(graph.model)
    cards, scopes = structure(flat)
    count, cpu = len(cards), torch.device("cpu")
    shape = flat.unary.shape if isinstance(flat, Tables) else flat.field.shape
    _, own = unary_weights(flat, torch.zeros(1, *shape))
    model = DiscreteMarkovNetwork()
    model.add_nodes_from(range(count))
    factors = [([i], weights[0]) for i, weights in enumerate(own)]
    factors += list(zip(map(list, scopes), log_tables(flat, cpu), strict=True))
    for scope, logs in factors:
        model.add_edges_from(combinations(scope, 2))
        model.add_factors(
            DiscreteFactor(scope, [cards[i] for i in scope], logs.double().exp().numpy())
        )
    known = (
        {}
        if evidence is None
        else {
            i: int(row.argmax())
            for i, row in enumerate(evidence)
            if bool(torch.isneginf(row).any())
        }
    )
    elimination, start = VariableElimination(model), time.perf_counter()
    marginals = [
        np.eye(card)[known[i]]
        if i in known
        else elimination.query([i], evidence=known, show_progress=False).values
        for i, card in enumerate(cards)
    ]
    milliseconds = 1e3 * (time.perf_counter() - start)
    # It does not normalise what it sums in a Markov network.
    return [values / values.sum() for values in marginals], milliseconds


def potts(side: int, states: int, coupling: float) -> FactorGraph:
    """Return a square Potts model: neighbours in the same state gain `coupling`; fields are
    standard normal.
    """
    random = KEY.child("potts").numpy()
    graph: nx.Graph[Any] = nx.Graph()
    for place in product(range(side), repeat=2):
        graph.add_node(place, type="variable", card=states)
        graph.add_node(
            ("field", place), type="factor", scope=(place,), factor=random.normal(size=states)
        )
        graph.add_edge(("field", place), place)
    for ends in nx.grid_2d_graph(side, side).edges:
        graph.add_node(ends, type="factor", scope=ends, factor=coupling * np.eye(states))
        graph.add_edges_from((ends, end) for end in ends)
    return FactorGraph.from_networkx(graph)


def machine(visible: int, hidden: int, scale: float) -> FactorGraph:
    """Return a restricted Boltzmann machine with normal couplings and fields of that standard
    deviation.
    """
    random = KEY.child("machine").numpy()
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(range(visible + hidden))
    nx.set_node_attributes(graph, {node: float(scale * random.normal()) for node in graph}, "field")
    graph.add_edges_from(
        (i, visible + j, {"coupling": float(scale * random.normal())})
        for i in range(visible)
        for j in range(hidden)
    )
    return FactorGraph.pairwise(graph)


def glass(side: int, scale: float = 1.0) -> FactorGraph:
    """Return a square spin glass: normal couplings J of that standard deviation between spins, and
    weak normal fields.
    """
    random = KEY.child("glass").numpy()
    graph: nx.Graph[Any] = nx.grid_2d_graph(side, side)
    nx.set_edge_attributes(
        graph, {edge: float(4 * scale * random.normal()) for edge in graph.edges}, "coupling"
    )
    # Half of each coupling is taken from its ends: a spin model has no field of its own.
    pull = {
        node: 0.4 * float(random.normal())
        - sum(data["coupling"] for *_, data in graph.edges(node, data=True)) / 2
        for node in graph
    }
    nx.set_node_attributes(graph, pull, "field")
    return FactorGraph.pairwise(graph)


def forced(scopes: Sequence[str], tables: Sequence[Any]) -> FactorGraph:
    """Return a graph of bits, one a letter, with tables of weights."""
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(sorted(set("".join(scopes))), type="variable")
    for scope, weights in zip(scopes, tables, strict=True):
        graph.add_node(("factor", scope), type="factor", scope=tuple(scope), table=weights)
        graph.add_edges_from((("factor", scope), end) for end in scope)
    return FactorGraph.from_networkx(graph)


def cases() -> Iterator[Case]:
    """Yield the graphs."""
    for name in NAMES:
        graph = network(name)
        yield Case(name, graph)
        yield Case(name, graph, *observe(graph))
    yield Case("Potts 5 x 5, 3 states, J 1.2", potts(5, 3, 1.2))
    for count in (9, 10):
        yield Case(
            f"K{count}, coupling 1.2",
            FactorGraph.pairwise(
                nx.complete_graph(count), coupling=1.2, field=-0.6 * (count - 1) + 0.02
            ),
        )
    yield Case("RBM 20 x 10, sd 1", machine(20, 10, 1.0))
    yield Case("spin glass 8 x 8", glass(8))
    # a + b + c, a + b + d and c + d + e are even, so e is 0; no single table says so, and e's own
    # weights say 1.
    even = [[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]]
    yield Case(
        "three exclusive ors", forced(["abc", "abd", "cde", "e"], [even, even, even, [0.14, 0.86]])
    )
