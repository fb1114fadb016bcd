"""What a round of every recipe costs: `defaults.py --costs`.

Digits, four clients, Dirichlet 1, a perceptron 64-256-256-256-10, default arguments. Each recipe
runs three rounds in a process of its own, after one of FedAvg, which loads what every run needs.
Figures are means of the rounds after the first, or of the only one of a method that has one.
Seconds are those of the processor, so that other programs on the machine do not count. Memory is
the most that the run had beyond what its process had before, of Linux's anonymous pages: server
and a client at a time, since clients take turns.
"""

from __future__ import annotations

import csv
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from parts.defaults.recipes import Problem, devices, recipes
from parts.shared.memory import grown
from torch import nn

import bayesfed as bf
from bayesfed.federated.engine.reports import RoundReport, bits
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.inspect import table
from bayesfed.trees import size, trainable

FILE = Path(__file__).parents[2] / "records" / "costs.tsv"
ROUNDS, WIDER = 3, 4


class Cost(NamedTuple):
    """What a round costs: seconds of the server and of all clients, most megabytes beyond those at
    the start, and kilobytes of a client's messages.
    """

    recipe: str
    server_s: str
    client_s: str
    peak_mb: str
    kb_down: str
    kb_up: str


class Wide(Problem):
    """A problem whose networks are four times as wide."""

    def net(self, width: int = 64, number: int = 0, dropout: float = 0.0) -> nn.Module:
        """Return a perceptron of three hidden layers."""
        return super().net(WIDER * width, number, dropout)


def costs(given: Problem, only: Sequence[str]) -> list[Cost]:
    """Measure, print and return what recipes cost, in the order of their names."""
    wide = Wide(*given)
    net = wide.net()
    names = sorted(only or recipes(wide, net))
    print(f"\n{size(trainable(net)):,} parameters, {len(given.clients)} clients\n", flush=True)
    found = []
    for name in names:
        # Forked, so that what is loaded is not loaded again.
        with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
            found.append(pool.submit(measured, wide, name).result())
        print(" ".join(found[-1]), flush=True)
    print("\n" + table([*Cost._fields], [[*one] for one in found]))
    return found


def measured(given: Problem, name: str) -> Cost:
    """Return what a recipe costs, measured in this process."""
    torch.set_num_threads(1)
    time.perf_counter = time.process_time
    figures = {client: one.figures() for client, one in devices(given).items()}
    made, reports = recipes(given, given.net()), list[RoundReport]()
    with bf.InProcess(given.clients, devices=figures) as pool:
        list(rounds(made["fed_avg"](), pool, rounds=1))
    with grown() as most, bf.InProcess(given.clients, devices=figures) as pool:
        reports += rounds(made[name](), pool, rounds=ROUNDS, seed=given.seed)
    several = reports[1:] or reports
    client_s = statistics.fmean(sum(row.seconds for row in one.rows) for one in several)
    all_s = statistics.fmean(one.seconds for one in several)
    down, up = (
        statistics.fmean(bits(one.rows, way) for one in several) / 8e3 / len(given.clients)
        for way in ("down", "up")
    )
    numbers = f"{all_s - client_s:.3f}", f"{client_s:.2f}", f"{most[0]:.1f}"
    return Cost(name, *numbers, f"{down:.0f}", f"{up:.0f}")


def write(found: Sequence[Cost]) -> None:
    """Write the table that the page of benchmarks shows; recipes that were not run stay."""
    with FILE.open("a+", encoding="utf-8", newline="") as lines:
        lines.seek(0)
        known = {row["recipe"]: Cost(**row) for row in csv.DictReader(lines, delimiter="\t")}
        known |= {one.recipe: one for one in found}
        lines.truncate(0)
        writer = csv.writer(lines, delimiter="\t", lineterminator="\n")
        writer.writerows([Cost._fields, *(known[name] for name in sorted(known))])
