"""What the engine costs: FedAvg rounds against a bare PyTorch loop that does the same work, and
against other engines.

    python benchmarks/speed.py --only engine [--check] [--peers DIR]

Round: 10 clients x 100 SGD steps of 64 on an MLP 784-256-256-10 with random images, one thread,
float32 messages as real bytes in both directions. The bare loop copies weights in memory, trains
and averages: no messages, no checks, no ledger. Gate: the share of a round's time between an
answer's arrival and its decoding (size, digest, envelope, header, figures). Clients: a thousand of
an MLP 64-32-10, ten steps of 16. These are in processor seconds, in turn (the first client by
client), so that others at work disturb little. Peers: the same rounds by pfl-research and by
Flower's simulation, each in a process and an environment of its own, by the clock and without their
first round; the bare loop runs before and after each.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import torch
from parts.shared.targets import calls_timed, interleaved, ratio, target
from parts.speed.cohorts import SMALL, bare, bare_turns, federation
from tqdm import tqdm

import bayesfed as bf
from bayesfed.federated import rounds
from bayesfed.federated.clients.side import Sides
from bayesfed.federated.clients.turn import Outcome, Task
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.engine.exchange import Admission
from bayesfed.inspect import table

WIDTHS, CLIENTS, STEPS, BATCH = (784, 256, 256, 10), 10, 100, 64
TINY, TINY_STEPS, TINY_BATCH = 1000, 10, 16
PEERS = {
    "pfl": "pfl-research 0.6.0, SimulatedBackend",
    "flower": "Flower 1.41 simulation as it comes, one actor",
    "flower2": "Flower 1.41 simulation, one core a client (more than one core)",
}
ROOT = Path(__file__).parents[3]
PEER = Path(__file__).parents[1] / "peers" / "engines.py"


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    torch.set_num_threads(1)
    print(
        f"load average before the start: {os.getloadavg()[0]:.2f} on "
        f"{len(os.sched_getaffinity(0))} cores"
    )
    yield one_round(11 if options.check else 25)
    many(2 if options.check else 5)
    against_peers(options.peers, 3 if options.check else 8)


class InTurn(bf.InProcess):
    """A pool; after each of its clients the bare loop trains one, so that both meet the same
    machine.
    """

    widths: tuple[int, ...] = WIDTHS
    steps, batch = STEPS, BATCH
    loop: Iterator[object] = iter(())
    bare_s = 0.0

    def map(self, sides: Sides, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Map as a pool does; note what the bare loop took in between."""
        for turn in super().map(sides, tasks):
            start = time.process_time()
            next(self.loop)
            self.bare_s += time.process_time() - start
            yield turn

    def seconds(self, algorithm: Algorithm) -> tuple[float, float]:
        """Make one round of both; return the engine's seconds and the loop's."""
        # In another order, so that neither finds rows in the cache that the other has just read.
        data = [self._data[profile.name] for profile in reversed(self.profiles)]
        self.loop, self.bare_s = bare_turns(self.widths, data, self.steps, self.batch), 0.0
        gc.collect()
        start = time.process_time()
        list(rounds(algorithm, self, rounds=1))
        return time.process_time() - start - self.bare_s, self.bare_s


def one_round(repeats: int) -> bool:
    """Compare a round with the bare loop."""
    data = federation(WIDTHS, CLIENTS, STEPS * BATCH)
    algorithm = bf.fed_avg(
        bf.mlp(list(WIDTHS), bf.Key(0, "net")),
        training=bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(0.05)),
    )
    pool = InTurn(data)
    pool.seconds(algorithm)
    # Between an answer's arrival and its decoding.
    with calls_timed(Admission, "admit") as gate:
        found = [pool.seconds(algorithm) for _ in tqdm(range(repeats), desc="rounds")]
    seconds = {
        name: list(values)
        for name, values in zip(("engine", "bare"), zip(*found, strict=True), strict=True)
    }
    for name, values in seconds.items():
        print(
            f"{name:<7} median {statistics.median(values):.3f} s a round, "
            f"{min(values):.3f} to {max(values):.3f}"
        )
    share = statistics.median(gate) * CLIENTS / statistics.median(seconds["engine"])
    print(
        f"gate: {1e3 * statistics.median(gate):.2f} ms an answer of "
        f"{4 * 269_322 / 1e6:.2f} MB, {100 * share:.2f} % of the round"
    )
    return target("engine round / bare loop", ratio(seconds["engine"], seconds["bare"]), 1.03)


def many(repeats: int) -> None:
    """Time a thousand tiny clients."""
    data = federation(SMALL, TINY, 4 * TINY_BATCH)
    training = bf.Training(steps=TINY_STEPS, batch_size=TINY_BATCH, optimiser=bf.Sgd(0.05))
    algorithm = bf.fed_avg(bf.mlp(list(SMALL), bf.Key(0, "net")), training=training)
    alone, cohort = bf.InProcess(data), bf.InProcess(data, cohort="auto")
    work = {
        "bare": lambda: bare(SMALL, list(data.values()), TINY_STEPS, TINY_BATCH),
        "one by one": lambda: list(rounds(algorithm, alone, rounds=1)),
        "cohorts": lambda: list(rounds(algorithm, cohort, rounds=1)),
    }
    seconds = interleaved(work, repeats, clock=time.process_time)
    for name, values in seconds.items():
        median, times = statistics.median(values), ratio(values, seconds["bare"])
        print(
            f"{TINY} tiny clients, {name:<10} {median:.3f} s a round, "
            f"{1e3 * median / TINY:.2f} ms a client, {times:.2f} x bare"
        )


def against_peers(folder: Path, timed: int, peers: Mapping[str, str] = PEERS) -> None:
    """Compare rounds with those of other engines; say what is left out where they are not
    installed.
    """
    python = folder.absolute() / "bin" / "python"
    if not python.exists():
        print(f"left out, since there is no {python}:")
        for words in peers.values():
            print(f"  round of {words} / bare loop")
        print(
            f"to have them: python3 -m venv {folder} && {folder}/bin/pip install -r "
            f"{PEER.with_suffix('.txt').relative_to(ROOT)}"
        )
        return
    data = federation(WIDTHS, CLIENTS, STEPS * BATCH)
    algorithm = bf.fed_avg(
        bf.mlp(list(WIDTHS), bf.Key(0, "net")),
        training=bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(0.05)),
    )
    pool, lines = bf.InProcess(data), []

    def own() -> tuple[list[float], list[float]]:
        loop, ours = [], []
        for _ in range(timed):
            start = time.perf_counter()
            bare(WIDTHS, list(data.values()), STEPS, BATCH)
            loop.append(time.perf_counter() - start)
            ours += [report.seconds for report in rounds(algorithm, pool, rounds=1)]
        return loop, ours

    loop, ours = own()
    for name, words in tqdm(peers.items(), desc="peers"):
        before = statistics.median(loop), statistics.median(ours)
        done = subprocess.run(
            [str(python), "-I", str(PEER), name, str(CLIENTS), str(timed + 1)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            print(f"left out: {words} failed: {done.stderr.strip()[-500:]}")
            continue
        first, *later = json.loads(done.stdout)
        loop, ours = own()
        median = statistics.median(later)
        around = [
            (early + statistics.median(late)) / 2
            for early, late in zip(before, (loop, ours), strict=True)
        ]
        lines.append([words, median, first, *(median / own_median for own_median in around)])
    median = statistics.median(ours)
    lines.append(["this engine, in process", median, median, median / statistics.median(loop), 1.0])
    print(table(["round of", "median s", "first s", "over bare", "over this engine"], lines))
