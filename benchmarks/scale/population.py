"""A million clients of 16 rows: start, a round of a hundred, and the memory that a million answers leave behind.

    python benchmarks/scale/population.py --check

Seconds are processor seconds of one thread, since the machine is shared. Memory is the resident set over that of the same process after a run of two
clients. A million answers pass through the versions, the memories beyond their bound and the records on disk, as the engine hands them over; the
clients' training, hours of it, is left out. With `--check` it is a hundred thousand, and the growth is multiplied by ten where it grows with the
answers.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from targets import is_check, target

import bayesfed as bf
from bayesfed.data.population import Names
from bayesfed.federated import rounds
from bayesfed.federated.clients.memory.table import Memories
from bayesfed.federated.clients.rosters import Versions
from bayesfed.federated.core.costs import Cost
from bayesfed.federated.engine.files.records import history_in
from bayesfed.federated.engine.ledger import Row
from bayesfed.federated.engine.reports import Record

CLIENTS, ROWS, ASKED = 1_000_000, 16, 100
KEY = bf.Key(0, "population")


def resident() -> float:
    """Return the resident set of this process in megabytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6


def rows(name: str) -> bf.Dataset:
    """Return the rows of a client, drawn from its name."""
    inputs = torch.randn(ROWS, 10, generator=KEY.child(name).generator())
    return bf.Dataset(inputs, (inputs[:, 0] > 0).long())


def targets(check: bool) -> bool:
    """Measure, print a line for every target, and return whether all are met."""
    net = bf.mlp([10, 16, 2], KEY)
    algorithm = bf.fed_avg(net, training=bf.Training(steps=1, batch_size=ROWS))
    # What both runs need is imported by a run of two clients, with a checkpoint's worth of engine.
    bf.run(algorithm, {name: rows(name) for name in ("a", "b")}, rounds=1, progress=False)
    bare, start = resident(), time.process_time()
    pool = bf.InProcess(bf.Population(CLIENTS, ROWS, rows))
    asked = rounds(algorithm, pool, rounds=12, sampler=bf.fraction(ASKED / CLIENTS))
    next(asked)
    first = time.process_time() - start
    seconds = list[float]()
    for report in asked:
        seconds.append(time.process_time() - start - first - sum(seconds))
        assert len(report.clients) == ASKED
    each = sorted(seconds)[len(seconds) // 2]
    met = [
        target("a million clients, start (s)", first - each, 1.0),
        target("a million clients, a round of 100 (s)", each, 0.3),
        target("a million clients, memory over the bare process (MB)", resident() - bare, 150.0),
    ]
    count = 10**5 if check else 10**6
    with tempfile.TemporaryDirectory() as folder:
        fixed, grown = answers(Path(folder), count)
    return all([*met, target("memory that 10^6 answers leave (MB)", fixed + grown * 10**6 / count, 100.0)])


def answers(folder: Path, count: int) -> tuple[float, float]:
    """Pass answers of ever new clients on as the engine does; return megabytes of what is there from the first round on, and of the growth."""
    names, bound = Names(CLIENTS), 1 << 24
    before = resident()
    memories, versions, history = Memories(names, bound, folder), Versions(names), history_in(folder)
    snapshots: list[object] = []

    def one(number: int) -> None:
        nonlocal versions
        chosen = [names[(number * ASKED + place) * 7919 % CLIENTS] for place in range(ASKED)]
        for name in chosen:
            memories.pend(name, {"site": torch.full((32,), float(number))})
            memories.settle(name, True)
        versions = versions.updated(dict.fromkeys(chosen, number))
        both = tuple(Row(name, number, "train", way, Cost(10_000), 0.001) for name in sorted(chosen) for way in ("down", "up"))
        history.append(Record(round=number, rows=both, clients={name: {"loss": 0.5} for name in chosen}, server={}, seconds=0.1))
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


if __name__ == "__main__":
    sys.exit(0 if targets(is_check(__doc__ or "")) else 1)
