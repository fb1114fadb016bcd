"""Graphs too large to be summed whole, with some of their variables observed; what gbp refuses
before it starts; and how long the most probable state of a tree takes.

    python benchmarks/message_passing.py --only observed [--check]

munin1 has 186 variables, and its largest table 7.8e+07 entries. Some of its nodes are seen in the
state of a draw from the network; marginals are held against an elimination of the slices of
pgmpy's tables that agree with what was seen. The sudoku has 31 cells given and 33 solutions, found
by search. Low-density parity checks of 24 bits, a noisy-or network of 18 causes and 30 findings,
and the sudoku are graphs whose regions overlap in so many ways that a run of gbp takes minutes.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
import opt_einsum
from numpy.typing import NDArray
from parts.message_passing.networks import KEY, network, tables
from parts.shared.targets import at_least, target, tiny

from bayesfed.errors import ArgumentError
from bayesfed.inference import FactorGraph, infer
from bayesfed.inspect import table

SEEN, LEAVES, SIDE = 20, (801, 1601), 9
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
Cell = tuple[int, ...]


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    yield from _munin(2 if options.check else 5)
    yield from _sudoku()
    yield from _refusals()
    yield from _most_probable(3 if options.check else 9)


def draw(name: str, generator: np.random.Generator) -> dict[str, int]:
    """Return a state of all variables of one of pgmpy's networks, parents first."""
    _, factors = tables(name)
    state, waiting = dict[str, int](), list(factors)
    while waiting:
        left = []
        for scope, weights in waiting:
            child, *parents = scope
            if all(parent in state for parent in parents):
                chosen: Any = (slice(None), *(state[parent] for parent in parents))
                row = weights[chosen]
                state[child] = int(generator.choice(len(row), p=row / row.sum()))
            else:
                left.append((scope, weights))
        waiting = left
    return state


