"""Both cores: worker processes and ranks against the bare loop, and the bits of recipes on 1, 2 and
3 ranks.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from parts.shared.targets import at_least, ratio, target
from parts.speed.cohorts import bare, federation
from parts.speed.engine import BATCH, CLIENTS, PEERS, STEPS, WIDTHS, against_peers

import bayesfed as bf
from bayesfed.federated import rounds
from tests.support import recipes
from tests.support.records import untimed

ROOT = Path(__file__).resolve().parents[3]
SAMPLE = (
    "fed_avg",
    "scaffold",
    "stc",
    "fed_avg on air",
    "flex_lora",
    "fed_rlr points",
    "hetero_fl",
    "d_turbo_vbi",
)


def launch(
    script: Path,
    ranks: int,
    arguments: Sequence[object],
    *,
    options: Sequence[str] = ("--standalone",),
) -> subprocess.Popen[str]:
    """Start a job of so many processes on this machine."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        *options,
        f"--nproc-per-node={ranks}",
        str(script),
        *map(str, arguments),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "benchmarks")]),
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Print the targets of ranks, and yield whether each is met."""
    torch.set_num_threads(1)
    yield _workers(5 if options.check else 15)
    yield _ranks(5 if options.check else 15)
    against_peers(
        ROOT / "build" / "engines", 3 if options.check else 8, {"flower2": PEERS["flower2"]}
    )
    names = SAMPLE if options.check else tuple(recipes.tiny_recipes())
    same = sum(_same(names, ranks) for ranks in (1, 2, 3))
    yield at_least(
        f"{len(names)} recipes on 1, 2 and 3 ranks, share with the bits of one process",
        same / (3 * len(names)),
        1.0,
    )


def _workers(repeats: int) -> bool:
    data = federation(WIDTHS, CLIENTS, STEPS * BATCH)
    algorithm = bf.fed_avg(
        bf.mlp(list(WIDTHS), bf.Key(0, "net")),
        training=bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(0.05)),
    )
    loop, ours = list[float](), list[float]()
    with bf.InProcess(data, workers=2) as pool:

        def training() -> Iterator[float]:
            for report in rounds(algorithm, pool, rounds=repeats + 1):
                yield report.seconds

        for seconds in training():
            ours.append(seconds)
            start = time.perf_counter()
            bare(WIDTHS, list(data.values()), STEPS, BATCH)
            loop.append(time.perf_counter() - start)
    print(
        f"two workers: median {statistics.median(ours[1:]):.3f} s a round, bare loop "
        f"{statistics.median(loop[1:]):.3f} s"
    )
    return target("round with workers=2 / bare loop", ratio(ours[1:], loop[1:]), 0.60)


def _ranks(repeats: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds.json"
        job = launch(Path(__file__).with_name("rank_job.py"), 2, (file, repeats))
        said, _ = job.communicate(timeout=600)
        if job.returncode:
            raise RuntimeError(said[-2000:])
        seconds = json.loads(file.read_text())
    print(
        f"two ranks: median {statistics.median(seconds['ranks']):.3f} s a round, bare loop "
        f"{statistics.median(seconds['bare']):.3f} s"
    )
    return target("round on two ranks / bare loop", ratio(seconds["ranks"], seconds["bare"]), 0.60)


def _same(names: Sequence[str], ranks: int) -> int:
    """Return how many recipes have on so many ranks the state, memories and records of one
    process.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        job = launch(
            ROOT / "tests" / "federated" / "clients" / "ranks_job.py", ranks, (out, folder, *names)
        )
        said, _ = job.communicate(timeout=900)
        if job.returncode:
            raise RuntimeError(said[-2000:])
        outcome: dict[str, Any] = pickle.loads(out.with_suffix(".0").read_bytes())
    made, equal = recipes.tiny_recipes(), 0
    for name in names:
        tiny = made[name]()
        run = bf.run(tiny.algorithm, tiny.pool(), rounds=2, progress=False, on_client_error="drop")
        trees = {"": run.snapshot.state, **run.snapshot.memories}
        state, memories, records = outcome[name]
        alike = _equal(trees, {"": state, **memories}) and records == [
            untimed(record) for record in run.history
        ]
        print(f"  {name}, {ranks} ranks: {'the same' if alike else 'other bits'}")
        equal += alike
    return equal


def _equal(
    left: dict[str, dict[str, torch.Tensor]], right: dict[str, dict[str, torch.Tensor]]
) -> bool:
    return left.keys() == right.keys() and all(
        tree.keys() == right[name].keys()
        and all(torch.equal(leaf, right[name][part]) for part, leaf in tree.items())
        for name, tree in left.items()
    )
