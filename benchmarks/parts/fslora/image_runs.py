"""The runs of `fslora.py` on images: a case's settings, the algorithm they make, and its finished
run, kept on disk.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from parts.fslora.image_tasks import ImageTask, image_task
from parts.shared.curves import Curve
from parts.shared.kept import kept
from torch import nn
from tqdm import tqdm

import bayesfed as bf
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.engine.metrics import score
from bayesfed.federated.engine.reports import bits
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.federated.training.optimisers import constant

Settings = Mapping[str, Any]
WHOLE = ("fed_lora", "ffa_lora")


@dataclass(frozen=True)
class Run:
    """One run: (round, MB up of a client so far, MB down, accuracy in per cent) where it was
    scored.
    """

    settings: Settings
    seed: int
    rows: list[list[float]]

    def at(self, round: int) -> float:
        """Return the accuracy after a round."""
        return next(row[3] for row in self.rows if row[0] == round)

    @property
    def total(self) -> float:
        """Megabytes of a client in both directions."""
        return self.rows[-1][1] + self.rows[-1][2]

    @property
    def curve(self) -> Curve:
        """Accuracy against megabytes in both directions."""
        return [(row[1] + row[2], row[3]) for row in self.rows]


@dataclass(frozen=True)
class Place:
    """Where data are and runs are kept."""

    folder: Path
    out: Path

    def file(self, settings: Settings, seed: int) -> Path:
        """Return the file of a run."""
        digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
        return self.out / "runs" / f"{digest}_{seed}.json"

    def run(self, settings: Settings, seed: int) -> Run:
        """Return a run, from its file if it was made before with the same settings."""
        return Run(
            settings,
            seed,
            kept(self.file(settings, seed), lambda: _made(settings, seed, self))["rows"],
        )

    def prepare(self, jobs: Sequence[tuple[Settings, int]], workers: int) -> None:
        """Make the runs that are missing, several at once."""
        missing = [job for job in jobs if not self.file(*job).exists()]
        if not missing:
            return
        # Once, before there are several processes.
        task_of(missing[0][0], self)
        with ProcessPoolExecutor(
            workers,
            multiprocessing.get_context("spawn"),
            initializer=partial(torch.set_num_threads, 1),
        ) as pool:
            for _ in tqdm(
                pool.map(self.run, *zip(*missing, strict=True)),
                total=len(missing),
                desc="runs",
                unit="run",
            ):
                pass


def task_of(settings: Settings, place: Place) -> ImageTask:
    """Return the task of some settings."""
    return image_task(
        settings["task"], place.folder, place.out / "cache", held_out=settings["held_out"]
    )


def _made(settings: Settings, seed: int, place: Place) -> dict[str, Any]:
    task = task_of(settings, place)
    clients = task.clients(settings, seed)
    up, down, scored = 0.0, 0.0, list[list[float]]()
    with bf.InProcess(clients) as pool:
        for report in rounds(
            algorithm(settings, seed, task.net, sorted(clients)),
            pool,
            rounds=settings["rounds"],
            seed=seed,
        ):
            up += bits(report.rows, "up") / 8e6 / len(clients)
            down += bits(report.rows, "down") / 8e6 / len(clients)
            number = report.snapshot.round
            if not number % settings["every"] or number == settings["rounds"]:
                scored.append(
                    [
                        number,
                        round(up, 4),
                        round(down, 4),
                        round(100 * score(report.model, task.test), 2),
                    ]
                )
    return {"settings": dict(settings), "seed": seed, "rows": scored}


def adapted(settings: Settings, seed: int, net: nn.Module) -> nn.Module:
    """Return the network with adapters in all layers but the last, which is trained as well."""
    return bf.lora(
        net,
        settings["rank"],
        bf.Key(seed, "lora"),
        alpha=settings["scale"] * settings["rank"],
        head=[[name for name, _ in net.named_children()][-1]],
    )


def algorithm(settings: Settings, seed: int, net: nn.Module, clients: Sequence[str]) -> Algorithm:
    """Return a case's algorithm."""
    schedule = (
        bf.federated.cosine(settings["falling"], settings["rounds"])
        if "falling" in settings
        else constant
    )
    work = bf.Training(
        settings["steps"], settings["batch_size"], bf.Adam(settings["learning_rate"]), schedule
    )
    ranks = settings["ranks"]
    sized = () if settings["recipe"] in WHOLE else (ranks, bf.fixed(clients, len(ranks)))
    own = {
        name: settings[name]
        for name in ("anchored", "broadcast", "by_coverage", "sampling", "train_a")
        if name in settings
    }
    # Runs that do not say how slices are drawn are older than the default.
    if settings["recipe"] == "fs_lora":
        own.setdefault("sampling", "uniform")
    made: Algorithm = getattr(bf, settings["recipe"])(
        adapted(settings, seed, net), *sized, training=work, **own
    )
    moved = (
        bf.server_optimised(made, bf.FedAvgM(1.0, settings["momentum"]))
        if settings["momentum"]
        else made
    )
    return bf.averaged(moved, begin=settings["averaged"]) if "averaged" in settings else moved
