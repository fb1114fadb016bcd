"""What every process of a timed job runs: ``torchrun ... benchmarks/parts/scale_out/rank_job.py
FILE REPEATS``.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
from parts.speed.cohorts import bare, federation
from parts.speed.engine import BATCH, CLIENTS, STEPS, WIDTHS

import bayesfed as bf
from bayesfed.federated import rounds


def main(file: Path, repeats: int) -> None:
    """Time rounds on all ranks and, before each, the bare loop on rank 0 alone; write both."""
    torch.set_num_threads(1)
    data = federation(WIDTHS, CLIENTS, STEPS * BATCH)
    algorithm = bf.fed_avg(
        bf.mlp(list(WIDTHS), bf.Key(0, "net")),
        training=bf.Training(steps=STEPS, batch_size=BATCH, optimiser=bf.Sgd(0.05)),
    )
    seconds: dict[str, list[float]] = {"bare": [], "ranks": []}
    with bf.federated.Ranks(data) as pool:
        for _ in range(repeats + 1):
            if pool.group.rank == 0:
                start = time.perf_counter()
                bare(WIDTHS, list(data.values()), STEPS, BATCH)
                seconds["bare"].append(time.perf_counter() - start)
            pool.group.wait()
            start = time.perf_counter()
            list(rounds(algorithm, pool, rounds=1))
            seconds["ranks"].append(time.perf_counter() - start)
        if pool.group.rank == 0:
            file.write_text(json.dumps({name: values[1:] for name, values in seconds.items()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
