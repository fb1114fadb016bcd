"""Flower against in process: the same bits, and what a round costs.

    python benchmarks/scale_out.py --only flower [--check] [--out results/flower]

A SuperLink and three SuperNodes on loopback, handwritten digits. Parity: the states after the last
round of FedAvg, D-Turbo-VBI and FSLoRA over Flower and in process, entry by entry. Seconds: the
median round (the first left out) of FedAvg, an MLP 64-64-10 of 20 local steps, in process, over
Flower, over Flower with a worker beside each node, and of Flower's own FedAvg strategy with the
same model, rows and steps, without any of our checks or ledger. Bytes: what is really sent for each
byte in the ledger. A process a message and Flower's polls are most of a round over it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from parts.shared.targets import target
from tqdm import tqdm

import bayesfed as bf
from bayesfed.federated import load, rounds
from bayesfed.flower import Experiment
from bayesfed.flower.experiment import load as experiment_of
from bayesfed.inspect import table
from examples.flower.loopback import Loopback

APP = Path(__file__).parent / "flower_app"
NAMES = ("client-000", "client-001", "client-002")
RECIPES = ("fed_avg", "d_turbo_vbi", "fs_lora")


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    os.environ["PARITY_ROUNDS"] = "4" if options.check else "10"
    sys.path.insert(0, str(APP))
    with tempfile.TemporaryDirectory() as folder:
        yield from measure(Path(folder), options.out)


def measure(folder: Path, out: Path) -> Iterator[bool]:
    """Run everything in a folder."""
    apart: dict[str, float] = {}
    seconds: dict[str, list[float]] = {}
    shutil.copytree(APP, folder / "own")
    (folder / "own" / "own.toml").rename(folder / "own" / "pyproject.toml")
    (folder / "app").mkdir()
    for name in ("pyproject.toml", "recipes.py"):
        shutil.copy(APP / name, folder / "app")
    bar = tqdm(total=len(RECIPES) + 2, desc="runs over Flower")
    with Loopback(folder / "net", NAMES, path=APP) as net:
        for name in RECIPES:
            reference, seconds[f"{name}, in process"] = in_process(experiment_of(f"recipes:{name}"))
            net.run(folder / "app", {"experiment": f"recipes:{name}", "out": str(folder / name)})
            apart[name] = float(entries_apart(load(folder / name / "checkpoints").state, reference))
            seconds[f"{name}, Flower"] = [line["seconds"] for line in lines(folder / name)]
            bar.update()
        net.run(folder / "own", {"out": str(folder / "strategy")})
        seconds["fed_avg, Flower's own strategy"] = json.loads(
            (folder / "strategy" / "seconds.json").read_text()
        )
        bar.update()
    with Loopback(folder / "worked", NAMES, worker="recipes:fed_avg", path=APP) as net:
        net.run(folder / "app", {"experiment": "recipes:fed_avg", "out": str(folder / "worker")})
        seconds["fed_avg, Flower and workers"] = [
            line["seconds"] for line in lines(folder / "worker")
        ]
        bar.update()
    bar.close()
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    print(
        table(
            ["round", "median s", "lowest", "highest"],
            [[name, medians[name], min(v[1:]), max(v[1:])] for name, v in seconds.items()],
        )
    )
    sent = lines(folder / "fed_avg")
    overhead = sent[-1]["bytes_sent"] / (sum(line["bits_down"] for line in sent) / 8)
    print(f"bytes sent to clients over those in the ledger, greetings included: {overhead:.3f}")
    out.mkdir(parents=True, exist_ok=True)
    (out / "parity.json").write_text(
        json.dumps(
            {"entries apart": apart, "seconds": seconds, "bytes over ledger": overhead}, indent=1
        )
        + "\n"
    )
    own = medians["fed_avg, Flower's own strategy"]
    for name, value in apart.items():
        yield target(f"entries apart, {name}", value, 0.0)
    yield target(
        "round over Flower / round of Flower's own strategy", medians["fed_avg, Flower"] / own, 1.25
    )
    yield target(
        "round with workers / round of Flower's own strategy",
        medians["fed_avg, Flower and workers"] / own,
        0.9,
    )


def in_process(experiment: Experiment) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return the last state and the seconds of every round."""
    assert experiment.rounds is not None
    reports = list(
        rounds(
            experiment.algorithm,
            bf.InProcess({name: experiment.data(name) for name in NAMES}),
            rounds=experiment.rounds,
        )
    )
    return reports[-1].state, [report.seconds for report in reports]


def entries_apart(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> int:
    """Return how many entries of two states differ; a leaf that only one has counts as one."""
    return len(left.keys() ^ right.keys()) + sum(
        int((left[name] != right[name]).sum()) for name in left.keys() & right.keys()
    )


def lines(folder: Path) -> list[dict[str, float]]:
    """Return the reports of a run."""
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
