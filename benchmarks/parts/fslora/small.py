"""FSLoRA's default beside every rule for unlike ranks, on small tasks and on the one of images: a
part of `fslora.py` on images. Slices, and so bytes up, are the same for all; each has the rate that
is best on held-out rows of the first seed, and on small tasks no momentum at the server.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from parts.fslora.image_runs import Place
from parts.fslora.images import RIVALS, Images, mean
from parts.fslora.memory import peaks
from parts.shared.settings import settings_of
from parts.shared.targets import at_least, target

from bayesfed.inspect import table

DEFAULT = "FSLoRA"
LEAD, BEHIND = 1.0, 0.5


def targets(options: argparse.Namespace) -> list[bool]:
    """Print what the default reaches and needs beside every rule for unlike ranks."""
    out: Path = options.out or Path("results/fslora")
    document, place = settings_of("fslora"), Place(options.images, out / options.task)
    seeds = options.seeds or document["images"]["seeds"]
    return small(Images(document, place, seeds, options.workers or 2, options.task)) + peaks()


def small(bench: Images) -> list[bool]:
    """Print accuracies by task, and by how much the default is ahead of each rival; return which
    targets are met.
    """
    rates, cases = bench.document["image_small"]["rates"], [DEFAULT, *RIVALS]
    settings: dict[tuple[str, str], dict[str, Any]] = {
        (task, case): {**_task(bench, task), "learning_rate": rate}
        for task, chosen in rates.items()
        for case, rate in chosen.items()
    } | {(bench.task, case): {} for case in cases}
    bench.prepare([(case, own) for (_, case), own in settings.items()])
    found = {place: mean(bench.runs(place[1], **own)) for place, own in settings.items()}
    tasks = [*rates, bench.task]
    rows: list[list[str | float | int]] = [
        [case, *(f"{found[task, case]:.2f}" for task in tasks)] for case in cases
    ]
    print(f"\nthe default, {len(bench.seeds)} seeds\n\n" + table(["method", *tasks], rows) + "\n")
    return ahead(found, tasks)


def ahead(found: Mapping[tuple[str, str], float], tasks: Sequence[str]) -> list[bool]:
    """Print by how many points the default is ahead of each rival; return which targets are met."""
    lines = []
    for rival in RIVALS:
        leads = {task: found[task, DEFAULT] - found[task, rival] for task in tasks}
        worst = min(leads, key=leads.__getitem__)
        said = f"the default: points above {rival}, mean of {len(tasks)} tasks"
        lines += [
            at_least(said, statistics.mean(leads.values()), LEAD),
            target(f"the default: points below {rival} where it is worst", -leads[worst], BEHIND),
        ]
    return lines


def search_small(bench: Images) -> None:
    """Print what each rate gives on held-out rows of the first seed."""
    one, asked = replace(bench, seeds=bench.seeds[:1]), bench.document["image_small"]
    for task, rates in asked["searched"].items():
        own: dict[str, Any] = {**_task(bench, task), "held_out": True}
        rows: list[list[str | float | int]] = [
            [case, *(f"{mean(one.runs(case, **own, learning_rate=rate)):.2f}" for rate in rates)]
            for case in (DEFAULT, *RIVALS)
        ]
        print(f"\n{task}\n\n" + table(["method", *(f"{rate:g}" for rate in rates)], rows) + "\n")


def _task(bench: Images, name: str) -> dict[str, Any]:
    asked = bench.document["image_small"]
    return {**asked["common"], **asked["tasks"][name], "momentum": 0.0, "falling": None}
