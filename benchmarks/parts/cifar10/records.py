"""The settings and the recorded runs of `cifar10.py`, and the tables of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parts.shared.kept import commit
from parts.shared.settings import resolved, settings_of

RECORDS = Path(__file__).parents[2] / "records" / "cifar10.jsonl"
HEADS = ["method", "rounds", "parameters", "weights %", "accuracy %", "MB down", "MB up"]
ON_DEVICES = ["method", "accuracy %", "MB up", "J", "minutes", "answers left out"]
Settings = Mapping[str, Any]
Run = dict[str, Any]


def cases() -> dict[str, dict[str, Any]]:
    """Return the settings of every case."""
    found = settings_of("cifar10")
    return {name: resolved(found["cases"], name, found["base"]) for name in found["cases"]}


def recorded() -> dict[str, Run]:
    """Return the last recorded run of every case with its present settings, by case."""
    lines = RECORDS.read_text().splitlines() if RECORDS.exists() else []
    runs = {run["case"]: run for run in map(json.loads, lines)}
    every = cases()
    return {
        name: runs[name] for name in every if name in runs and runs[name]["settings"] == every[name]
    }


def megabytes(case: str) -> float:
    """Return what a recorded run sent."""
    run = recorded()[case]
    spent: float = run["megabytes_down"] + run["megabytes_up"]
    return spent


def record(run: Run) -> None:
    """Append a run to the records, with the commit."""
    with RECORDS.open("a") as file:
        file.write(json.dumps(run | {"commit": commit()}) + "\n")


def rows(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return the lines of methods without devices; of several sizes of device, the largest
    first.
    """
    return [
        [
            name,
            str(run["rounds"]),
            ", ".join(f"{count:,}" for count in run["parameters"]),
            f"{100 * run['density']:.3g}",
            ", ".join(f"{value:.1f}" for value in run["accuracy"]),
            f"{run['megabytes_down']:.2f}",
            f"{run['megabytes_up']:.2f}",
        ]
        for name, run in runs.items()
        if not run["joules"]
    ]


def goal(runs: Mapping[str, Run]) -> float:
    """Return the accuracy that all methods on devices come to, on the first test rows."""
    curves = [run["curve"] for run in runs.values() if run["joules"]]
    return min((max(accuracy for *_, accuracy in curve) for curve in curves), default=0.0)


def costs(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return the lines of methods on devices, the last cell joules to the `goal`."""
    wanted = goal(runs)
    return [
        [
            name,
            f"{run['accuracy'][0]:.1f}",
            f"{run['megabytes_up']:.2f}",
            f"{run['joules']:.0f}",
            f"{run['device_seconds'] / 60:.2f}",
            str(run["left_out"]),
            f"{next(joules for *_, joules, accuracy in run['curve'] if accuracy >= wanted):.0f}",
        ]
        for name, run in runs.items()
        if run["joules"]
    ]
