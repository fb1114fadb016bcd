"""A round of a model with 64 million parameters: its memory in model sizes, and its time beside a
bare PyTorch loop with the same gradient steps.

    python benchmarks/speed.py --only large [--check]

Round: FedAvg, 2 clients x 40 SGD steps of 128 on an MLP with four layers of 4000 x 4000 (244 MiB in
float32), clients one after another in one process, one thread, float32 messages as real bytes in
both directions. Memory: a fresh process each, two steps, the largest resident memory above that
just before the round, when network, state and rows are there. Of the engine's model sizes a client
takes three (what it received, what it trains, the gradient), or three a message on its way, and the
sum two; the loop's own are a network, a copy of its start, the sum and the gradient. Time:
processor seconds, in turn client by client (`parts.speed.engine`). What the engine takes besides
the steps does not depend on their number, and is given for each client.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import torch
from parts.shared.targets import ratio, target
from parts.speed.cohorts import bare, federation
from parts.speed.engine import InTurn
from parts.speed.scaling import status
from tqdm import tqdm

import bayesfed as bf
from bayesfed.federated import rounds
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.inspect import table

WIDTHS, CLIENTS, STEPS, BATCH = (4000, 4000, 4000, 4000, 4000, 10), 2, 40, 128
# Further steps take no further memory.
MEMORY_STEPS = 2
MODEL_MB = 4 * sum((a + 1) * b for a, b in pairwise(WIDTHS)) / 1e6


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    grown = {name: child(name)[0] for name in ("engine", "bare")}
    lines: list[list[str | float | int]] = [
        [name, MODEL_MB, size, size / MODEL_MB] for name, size in grown.items()
    ]
    print(table(["round of", "model MB", "grown MB", "grown / model"], lines))
    found = [child("time") for _ in tqdm(range(1 if options.check else 3), desc="rounds")]
    engine_s, bare_s = (list(values) for values in zip(*found, strict=True))
    more = statistics.median(a - b for a, b in found) / CLIENTS
    print(
        f"engine {min(engine_s):.1f} s, bare loop {min(bare_s):.1f} s; {more:.2f} s a client more"
    )
    yield target("large model: memory of a round, in models", grown["engine"] / MODEL_MB, 6.0)
    yield target("large model: engine round / bare loop", ratio(engine_s, bare_s), 1.10)


def child(name: str) -> list[float]:
    """Ask a fresh process of this module for what it measures."""
    command = [sys.executable, "-m", "parts.speed.large", name]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    found: list[float] = json.loads(done.stdout)
    return found


class LargeInTurn(InTurn):
    """The pool and the bare loop in turn, on the large model."""

    widths, steps, batch = WIDTHS, STEPS, BATCH


def measured(name: str) -> list[float]:
    """Return what this process grew by in a round of "engine" or "bare", in MB; or, for "time",
    processor seconds of both.
    """
    data, small = federation(WIDTHS, CLIENTS, 2 * BATCH), (64, 512, 10)
    # What a first step and a first large sum load is not the round's.
    list(rounds(algorithm(small, 1), bf.InProcess(federation(small, 2, BATCH)), rounds=1))
    if name == "time":
        return [*LargeInTurn(data).seconds(algorithm(WIDTHS, STEPS))]
    made = algorithm(WIDTHS, MEMORY_STEPS) if name == "engine" else None
    before = status("VmRSS")
    if made:
        list(rounds(made, bf.InProcess(data), rounds=1))
    else:
        bare(WIDTHS, list(data.values()), MEMORY_STEPS, BATCH)
    return [status("VmHWM") - before]


def algorithm(widths: tuple[int, ...], steps: int) -> Algorithm:
    """Return FedAvg on an MLP."""
    training = bf.Training(steps=steps, batch_size=BATCH, optimiser=bf.Sgd(0.05))
    return bf.fed_avg(bf.mlp(list(widths), bf.Key(0, "net")), training=training)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measured(sys.argv[1])))
