"""How memory grows with clients and model, and D-Turbo-VBI's server step with weights.

    python benchmarks/speed.py --only scaling [--check]

Memory: a process each, two FedAvg rounds of one step, the same 20,000 rows of 784 in all, for 10,
100 and 1,000 clients of an MLP 784-64-64-10, then for 10 clients of wider networks. "peak" is the
largest resident memory of the whole process, "grown" what it rose by after data, network and
PyTorch were there. If every client left a model behind, a thousand would grow by a hundred times
what ten do. Server: `TurboStep.step`, support graph included, on MLPs of growing width at
the state after one round of two steps; one thread.
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
from parts.shared.targets import calls_timed, target
from parts.speed.cohorts import federation
from tqdm import tqdm

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import no_field
from bayesfed.federated import rounds
from bayesfed.inspect import table

ROWS, WIDTH = 20_000, 64
CROWDS, WIDTHS = (10, 100, 1000), (64, 256, 1024)
SERVED = (64, 128, 256, 512, 1024)


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    torch.set_num_threads(1)
    cases = [(clients, WIDTH) for clients in CROWDS] + [(10, width) for width in WIDTHS[1:]]
    found = {case: child(*case) for case in tqdm(cases, desc="memory")}
    rows: list[list[str | float | int]] = [
        [clients, f"784-{width}-{width}-10", model, peak, grown, grown / model]
        for (clients, width), (peak, grown, model) in found.items()
    ]
    print(table(["clients", "network", "model MB", "peak MB", "grown MB", "grown / model"], rows))
    lines = [
        server_step(width, 3 if options.check else 9)
        for width in tqdm(SERVED[:-1] if options.check else SERVED, desc="server steps")
    ]
    print(table(["network", "weights", "server step ms", "ns a weight"], lines))
    ten, thousand = found[(10, WIDTH)], found[(1000, WIDTH)]
    yield target("memory, 1000 clients / 10 clients, peak", thousand[0] / ten[0], 1.2)
    yield target("memory that rounds take, 1000 clients / 10 clients", thousand[1] / ten[1], 8)


def child(clients: int, width: int) -> tuple[float, float, float]:
    """Ask a fresh process of this module for its memory."""
    command = [sys.executable, "-m", "parts.speed.scaling", str(clients), str(width)]
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    peak, grown, model = json.loads(done.stdout)
    return peak, grown, model


def memory(clients: int, width: int) -> tuple[float, float, float]:
    """Return this process's peak, what it grew by in two rounds, and the model's size, in MB."""
    net = bf.mlp([784, width, width, 10], bf.Key(0, "net"))
    pool = bf.InProcess(federation((784, 10), clients, ROWS // clients))
    algorithm = bf.fed_avg(net, training=bf.Training(steps=1, batch_size=16))
    # What a first step loads is not the engine's.
    list(rounds(algorithm, bf.InProcess(federation((784, 10), 1, 16)), rounds=1))
    before = status("VmRSS")
    list(rounds(algorithm, pool, rounds=2))
    return (
        status("VmHWM"),
        max(status("VmHWM") - before, 0.0),
        4 * sum(leaf.numel() for leaf in algorithm.initial.values()) / 1e6,
    )


def status(name: str) -> float:
    """Return a figure of this process, in MB."""
    return int(Path("/proc/self/status").read_text().split(f"{name}:")[1].split()[0]) * 1024 / 1e6


def server_step(width: int, repeats: int) -> list[str | float]:
    """Time the server's step for a network."""
    widths = [784, width, width, 10]
    declared = bf.declare(
        bf.mlp(widths, bf.Key(0, "net")), likelihood=bf.Categorical(temperature=0.05)
    )
    algorithm = bf.d_turbo_vbi(
        declared, training=bf.Training(steps=2, batch_size=32), field=no_field
    )
    with calls_timed(type(algorithm.phases[0].server), "step") as seconds:
        list(rounds(algorithm, bf.InProcess(federation((784, 10), 2, 64)), rounds=repeats + 1))
    weights = sum(above * below for above, below in pairwise(widths))
    median = statistics.median(seconds[1:])
    return ["-".join(map(str, widths)), f"{weights:,}", 1e3 * median, 1e9 * median / weights]


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(memory(int(sys.argv[1]), int(sys.argv[2]))))
