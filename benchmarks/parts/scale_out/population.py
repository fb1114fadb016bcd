"""A million clients of 16 rows: start, a round of a hundred, and the memory that a million answers
leave behind.

    python benchmarks/scale_out.py --only population --check

Seconds are processor seconds of one thread, since the machine is shared; their targets are ratios
to a round of a hundred of a thousand clients in the same process. Memory is the resident set over
that of the same process after that. For the million answers, `run` asks a thousand clients a round;
each keeps a memory, and answers at once, without training. The records and what is beyond the bound
of memories are on disk. With `--check`, a hundred thousand answers
pass through versions, memories and records as the engine hands them over, and the growth is
multiplied by ten where it grows with the answers.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from parts.shared.targets import target

import bayesfed as bf
from bayesfed.data.population import Names
from bayesfed.federated import Algorithm, Fit, Kind, RoundReport, rounds
from bayesfed.federated.clients.memory.table import Memories
from bayesfed.federated.clients.rosters import Numbers
from bayesfed.federated.core.costs import Cost
from bayesfed.federated.engine.files.records import history_in
from bayesfed.federated.engine.reports import Record, Row
from bayesfed.trees import Tree

CLIENTS, ROWS, ASKED = 1_000_000, 16, 100
# Rounds of a hundred of a thousand clients that the start of a million, and a round of a hundred of
# them, may take.
MOST_START, MOST_ROUND = 5.0, 1.5
KEY = bf.Key(0, "population")


def resident() -> float:
    """Return the resident set of this process in megabytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def rows(name: str) -> bf.Dataset:
    """Return the rows of a client, drawn from its name."""
    inputs = torch.randn(ROWS, 10, generator=KEY.child(name).generator())
    return bf.Dataset(inputs, (inputs[:, 0] > 0).long())


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure, print a line for every target, and yield whether it is met."""
    net = bf.mlp([10, 16, 2], KEY)
    algorithm = bf.fed_avg(net, training=bf.Training(steps=1, batch_size=ROWS))
    # What both runs need is imported by a run of two clients, with a checkpoint's worth of engine.
    bf.run(algorithm, {name: rows(name) for name in ("a", "b")}, rounds=1, progress=False)
    _, thousand = start_and_round(algorithm, 10 * ASKED)
    bare = resident()
    start, million = start_and_round(algorithm, CLIENTS)
    print(f"a million clients: start {start:.3f} s, a round of {ASKED} {million:.3f} s")
    print(f"a thousand clients: a round of {ASKED} {thousand:.3f} s")
    yield target("a million clients, start / round of a thousand", start / thousand, MOST_START)
    yield target("a million clients, round / round of a thousand", million / thousand, MOST_ROUND)
    yield target("a million clients, memory over the bare process (MB)", resident() - bare, 150.0)
    with tempfile.TemporaryDirectory() as folder:
        if options.check:
            fixed, grown = passed_on(Path(folder), 10**5)
            left = fixed + 10 * grown
        else:
            left = answered(Path(folder))
    yield target("memory that 10^6 answers leave (MB)", left, 100.0)


def start_and_round(algorithm: Algorithm, clients: int) -> tuple[float, float]:
    """Return the seconds before the first round of so many clients, and those of a round of
    `ASKED` of them, the median of eleven.
    """
    begin = time.process_time()
    pool = bf.InProcess(bf.data.Population(clients, ROWS, rows))
    asked = rounds(algorithm, pool, rounds=12, sampler=bf.fraction(ASKED / clients))
    next(asked)
    first = time.process_time() - begin
    seconds = list[float]()
    for report in asked:
        seconds.append(time.process_time() - begin - first - sum(seconds))
        assert len(report.clients) == ASKED
    each = statistics.median(seconds)
    return first - each, each


class Answering:
    """Clients that answer at once: no change of the model, and a memory that counts their
    answers.
    """

    kind: Kind = "delta"

    def fit(
        self, message: Tree, memory: Tree, data: bf.Dataset, key: bf.Key, options: object
    ) -> Fit:
        """Return zeros."""
        count = memory.get("count", torch.zeros(32)) + 1
        return Fit(
            {name: torch.zeros_like(leaf) for name, leaf in message.items()},
            {"count": count},
            {"loss": 0.5},
        )


def answered(folder: Path) -> float:
    """Let a million clients answer in a run, and return the megabytes by which the process has
    grown since its first round.
    """
    algorithm, one, after = (
        bf.compose("answering", torch.nn.Linear(10, 2, bias=False), Answering()),
        rows("any"),
        list[float](),
    )
    pool = bf.InProcess(bf.data.Population(CLIENTS, ROWS, lambda name: one), memory_bytes=1 << 24)

    def note(report: RoundReport) -> None:
        if report.round % 100 in (0, 99):
            after.append(resident())
            print(
                (
                    f"  after {report.round + 1:,} rounds of 1,000 answers: "
                    f"{after[-1] - after[0]:.1f} MB more"
                ),
                flush=True,
            )

    result = bf.run(
        algorithm,
        pool,
        rounds=1000,
        sampler=bf.fraction(1e-3),
        callbacks=[note],
        records=folder,
        progress=False,
    )
    assert len(result.history) == 1000
    return after[-1] - after[0]


def passed_on(folder: Path, count: int) -> tuple[float, float]:
    """Pass answers of ever new clients on as the engine does; return megabytes of what is there
    from the first round on, and of the growth.
    """
    names, bound = Names(CLIENTS), 1 << 24
    before = resident()
    memories, versions, history = (
        Memories(names, bound, folder),
        Numbers(names),
        history_in(folder),
    )
    snapshots: list[object] = []

    def one(number: int) -> None:
        nonlocal versions
        chosen = [names[(number * ASKED + place) * 7919 % CLIENTS] for place in range(ASKED)]
        for name in chosen:
            memories.pend(name, {"site": torch.full((32,), float(number))})
            memories.settle(name, True)
        versions = versions.updated(dict.fromkeys(chosen, number))
        both = tuple(
            Row(name, number, "train", way, Cost(10_000), 0.001)
            for name in sorted(chosen)
            for way in ("down", "up")
        )
        history.append(
            Record(
                round=number,
                rows=both,
                clients={name: {"loss": 0.5} for name in chosen},
                server={},
                seconds=0.1,
            )
        )
        # The last snapshot is kept, as a run does.
        snapshots[:] = [versions, memories.taken()]

    # Until the bound is reached memories grow by design: this is counted once.
    filled = 2 * bound // (1 << 11) // ASKED
    for number in range(filled):
        one(number)
    middle = resident()
    for number in range(filled, count // ASKED):
        one(number)
    assert len(history) == max(count // ASKED, filled)
    return middle - before, max(resident() - middle, 0.0)
