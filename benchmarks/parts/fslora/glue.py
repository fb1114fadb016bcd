"""FSLoRA's default, the printed mode and every rule for unlike ranks on tasks of GLUE, beside all
clients at the lowest rank and at the full one.

    python benchmarks/fslora.py --data FOLDER --only glue [--seeds 0 1]

FOLDER has GLUE's folders ``SST-2`` and ``CoLA`` with ``train.tsv`` and ``dev.tsv``. MiniLM-L6's
upper three layers get adapters of rank 16 in all linear layers, on states of the lower three that
are computed once; the classifier is trained whole. Ten clients of 12, 8, 4 and 2 slices, rows dealt
evenly, 15 rounds of five Adam steps of 16 rows; no momentum at the server. Scores are on dev, and
on 1,000 training rows that no run trains on.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from parts.fslora.bench import Bench
from parts.fslora.glue_task import FORMS, glue_task
from parts.fslora.runs import Finished
from parts.fslora.small import ahead
from parts.shared.settings import settings_of

from bayesfed.inspect import table

Found = Mapping[str, Sequence[Finished]]


def targets(options: argparse.Namespace) -> list[bool]:
    """Print a table a task, and by how much the default is ahead; return which targets are met."""
    torch.set_num_threads(1)
    out: Path = options.out or Path("results/fslora")
    found = {}
    for task in settings_of("fslora")["glue"]["tasks"]:
        bench = bench_of(task, options.data, out, options.seeds)
        found[task] = {case: bench.runs(case) for case in bench.document["cases"]}
        shown(task, found[task])
    points = {
        (task, case): statistics.mean(100 * measured(run, FORMS[task].score) for run in runs)
        for task, cases in found.items()
        for case, runs in cases.items()
    }
    return ahead(points, list(found))


def bench_of(task: str, data: Path, out: Path, seeds: Sequence[int] | None = None) -> Bench:
    """Return a task's settings, rows and runs."""
    glue = settings_of("fslora")["glue"]
    own = {**glue["all"], **glue["tasks"][task], "task": task}
    seeds = seeds or own["seeds"]
    document = {"cases": glue["cases"], "task": own, "scales": {"glue": {}}}
    return Bench(document, "glue", data, out, seeds, 0, make=glue_task)


def measured(run: Finished, name: str) -> float:
    """Return a score of a run's last model."""
    return run.last(run.domains.index(name))


def shown(task: str, found: Found) -> None:
    """Print a task's table."""
    some = next(iter(found.values()))
    scores = some[0].domains
    rows: list[list[str | float | int]] = [
        [
            case,
            f"{runs[0].settings['learning_rate']:g}",
            *(f"{statistics.mean(measured(run, name) for run in runs):.3f}" for name in scores),
            *(f"{statistics.mean(run.rows[-1][place] for run in runs):.1f}" for place in (1, 2)),
        ]
        for case, runs in found.items()
    ]
    print(f"\n{task}, {len(some)} seed{'s' * (len(some) > 1)}\n")
    print(table(["method", "rate", *scores, "MB up", "MB down"], rows) + "\n")
