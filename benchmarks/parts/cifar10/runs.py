"""Runs of `cifar10.py`: a case once, with bytes, accuracies and costs by round."""

from __future__ import annotations

import time
import warnings
from itertools import accumulate

from parts.cifar10.records import Run, Settings, megabytes
from parts.cifar10.systems import Place, plan

import bayesfed as bf
from bayesfed.errors import CollapseWarning
from bayesfed.federated import Record, RoundReport, bits
from bayesfed.federated.engine.metrics import score
from bayesfed.federated.engine.reports import energy_j, latency_s
from bayesfed.trees import Tree, size


def made(case: str, settings: Settings, data: tuple[bf.Dataset, bf.Dataset], seed: int) -> Run:
    """Run a case once."""
    begun, (train, scored) = time.perf_counter(), data
    parts = bf.dirichlet(
        train.targets, settings["clients"], settings["alpha"], bf.Key(seed, "partition")
    )
    made = plan(settings, Place(train, bf.federate(train, parts), seed, megabytes))
    few, history = scored[: settings["scored"]], list[Record]()
    state: Tree = {}

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
