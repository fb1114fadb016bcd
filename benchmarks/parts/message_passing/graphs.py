"""What `infer` makes of graphs with cycles that others use: the table and the targets of
`accuracy.py`.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from parts.message_passing.networks import (
    NAMES,
    WIDE,
    Case,
    by_einsum,
    by_pgmpy,
    cases,
    forced,
    network,
    observe,
)
from parts.shared.plain import loop_seconds
from parts.shared.targets import at_least, target, tiny

from bayesfed.errors import ArgumentError
from bayesfed.inference import Inferred, infer
from bayesfed.inference.sum_product.methods.junction import fitting_tree
from bayesfed.inference.sum_product.methods.structure import as_flat
from bayesfed.inspect import table

COLUMNS = (
    "graph",
    "observed",
    "method",
    "trust",
    "error",
    "ms",
    "pgmpy ms",
    "bp: error",
    "trust",
    "bound",
    "warned",
)
REPEATS, FLOAT_BYTES = 15, 8
# What grids that stay loopy have besides belief propagation.
GRIDS: tuple[Literal["gbp", "strip"], ...] = ("gbp", "strip")


@dataclass(frozen=True)
class Run:
    """One line of the table; times in ms."""

    case: Case
    method: str
    trust: str
    error: float
    milliseconds: float
    reference: float
    truth: list[NDArray[np.float64]]
    loopy_error: float
    loopy_trust: str
    bound: float
    warned: bool


def deviation(result: Inferred, truth: list[NDArray[np.float64]]) -> float:
    """Return the largest absolute error of a marginal."""
    marginals = result.marginals.double()
    marginals = marginals if marginals.ndim == 2 else torch.stack([1 - marginals, marginals], dim=1)
    return max(
        float(np.abs(marginals[i, : len(row)].numpy() - row).max()) for i, row in enumerate(truth)
    )


def measure(case: Case) -> Run:
    """Run "auto" and "bp", and compare both with pgmpy."""
    truth, reference = by_pgmpy(case.graph, case.evidence)
    result, seconds = infer(case.graph, log_weights=case.evidence), list[float]()
    for _ in range(REPEATS):
        start = time.perf_counter()
        infer(case.graph, log_weights=case.evidence)
        seconds.append(time.perf_counter() - start)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        loopy = infer(case.graph, log_weights=case.evidence, method="bp")
    bound = math.nan if loopy.trust_bound is None else loopy.trust_bound
    milliseconds = 1e3 * min(seconds)
    return Run(
        case,
        result.method,
        result.trust,
        deviation(result, truth),
        milliseconds,
        reference,
        truth,
        deviation(loopy, truth),
        loopy.trust,
        bound,
        bool(heard),
    )


def wide() -> tuple[list[list[str | float | int]], float, float]:
    """Return the table of the networks that "exact" serves and "auto" does not, the largest error
    of a marginal beside opt_einsum, and the longest time, in passes of a plain loop over the bytes
    of the network's largest table.
    """
    rows, errors, loops = list[list[str | float | int]](), list[float](), list[float]()
    for name in WIDE:
        graph = network(name)
        for evidence, observed in ((None, 0), observe(graph)):
            start = time.process_time()
            result = infer(graph, log_weights=evidence, method="exact")
            seconds = time.process_time() - start
            errors.append(
                max(
                    float(np.abs(result.marginals[at, : len(row)].numpy() - row).max())
                    for at, row in by_einsum(name, evidence)
                )
            )
            tree = fitting_tree(as_flat(graph.model), 1)
            assert tree is not None
            width = max(len(clique.scope) for clique in tree.cliques) - 1
            size = (len(graph.variables), width, f"{tree.largest:,}")
            loops.append(seconds / loop_seconds(FLOAT_BYTES * tree.largest))
            rows.append([name, observed, *size, f"{errors[-1]:.1e}", f"{seconds:.2f}", loops[-1]])
    return rows, max(errors), max(loops)


def contradictions_served() -> int:
    """Return how many methods do not refuse a = b, b = c, a != c."""
    equal, different = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    served = 0
    methods: tuple[Literal["auto", "exact", "bp"], ...] = ("auto", "exact", "bp")
    for method in methods:
        try:
            infer(forced(["ab", "bc", "ac"], [equal, equal, different]), method=method)
            served += 1
        except ArgumentError:
            pass
    return served


def report() -> Iterator[bool]:
    """Print the table of all graphs and the targets; yield whether each is met."""
    runs = [measure(case) for case in cases()]
    rows = [
        [
            run.case.name,
            run.case.observed,
            run.method,
            run.trust,
            f"{run.error:.1e}",
            f"{run.milliseconds:.2f}",
            f"{run.reference:.0f}",
            f"{run.loopy_error:.4f}",
            run.loopy_trust,
            f"{run.bound:.2f}",
            "yes" if run.warned else "no",
        ]
        for run in runs
    ]
    print(table(COLUMNS, rows))
    print()
    yield tiny(
        "exact against pgmpy's elimination, worst of all graphs",
        max(run.error for run in runs),
        1e-10,
    )
    listed, error, loops = wide()
    headings = ("network", "observed", "variables", "width", "entries", "error", "s", "loops")
    print(table(headings, listed))
    print()
    yield tiny("exact on wide networks against opt_einsum", error, 1e-10)
    yield target("exact on wide networks / plain loop over the largest table", loops, 500.0)
    silent = [
        run
        for run in runs
        if max(run.loopy_error, run.error) > 0.01
        and (run.loopy_trust == "unique" or not run.warned)
    ]
    yield target(
        "graphs on which bp errs by more than 0.01 and is 'unique' or silent",
        float(len(silent)),
        0.0,
    )
    yield target("ways to serve a contradiction", float(contradictions_served()), 0.0)
    for name in ("Potts", "spin glass"):
        run = next(run for run in runs if run.case.name.startswith(name))
        for method in GRIDS:
            result = infer(run.case.graph, method=method, max_sweeps=3000, warn=False)
            error = deviation(result, run.truth)
            yield at_least(
                f"{name}: error of bp over that of {method} ({error:.5f}, {result.sweeps} sweeps)",
                run.loopy_error / error,
                5.0,
            )
    nine = next(run for run in runs if run.case.name.startswith("K9"))
    yield target("K9 after the first call / pgmpy", nine.milliseconds / nine.reference, 0.1)
    yield target(
        "networks after the first call / pgmpy, largest",
        max(run.milliseconds / run.reference for run in runs if run.case.name in NAMES),
        1.0,
    )
