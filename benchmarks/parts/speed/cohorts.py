"""What batching the steps of many small clients is worth, and where it is worth nothing.

    python benchmarks/speed.py --only cohorts [--check]

Cohort: a FedAvg round of 100 clients, an MLP 64-32-10 and 100 steps of 16 each, by
``InProcess(data, cohort="auto")``, one by one, and by a bare PyTorch loop, with bytes, digests and
checks in the first two. Choice: what "auto" does there and with an MLP 784-256-256-10 and batches
of 64. Table: seconds of a round with a cohort over those without, by network, rows a step and
clients; the rule of `bayesfed.federated.clients.cohorts` was read from it (left out by --check).
One thread, processor seconds, so that others at work disturb little.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise

import torch
from parts.shared.targets import interleaved, ratio, target, tiny
from torch.nn import functional
from tqdm import tqdm

import bayesfed as bf
from bayesfed.federated import rounds
from bayesfed.inspect import table

SMALL, LARGE = (64, 32, 10), (784, 256, 256, 10)
NETS = (
    SMALL,
    (64, 128, 10),
    (64, 128, 64, 10),
    (784, 32, 10),
    (784, 64, 10),
    (784, 256, 10),
    LARGE,
)
CLIENTS, STEPS, BATCH, RATE = 100, 100, 16, 0.05
CROWDS, ROWS = (8, 16, 64), (16, 64)


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    check = options.check
    torch.set_num_threads(1)
    data, net = federation(SMALL, CLIENTS, 4 * BATCH), bf.mlp(list(SMALL), bf.Key(0, "net"))
    algorithm = bf.fed_avg(
        net, training=bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(RATE))
    )
    alone, cohort = bf.InProcess(data), bf.InProcess(data, cohort="auto")
    states = [list(rounds(algorithm, pool, rounds=3))[-1].state for pool in (alone, cohort)]
    apart = max(float((left - states[1][name]).abs().max()) for name, left in states[0].items())
    work = {
        "bare": lambda: bare(SMALL, list(data.values())),
        "one by one": lambda: list(rounds(algorithm, alone, rounds=1)),
        "cohort": lambda: list(rounds(algorithm, cohort, rounds=1)),
    }
    seconds = interleaved(work, 5 if check else 15, clock=time.process_time)
    for name, values in seconds.items():
        found = (
            f"{statistics.median(values):6.3f} s a round, {ratio(values, seconds['bare']):.3f} "
            "of the bare loop"
        )
        print(f"{CLIENTS} clients of {'-'.join(map(str, SMALL))}, {name:<10} {found}")
    chosen = {"small": shares(algorithm, cohort), "large": large()}
    for name, counts in chosen.items():
        print(f"{name}: {counts}")
    yield target("cohort / bare loop", ratio(seconds["cohort"], seconds["bare"]), 0.2)
    yield tiny("cohort, one by one: entries apart after 3 rounds", apart, 1e-6)
    yield target(
        "small networks not batched",
        float(sum(chosen["small"].values()) - chosen["small"]["batched"]),
        0,
    )
    yield target("large networks batched", float(chosen["large"]["batched"]), 0)
    if not check:
        print(grid())


def federation(widths: tuple[int, ...], clients: int, rows: int) -> dict[str, bf.Dataset]:
    """Return random rows for each client."""
    generator = bf.Key(0, "rows").generator()
    return {
        f"client-{k:04d}": bf.Dataset(
            torch.rand(rows, widths[0], generator=generator),
            torch.randint(0, widths[-1], (rows,), generator=generator),
        )
        for k in range(clients)
    }


def bare(
    widths: tuple[int, ...], data: list[bf.Dataset], steps: int = STEPS, batch: int = BATCH
) -> None:
    """Run one FedAvg round by hand."""
    for _ in bare_turns(widths, data, steps, batch):
        pass


def bare_turns(
    widths: tuple[int, ...], data: list[bf.Dataset], steps: int, batch: int
) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the weighted sum of what was trained, after every client."""
    twin = bf.mlp(list(widths), bf.Key(0, "net"))
    initial = {name: value.detach().clone() for name, value in twin.named_parameters()}
    total = {name: torch.zeros_like(value) for name, value in initial.items()}
    for number, part in enumerate(data):
        twin.load_state_dict(initial)
        optimiser = torch.optim.SGD(twin.parameters(), RATE)
        generator, start, order = torch.Generator().manual_seed(number), len(part), torch.empty(0)
        for _ in range(steps):
            if start + batch > len(part):
                order, start = torch.randperm(len(part), generator=generator), 0
            rows = order[start : start + batch]
            start += batch
            optimiser.zero_grad()
            functional.cross_entropy(twin(part.inputs[rows]), part.targets[rows]).backward()
            optimiser.step()
        for name, value in twin.named_parameters():
            total[name] += value.detach() / len(data)
        yield total


def shares(algorithm: bf.federated.Algorithm, pool: bf.InProcess) -> dict[str, int]:
    """Return what a pool's cohorts did in one more round."""
    assert pool.cohorts is not None
    pool.cohorts.turns.clear()
    list(rounds(algorithm, pool, rounds=1))
    return {"batched": 0, **pool.cohorts.turns["train"]}


def large() -> dict[str, int]:
    """Return what "auto" does with networks that keep a core busy by themselves."""
    algorithm = bf.fed_avg(
        bf.mlp(list(LARGE), bf.Key(0, "net")), training=bf.Training(steps=1, batch_size=64)
    )
    return shares(algorithm, bf.InProcess(federation(LARGE, 16, 64), cohort="auto"))


def grid() -> str:
    """Measure cohorts of every size and shape."""
    lines = list[list[str | float | int]]()
    for widths in tqdm(NETS, desc="networks"):
        parameters = sum(above * below + below for above, below in pairwise(widths))
        for rows in ROWS:
            found = [relative(widths, rows, clients) for clients in CROWDS]
            lines.append(
                [
                    "-".join(map(str, widths)),
                    f"{parameters:,}",
                    rows,
                    f"{parameters * rows:,}",
                    *(f"{value:.2f}" for value in found),
                ]
            )
    return table(
        ["network", "parameters", "rows", "product", *(f"{clients} clients" for clients in CROWDS)],
        lines,
    )


def relative(widths: tuple[int, ...], rows: int, clients: int) -> float:
    """Return the seconds of a round with a cohort over those without."""
    data, steps = federation(widths, clients, 4 * rows), max(4, 200 // clients)
    algorithm = bf.fed_avg(
        bf.mlp(list(widths), bf.Key(0, "net")), training=bf.Training(steps=steps, batch_size=rows)
    )
    alone, cohort = bf.InProcess(data), bf.InProcess(data, cohort=clients)
    work = {
        "alone": lambda: list(rounds(algorithm, alone, rounds=1)),
        "cohort": lambda: list(rounds(algorithm, cohort, rounds=1)),
    }
    seconds = interleaved(work, 3, clock=time.process_time)
    return ratio(seconds["cohort"], seconds["alone"])
