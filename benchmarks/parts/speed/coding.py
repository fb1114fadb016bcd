"""How fast codecs are: encode and decode of a million-weight update, beside a plain loop over the
bytes that go in.

    python benchmarks/speed.py --only coding [--check]

The update is an MLP's, 784-1000-215-10: Gaussian, of another sd in every leaf. `PosteriorGrid` has
the means of that as dense leaves with one sd; D-Turbo-VBI's message is the 15 % of them that lie in
a support of clusters, and the support, whole or as what changed of it since the last round; the
whole one travels once and has no target. Each runs on one thread; seconds are the processor's, the
shortest encode and the shortest decode, and MB/s the input's bytes over both. How many MB/s there
are depends on the machine, so the targets compare encode and decode together with a plain loop over
the input's bytes in the same run (`parts/shared/plain.py`). Then the ledger: the rows of a round
and their sums against one FedAvg round of `engine.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from parts.shared.plain import plain_loop, turns
from parts.shared.targets import interleaved, ratio, target
from parts.speed.cohorts import federation
from parts.speed.engine import BATCH, CLIENTS, STEPS, WIDTHS

import bayesfed as bf
from bayesfed.compress import Cast, Codec, Coded, Float, Lattice, PosteriorGrid, Qsgd, Ternary, TopK
from bayesfed.compress.lossless.ranges import Range
from bayesfed.federated import rounds
from bayesfed.federated.core.costs import Cost
from bayesfed.federated.engine.reports import Row, bits
from bayesfed.inspect import table
from bayesfed.keys import Key
from bayesfed.trees import Tree

SHAPES = {
    "0.weight": (1000, 784),
    "0.bias": (1000,),
    "2.weight": (215, 1000),
    "2.bias": (215,),
    "4.weight": (10, 215),
    "4.bias": (10,),
}
SDS = (0.002, 0.01, 0.004, 0.01, 0.02, 0.03)
DENSITY, ROWS = 0.15, 3000
# Passes of the plain loop that encode and decode may take. The slowest codec takes 16.
MOST_LOOPS = 40.0
# Sent once to a client, an arithmetic code entry by entry: the coder alone takes a third of the
# time. It has no target.
WHOLE = "D-Turbo-VBI, support"


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether each target is met."""
    check = options.check
    torch.set_num_threads(1)
    cases = messages()
    size = 4 * sum(torch.Size(shape).numel() for shape in SHAPES.values())
    update = cases["Cast(16)"][1]
    work: dict[str, Callable[[], object]] = {
        "copy": lambda: {name: leaf.clone() for name, leaf in update.items()},
        "loop": plain_loop(size),
    }
    sent = {}
    for name, (codec, tree) in cases.items():
        sent[name] = codec.encode(tree, {}, Key(0))
        work[f"{name} encode"] = partial(codec.encode, tree, {}, Key(0))
        work[f"{name} decode"] = partial(codec.decode, sent[name], Key(0))
    seconds = {
        name: min(values)
        for name, values in interleaved(work, 7 if check else 25, clock=time.process_time).items()
    }
    loop = seconds["loop"] / turns(size)
    loops, rows = {}, list[list[str | float | int]]()
    for name, message in sent.items():
        encode, decode = seconds[f"{name} encode"], seconds[f"{name} decode"]
        loops[name] = (encode + decode) / loop
        bits_a_weight = 32 * len(message) / size
        speeds = [size / taken / 1e6 for taken in (encode, decode, encode + decode)]
        rows.append([name, bits_a_weight, *speeds, loops[name]])
    headings = ["codec", "bits a weight", "encode, MB/s", "decode, MB/s", "both, MB/s", "loops"]
    print(table(headings, rows))
    for work_name, taken in (("copying the update", seconds["copy"]), ("plain loop", loop)):
        print(f"{work_name}: {size / taken / 1e6:.0f} MB/s")
    print()
    for name, times in loops.items():
        if name != WHOLE:
            yield target(f"{name}, encode and decode / plain loop", times, MOST_LOOPS)
    yield ledger(check)


def messages() -> dict[str, tuple[Codec, Tree]]:
    """Return codecs and what they encode."""
    generator = Key(0, "update").generator()
    update = {
        name: sd * torch.randn(shape, generator=generator)
        for (name, shape), sd in zip(SHAPES.items(), SDS, strict=True)
    }
    dense = {f"mean/{name}" if leaf.ndim > 1 else name: leaf for name, leaf in update.items()} | {
        "shared/sd": torch.tensor(0.002)
    }
    first, later = dict(dense), dict(dense)
    for name, shape in SHAPES.items():
        if len(shape) > 1:
            noise = torch.nn.functional.avg_pool2d(
                torch.randn(1, *shape, generator=generator), 5, 1, 2
            )[0]
            support = noise > noise.flatten().kthvalue(int((1 - DENSITY) * noise.numel())).values
            moved = (
                noise > noise.flatten().kthvalue(int((1 - DENSITY + 0.002) * noise.numel())).values
            ) ^ support
            first[f"mean/{name}"] = later[f"mean/{name}"] = update[name][support]
            first[f"support/{name}"], later[f"support/{name}"] = support, moved
    return {
        "Cast(16)": (Cast(16), update),
        "Coded(Float(16))": (Coded(Float(16)), update),
        "Coded(Float(16, Range()))": (Coded(Float(16, Range())), update),
        "Coded(Qsgd(7, bucket=512))": (Coded(Qsgd(7, bucket=512)), update),
        "Coded(Lattice(bits=3))": (Coded(Lattice(bits=3)), update),
        "Coded(Ternary(0.01))": (Coded(Ternary(0.01)), update),
        "Coded(TopK(0.01))": (Coded(TopK(0.01)), update),
        "PosteriorGrid(0.01)": (PosteriorGrid(0.01), dense),
        WHOLE: (PosteriorGrid(0.01), first),
        "D-Turbo-VBI, changes": (PosteriorGrid(0.01), later),
    }


def ledger(check: bool) -> bool:
    """Time the rows of a round and their sums against a round; return whether the target is met."""
    data = federation(WIDTHS, CLIENTS, ROWS)
    algorithm = bf.fed_avg(
        bf.mlp(list(WIDTHS), Key(0, "net")),
        training=bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(0.05)),
    )
    pool, message = bf.InProcess(data), bytes(1000)
    start = time.perf_counter()
    list(rounds(algorithm, pool, rounds=1))
    print(f"\na round of FedAvg: {time.perf_counter() - start:.3f} s")

    def account() -> int:
        found = [
            Row(client, 0, "train", direction, Cost(8 * len(message)), 0.1)
            for client in data
            for direction in ("down", "up")
        ]
        return bits(found, "down") + bits(found, "up")

    work = {
        "rows": lambda: [account() for _ in range(1000)],
        "round": lambda: list(rounds(algorithm, pool, rounds=1)),
    }
    seconds = interleaved(work, 2 if check else 7)
    share = ratio(seconds["rows"], seconds["round"]) / 1000
    print(
        f"the ledger of {CLIENTS} clients: {1e3 * statistics.median(seconds['rows']):.1f} "
        "microseconds a round"
    )
    return target("ledger / round", share, 0.01)