def _by_elimination(
    name: str, observed: Mapping[str, int], count: int = 3
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """Yield some variables of one of pgmpy's networks that were not observed, each with its
    marginal: the others are summed out one by one, that with the smallest table first, of the
    slices of all tables that agree with what was seen.
    """
    cards, factors = tables(name)
    place = {variable: number for number, variable in enumerate(cards)}
    slices = list[tuple[tuple[str, ...], NDArray[np.float64]]]()
    for scope, weights in factors:
        chosen: Any = tuple(observed.get(one, slice(None)) for one in scope)
        slices.append((tuple(one for one in scope if one not in observed), weights[chosen]))
    free = [variable for variable in cards if variable not in observed]

    def joined(variable: str, left: Sequence[tuple[tuple[str, ...], Any]]) -> tuple[str, ...]:
        names = {one: None for scope, _ in left if variable in scope for one in scope}
        return tuple(one for one in names if one != variable)

    def entries(variable: str, left: Sequence[tuple[tuple[str, ...], Any]]) -> int:
        return cards[variable] * math.prod(cards[one] for one in joined(variable, left))

    for query in free[:: len(free) // count]:
        left, waiting = list(slices), set(free) - {query}
        while waiting:
            variable = min(sorted(waiting), key=lambda one: entries(one, left))
            waiting.discard(variable)
            scope = joined(variable, left)
            operands = list[Any]()
            for names, weights in left:
                if variable in names:
                    operands += [weights, [place[one] for one in names]]
            summed = opt_einsum.contract(*operands, [place[one] for one in scope])
            left = [(names, weights) for names, weights in left if variable not in names]
            left.append((scope, np.asarray(summed / summed.max())))
        marginal = np.ones(cards[query])
        for names, weights in left:
            marginal = marginal * weights if names else marginal
        yield place[query], marginal / marginal.sum()


def _munin(draws: int) -> Iterator[bool]:
    graph = network("munin1")
    rows, errors = list[list[str | float | int]](), list[float]()
    approximate = 0
    for number in range(draws):
        generator = KEY.child("munin", number).numpy()
        state = draw("munin1", generator)
        names = generator.choice(list(state), SEEN, replace=False).tolist()
        observed = {name: state[name] for name in names}
        start = time.perf_counter()
        result = infer(graph, observed=observed, warn=False)
        seconds = time.perf_counter() - start
        approximate += result.trust != "exact"
        errors.append(
            max(
                float(np.abs(result.marginals[at, : len(row)].numpy() - row).max())
                for at, row in _by_elimination("munin1", observed)
            )
        )
        loopy = infer(graph, observed=observed, method="bp", warn=False)
        gap = float((loopy.marginals - result.marginals).abs().max())
        rows.append([number, result.method, f"{errors[-1]:.1e}", f"{seconds:.2f}", f"{gap:.3f}"])
    print(table(("draw", "method", "error", "s", "bp: error"), rows))
    yield target(f"munin1 with {SEEN} nodes seen, not exact", float(approximate), 0.0)
    yield tiny(f"munin1 with {SEEN} nodes seen, worst error", max(errors), 1e-10)


def sudoku() -> tuple[FactorGraph, dict[Hashable, int]]:
    """Return the cells with the tables that keep them apart, and the digits given, from 0."""
    lines = SUDOKU.split()
    cells = list(itertools.product(range(SIDE), repeat=2))
    graph: nx.Graph[Any] = nx.Graph()
    for cell in cells:
        graph.add_node(cell, type="variable", card=SIDE)
    for pair in itertools.combinations(cells, 2):
        if _together(*pair):
            graph.add_node(pair, type="factor", scope=pair, table=1 - np.eye(SIDE))
            graph.add_edges_from((pair, cell) for cell in pair)
    given = {cell: int(lines[cell[0]][cell[1]]) - 1 for cell in cells}
    return FactorGraph.from_networkx(graph), {
        cell: digit for cell, digit in given.items() if digit >= 0
    }


def _together(one: Cell, two: Cell) -> bool:
    """Return whether two cells are in a row, a column or a block."""
    blocks = [(row // 3, column // 3) for row, column in (one, two)]
    return one[0] == two[0] or one[1] == two[1] or blocks[0] == blocks[1]


def solutions(given: Mapping[Any, int]) -> list[dict[Any, int]]:
    """Return all ways to fill the other cells."""
    options = {
        cell: set(range(SIDE)) - {digit for other, digit in given.items() if _together(cell, other)}
        for cell in itertools.product(range(SIDE), repeat=2)
        if cell not in given
    }
    if not options:
        return [dict(given)]
    cell = min(options, key=lambda one: len(options[one]))
    filled = (solutions({**given, cell: digit}) for digit in sorted(options[cell]))
    return list(itertools.chain(*filled))


def _sudoku() -> Iterator[bool]:
    graph, given = sudoku()
    filled = solutions(given)
    truth = np.zeros((SIDE**2, SIDE))
    for solution in filled:
        for place, cell in enumerate(graph.variables):
            truth[place, solution[cell]] += 1 / len(filled)
    start = time.perf_counter()
    result = infer(graph, observed=given, warn=False)
    seconds = time.perf_counter() - start
    loopy = infer(graph, observed=given, method="bp", warn=False)
    name = f"sudoku of {len(given)} given cells and {len(filled)} solutions"
    print(
        f"{name}: {result.method}, {seconds:.2f} s; bp is "
        f"{np.abs(loopy.marginals.numpy() - truth).max():.2f} off"
    )
    yield tiny(f"{name}, worst error", float(np.abs(result.marginals.numpy() - truth).max()), 1e-10)


def parity(bits: int = 24, checks: int = 12, each: int = 3) -> FactorGraph:
    """Return bits of which each is in three of some checks, drawn at random; the bits of a check
    have an even sum.
    """
    random = KEY.child("parity").numpy()
    taken = [random.choice(checks, each, replace=False) for _ in range(bits)]
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(range(bits), type="variable", card=2)
    for check in range(checks):
        scope = tuple(bit for bit in range(bits) if check in taken[bit])
        if scope:
            even = 1 - np.indices((2,) * len(scope)).sum(0) % 2
            _add(graph, scope, even.astype(float))
    return FactorGraph.from_networkx(graph)


def noisy_or(causes: int = 18, findings: int = 30, each: int = 4) -> FactorGraph:
    """Return rare causes and findings, each of which four causes bring about."""
    random = KEY.child("noisy-or").numpy()
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(range(causes + findings), type="variable", card=2)
    for cause in range(causes):
        _add(graph, (cause,), np.array([0.9, 0.1]))
    for finding in range(findings):
        parents = random.choice(causes, each, replace=False).tolist()
        missed = random.uniform(0.1, 0.6, each).reshape(-1, *[1] * each)
        absent = 0.98 * np.prod(missed ** np.indices((2,) * each), axis=0)
        _add(graph, (*parents, causes + finding), np.stack([absent, 1 - absent], axis=-1))
    return FactorGraph.from_networkx(graph)


def _add(graph: nx.Graph[Any], scope: tuple[int, ...], weights: NDArray[np.float64]) -> None:
    name = ("factor", graph.number_of_nodes())
    graph.add_node(name, type="factor", scope=scope, table=weights)
    graph.add_edges_from((name, variable) for variable in scope)


def _refusals() -> Iterator[bool]:
    graphs = {"parity": parity(), "noisy-or": noisy_or(), "sudoku": sudoku()[0]}
    rows, refused = list[list[str | float | int]](), 0
    for name, graph in graphs.items():
        start = time.perf_counter()
        try:
            infer(graph, method="gbp", max_sweeps=1000, warn=False)
            words = "ran"
        except ArgumentError as error:
            refused += 1
            words = str(error).partition("found ")[2]
        rows.append([name, f"{time.perf_counter() - start:.2f}", words])
    print(table(("graph", "s", "gbp"), rows))
    yield at_least("graphs that gbp prices and refuses", float(refused), float(len(graphs)))


def star(count: int) -> FactorGraph:
    """Return a tree of one variable with all others around it."""
    random = KEY.child("star").numpy()
    graph: nx.Graph[Any] = nx.Graph()
    graph.add_nodes_from(range(count), type="variable", card=3)
    for leaf in range(1, count):
        _add(graph, (0, leaf), np.exp(random.normal(size=(3, 3))))
    return FactorGraph.from_networkx(graph)


def _most_probable(repeats: int) -> Iterator[bool]:
    medians = list[float]()
    for count in LEAVES:
        marginals, states = list[float](), list[float]()
        for _ in range(repeats):
            graph = star(count)
            start = time.process_time()
            result = infer(graph)
            middle = time.process_time()
            _ = result.most_probable
            marginals.append(middle - start)
            states.append(time.process_time() - middle)
        medians.append(statistics.median(states))
        yield target(
            f"most_probable / marginals, star of {count} variables",
            medians[-1] / statistics.median(marginals),
            200.0,
        )
    yield target("most_probable, star of 1601 over star of 801", medians[1] / medians[0], 5.0)
