"""Whole inputs as clusters, beside independent weights and a random support at the same density."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from typing import NamedTuple

import torch
from parts.shared.targets import at_least, interleaved, ratio, target
from parts.sparse.tasks import TASKS, Task
from torch import Tensor

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import Changes
from bayesfed.inspect import table
from bayesfed.models import Inputs, compact

FIRST, ROUNDS, DENSITY = "1.weight", 30, 0.1
WORK = bf.Training(steps=20, batch_size=32, optimiser=bf.Adam(5e-3))
# Rows of a batch of which inference is timed.
BATCH = 3000


class Row(NamedTuple):
    """What a run gave; accuracies in percent, AUROC of the probabilities of inputs that matter."""

    task: str
    seed: int
    supports: str
    accuracy: float
    used: int
    found: int
    auroc: float
    speed: float
    megabytes: float


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether each target is met."""
    torch.set_num_threads(1)
    rows = list[Row]()
    for seed in range(1 if options.check else 3):
        wanted = {"noise digits": ["inputs", "independent"], "planted": ["inputs"]}
        if not options.check:
            wanted = {name: ["inputs", "independent", "random"] for name in wanted}
            wanted["blank digits"] = wanted["planted"]
        for name, kinds in wanted.items():
            task = TASKS[name](seed)
            for kind in kinds:
                rows.append(fitted(name, task, seed, kind))
                print(*rows[-1], flush=True)
    shown: list[list[str | float]] = [
        [
            row.task,
            row.seed,
            row.supports,
            f"{row.accuracy:.1f}",
            row.used,
            row.found,
            *(f"{value:.2f}" for value in row[6:]),
        ]
        for row in rows
    ]
    print(table([*Row._fields], shown))
    digits = [row for row in rows if "digits" in row.task]
    whole = [row for row in digits if row.supports == "inputs"]
    alone = [row for row in digits if row.supports == "independent"]
    yield target("inputs used, of 784", _mean("used", whole), 110)
    lead = _mean("accuracy", whole) - _mean("accuracy", alone)
    yield at_least("points above independent weights", lead, -1)
    yield at_least("speed of the compacted network", min(row.speed for row in whole), 3.5)
    planted = [row for row in rows if row.task == "planted" and row.supports == "inputs"]
    yield at_least("AUROC of planted inputs", min(row.auroc for row in planted), 0.95)


def fitted(name: str, task: Task, seed: int, kind: str) -> Row:
    """Run a task with supports of a kind."""
    net = task.net(seed)
    first = bf.Prior(Inputs() if kind == "inputs" else bf.Independent())
    declared = bf.declare(net, lambda site: first if site == FIRST else bf.Prior(bf.Independent()))
    algorithm = bf.d_turbo_vbi(
        declared,
        observations=task.observations,
        density=None if kind == "random" else DENSITY,
        changes=Changes(start=DENSITY, learn=False) if kind == "random" else None,
        training=WORK,
    )
    result = bf.run(
        algorithm, task.clients, rounds=ROUNDS, test=task.test, seed=seed, progress=False
    )
    used = (result.model.parameters[FIRST] != 0).any(0)
    matter = torch.ones_like(used) if task.matter is None else task.matter
    odds = torch.tensor(list(result.inputs().values()))
    return Row(
        name,
        seed,
        kind,
        100 * result.final("accuracy"),
        int(used.sum()),
        int((used & matter).sum()),
        auroc(odds, matter),
        speed(net, result.model.parameters, task.test.inputs),
        result.bits() / 8e6,
    )


def speed(net: torch.nn.Module, parameters: dict[str, Tensor], inputs: Tensor) -> float:
    """Return how many times as fast the compacted network is as the whole one."""
    batch = inputs.repeat(-(-BATCH // len(inputs)), 1)[:BATCH]
    small = compact(net, parameters, batch[:500])
    with torch.no_grad():
        work = {"whole": lambda: net(batch), "compact": lambda: small(batch)}
        seconds = interleaved(work, 15)
    return ratio(seconds["whole"], seconds["compact"])


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Return the probability that one of the positives has a higher score than one of the others;
    ties count half.
    """
    above = scores[positive][:, None] - scores[~positive][None]
    return float((above > 0).double().mean() + (above == 0).double().mean() / 2)


def _mean(field: str, rows: list[Row]) -> float:
    return statistics.fmean(getattr(row, field) for row in rows)
