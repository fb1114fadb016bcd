"""A model of 64 million parameters: the memory of a FedAvg round in model sizes, and its time, beside
a bare PyTorch loop with the same gradient steps.

    python benchmarks/speed.py --only large [--check]

Round: 4 clients x 10 SGD steps of 128 on an MLP with four layers of 4000 x 4000 (244 MiB in
float32), clients one after another in one process, one thread, float32 messages as real bytes in
both directions. Memory: a fresh process each, the largest resident memory above what is there just
before the round, that is, the network, the first state and the rows. Of six model sizes a client
takes three (what it received, what it trains, the gradient) and the sum two; the bare loop has no
more than the copies that FedAvg by hand takes. Time: processor seconds, client by client in turn
(`parts.speed.engine`).
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from parts.shared.targets import ratio, target
from parts.speed.cohorts import bare, federation
from parts.speed.engine import InTurn
from parts.speed.scaling import status

import bayesfed as bf
from bayesfed.federated import rounds
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.inspect import table

WIDTHS, CLIENTS, STEPS, BATCH = (4000, 4000, 4000, 4000, 4000, 10), 4, 10, 128
MODEL_MB = 4 * sum((a + 1) * b for a, b in zip(WIDTHS, WIDTHS[1:], strict=False)) / 1e6


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    torch.set_num_threads(1)
    repeats = 2 if options.check else 5
    grown = {name: child(name)[0] for name in ("engine", "bare")}
    lines = [[name, MODEL_MB, size, size / MODEL_MB] for name, size in grown.items()]
    print(table(["round of", "model MB", "grown MB", "grown / model"], lines))
    engine_s, bare_s = zip(*(child("time") for _ in range(repeats)), strict=True)
    print(f"engine {min(engine_s):.1f} s a round, bare loop {min(bare_s):.1f} s")
    yield target("large model, memory of a round, in models", grown["engine"] / MODEL_MB, 6.0)
    yield target("large model, engine round / bare loop", ratio([*engine_s], [*bare_s]), 1.10)


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
    data = federation(WIDTHS, CLIENTS, 2 * BATCH)
    if name != "bare":
        # What a first step and a first large sum load is not the round's.
        small = (64, 512, 10)
        list(rounds(algorithm(small), bf.InProcess(federation(small, 2, BATCH)), rounds=1))
    if name == "time":
        return [*LargeInTurn(data).seconds(algorithm(WIDTHS))]
    made = algorithm(WIDTHS) if name == "engine" else None
    before = status("VmRSS")
    if made:
        list(rounds(made, bf.InProcess(data), rounds=1))
    else:
        bare(WIDTHS, list(data.values()), STEPS, BATCH)
    return [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6 - before]


def algorithm(widths: tuple[int, ...]) -> Algorithm:
    """Return FedAvg on an MLP."""
    training = bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(0.05))
    return bf.fed_avg(bf.mlp(list(widths), bf.Key(0, "net")), training=training)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(measured(sys.argv[1])))
