"""Runs of `cifar10.py`: a case once, with bytes, accuracies and costs by round, and its record."""

from __future__ import annotations

import json
import subprocess
import time
import warnings
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from parts.cifar10.systems import Place, Settings, plan
from parts.shared.settings import resolved, settings_of

import bayesfed as bf
from bayesfed.errors import CollapseWarning
from bayesfed.federated import Record, RoundReport, bits
from bayesfed.federated.engine.metrics import score
from bayesfed.federated.engine.reports import energy_j, latency_s
from bayesfed.trees import size

RECORDS = Path(__file__).parents[2] / "records" / "cifar10.jsonl"
# A search scores the rows from here on, which it does not train on, after so many rounds.
HELD_OUT, SEARCHED = 48_000, 5
Run = dict[str, Any]


def cases() -> dict[str, dict[str, Any]]:
    """Return the settings of every case."""
    found = settings_of("cifar10")
    return {name: resolved(found["cases"], name, found["base"]) for name in found["cases"]}


def searched() -> Mapping[str, list[float]]:
    """Return the rates of a search by case."""
    found: Mapping[str, list[float]] = settings_of("cifar10")["search"]
    return found


def recorded() -> dict[str, Run]:
    """Return the last recorded run of every case with its present settings, by case."""
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    runs = {run["case"]: run for run in map(json.loads, lines) if not run["held_out"]}
    every = cases()
    return {
        name: runs[name] for name in every if name in runs and runs[name]["settings"] == every[name]
    }


def made(
    case: str, settings: Settings, data: tuple[bf.Dataset, bf.Dataset], seed: int, held_out: bool
) -> Run:
    """Run a case once; scores are of test rows, or of training rows that it does not train on."""
    begun, (train, scored) = time.perf_counter(), data
    if held_out:
        train, scored = train[:HELD_OUT], train[HELD_OUT:]
    parts = bf.dirichlet(
        train.targets, settings["clients"], settings["alpha"], bf.Key(seed, "partition")
    )
    made = plan(settings, Place(train, bf.federate(train, parts), seed, megabytes))
    few, state, history = scored[: settings["scored"]], {}, list[Record]()

    def note(report: RoundReport) -> None:
        if report.due(settings["every"]):
            report.metrics["accuracy"] = score(report.model, few)

    for number, (make, count) in enumerate(made.stages):
        algorithm = make(state)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CollapseWarning)
            result = bf.run(
                algorithm,
                made.clients,
                rounds=count,
                # Stages of one run draw other batches.
                seed=seed + number,
                callbacks=[note],
                progress=False,
                on_client_error="drop",
            )
        state, history = result.snapshot.state, [*history, *result.history]
    models = [of(state) for of in (algorithm.sizes or {"": algorithm.predictor}).values()]
    matrices = [leaf for leaf in models[0].parameters.values() if leaf.ndim > 1]
    left = sum(int(leaf.count_nonzero()) for leaf in matrices)
    deadline = settings.get("deadline_s", float("inf"))
    down, up, joules, seconds = (
        [*accumulate(values)]
        for values in zip(*(costs(one, deadline) for one in history), strict=True)
    )
    return {
        "case": case,
        "seed": seed,
        "held_out": held_out,
        "rounds": len(history),
        "parameters": [size(dict(model.parameters)) for model in models],
        # Of every size of device, in percent.
        "accuracy": [round(100 * score(model, scored), 2) for model in models],
        "density": left / size({str(at): leaf for at, leaf in enumerate(matrices)}),
        "megabytes_down": round(down[-1], 4),
        "megabytes_up": round(up[-1], 4),
        "joules": round(joules[-1], 2),
        "device_seconds": round(seconds[-1], 2),
        "left_out": sum(len(one.refused) for one in history),
        # After a round: megabytes of both directions, joules, accuracy of the first rows.
        "curve": [
            [at + 1, round(down[at] + up[at], 4), round(joules[at], 2), one.metrics["accuracy"]]
            for at, one in enumerate(history)
            if "accuracy" in one.metrics
        ],
        "seconds": round(time.perf_counter() - begun, 1),
        "settings": settings,
    }


def costs(record: Record, deadline_s: float) -> tuple[float, float, float, float]:
    """Return megabytes down and up, joules and seconds of a round."""
    down, up = (bits(record.rows, way) / 8e6 for way in ("down", "up"))
    return down, up, energy_j(record.rows), latency_s(record.rows, deadline_s)


def megabytes(case: str) -> float:
    """Return what a recorded run sent."""
    run = recorded()[case]
    spent: float = run["megabytes_down"] + run["megabytes_up"]
    return spent


def record(run: Run) -> None:
    """Append a run to the records, with the commit."""
    commit, changed = (
        subprocess.run(["git", *said.split()], capture_output=True, text=True, check=True).stdout
        for said in ("describe --always", "diff --name-only HEAD -- *.py *.toml")
    )
    run |= {"commit": commit.strip() + "-dirty" * bool(changed)}
    with RECORDS.open("a") as file:
        file.write(json.dumps(run) + "\n")
