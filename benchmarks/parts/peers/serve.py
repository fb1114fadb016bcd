"""A peer in a process of its own: one JSON request a line on stdin, one JSON answer a line on
stdout.

    python serve.py {pgmax,fbgbp}

Runs in the environment of `requirements.txt`, not in that of bayesfed. Requests, in this order:

``{"do": "build", "table": [...], "evidence": "u.npy"}``
    One shared log table on a grid like the evidence: 4 numbers couple right and lower neighbours,
    16 couple the 2 x 2 cells.
``{"do": "sweeps", "count": n}``
    Time n sweeps, compiling left out.
``{"do": "settle", "tol": t, "at_most": n}``
    From zero messages until none changes by more than t; time it, compiling left out.
``{"do": "marginals", "path": "p.npy"}``
    Write P(s = 1) after the last run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from itertools import product
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

# Sweeps between two looks at the change, as many as bayesfed makes.
STRIDE = 4


class Peer(Protocol):
    """What a request can ask for."""

    def __init__(self, table: NDArray[np.float64], evidence: NDArray[np.float64]) -> None: ...

    def sweeps(self, count: int) -> dict[str, float]:
        """Time sweeps."""

    def settle(self, tol: float, at_most: int) -> dict[str, float]:
        """Time a run to convergence."""

    def marginals(self) -> NDArray[np.float64]:
        """Return P(s = 1)."""


class PgMax:
    """PGMax: sum-product is temperature 1. PairwiseFactorGroup makes the same wiring as
    EnumFactorGroup and is no faster.
    """

    def __init__(self, table: NDArray[np.float64], evidence: NDArray[np.float64]) -> None:
        graphs, groups, infer, variables = (
            import_module(f"pgmax.{name}") for name in ("fgraph", "fgroup", "infer", "vgroup")
        )
        rows, columns = evidence.shape
        self.variables = v = variables.NDVarArray(num_states=2, shape=evidence.shape)
        if table.size == 4:
            scopes = [[v[i, j], v[i, j + 1]] for i in range(rows) for j in range(columns - 1)]
            scopes += [[v[i, j], v[i + 1, j]] for i in range(rows - 1) for j in range(columns)]
        else:
            cells = product(range(rows - 1), range(columns - 1))
            scopes = [[v[i, j], v[i, j + 1], v[i + 1, j], v[i + 1, j + 1]] for i, j in cells]
        states = np.array(list(product((0, 1), repeat=len(scopes[0]))))
        graph = graphs.FactorGraph(variable_groups=v)
        graph.add_factors(
            groups.EnumFactorGroup(
                variables_for_factors=scopes, factor_configs=states, log_potentials=table
            )
        )
        self.infer, self.jax = infer, import_module("jax")
        self.passing = infer.build_inferer(graph.bp_state, backend="bp")
        self.start = self.passing.init(
            evidence_updates={
                v: np.stack([np.zeros_like(evidence), evidence], -1).astype(np.float32)
            }
        )
        self.reached = self.start
        self.run = self.jax.jit(
            lambda arrays, count: self.passing.run(arrays, count, 0.0, 1.0), static_argnums=1
        )
        self.settled = self.jax.jit(self._settled)
        self.compiled: set[int] = set()

    def sweeps(self, count: int) -> dict[str, float]:
        """Time sweeps from zero messages."""
        if count not in self.compiled:
            self.jax.block_until_ready(self.run(self.start, count))
            self.compiled.add(count)
        start = time.perf_counter()
        self.reached = self.jax.block_until_ready(self.run(self.start, count))
        return {"seconds": time.perf_counter() - start}

    def settle(self, tol: float, at_most: int) -> dict[str, float]:
        """Time a run to convergence, all of it inside one compiled loop, without damping."""
        if 0 not in self.compiled:
            # No limit: compiles the loop and leaves it before the first sweep.
            self.jax.block_until_ready(self.settled(self.start, tol, 0))
            self.compiled.add(0)
        start = time.perf_counter()
        self.reached, change, sweeps = self.jax.block_until_ready(
            self.settled(self.start, tol, at_most)
        )
        return {
            "seconds": time.perf_counter() - start,
            "sweeps": int(sweeps),
            "change": float(change),
        }

    def marginals(self) -> NDArray[np.float64]:
        """Return P(s = 1)."""
        return np.asarray(
            self.infer.get_marginals(self.passing.get_beliefs(self.reached))[self.variables]
        )[..., 1]

    def _settled(self, arrays: Any, tol: float, at_most: int) -> Any:
        def more(state: Any) -> Any:
            return (state[1] > tol) & (state[2] < at_most)

        def work(state: Any) -> Any:
            arrays, changes = self.passing.run_with_diffs(state[0], STRIDE, 0.0, 1.0)
            return arrays, changes[-1], state[2] + STRIDE

        return self.jax.lax.while_loop(more, work, (arrays, np.float32(np.inf), np.int32(0)))


class Fbgbp:
    """fbgbp: C++ flooding on a binary grid with one coupling, on all cores. Its stop rule is the
    mean square change.
    """

    def __init__(self, table: NDArray[np.float64], evidence: NDArray[np.float64]) -> None:
        self.agree, self.differ = float(np.exp(table[0])), float(np.exp(table[1]))
        self.evidence = evidence
        self.threads = len(os.sched_getaffinity(0))
        self.grid = self._grid()

    def _grid(self) -> Any:
        shape = np.array(self.evidence.shape, dtype=np.uint32)
        neighbours = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]], dtype=np.int16)
        on = 1 / (1 + np.exp(-self.evidence.reshape(-1)))
        return import_module("fbgbp").FastBinaryGridBeliefPropagation(
            shape, neighbours, 1 - on, on, self.agree, self.differ
        )

    def sweeps(self, count: int) -> dict[str, float]:
        """Time sweeps from wherever the messages are."""
        start = time.perf_counter()
        self.grid.run(precision=0.0, max_iter=count, n_threads=self.threads)
        return {"seconds": time.perf_counter() - start}

    def settle(self, tol: float, at_most: int) -> dict[str, float]:
        """Time a run until the root mean square change is below the tolerance."""
        self.grid = self._grid()
        start = time.perf_counter()
        self.grid.run(precision=tol**2, max_iter=at_most, n_threads=self.threads)
        return {"seconds": time.perf_counter() - start}

    def marginals(self) -> NDArray[np.float64]:
        """Return P(s = 1)."""
        return np.asarray(self.grid.marginals())


PEERS: dict[str, type[Peer]] = {"pgmax": PgMax, "fbgbp": Fbgbp}


def main() -> None:
    """Answer until stdin ends."""
    # Whatever the libraries print goes to stderr.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer: Peer | None = None
    for line in sys.stdin:
        request = json.loads(line)
        action = request.pop("do")
        answer: dict[str, float] = {}
        if action == "build":
            start = time.perf_counter()
            peer = PEERS[sys.argv[1]](
                np.array(request["table"]), np.load(request["evidence"]).astype(np.float64)
            )
            answer = {"seconds": time.perf_counter() - start}
        elif peer is None:
            raise SystemExit(f"{action!r} before 'build'")
        elif action == "marginals":
            np.save(request["path"], peer.marginals())
        else:
            answer = getattr(peer, action)(**request)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
