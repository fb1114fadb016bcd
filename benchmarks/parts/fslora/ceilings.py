"""What adapters can gain at most on the rows of `fslora.py`: one client that has them all, the head
alone and adapters of rank 8 and 64.

    python benchmarks/fslora.py --data FOLDER --only ceilings [--check]

Held-out rows are scored, training rows that no run trains on. What the head alone does not reach is
the adapters'; what rank 64 has over rank 8 is the most that unlike ranks can cost. --check: the
last two layers, two epochs; exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from parts.fslora.bench import Bench
from parts.shared.settings import settings_of
from parts.shared.targets import at_least
from tqdm import tqdm

from bayesfed.inspect import table

CASES = {
    "head alone": "head alone",
    "rank 8": "federated LoRA, rank 8",
    "rank 64": "federated LoRA",
}
GAIN = 1.0


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether the target is met."""
    torch.set_num_threads(1)
    out, document = options.out or Path("results/fslora"), settings_of("fslora")
    asked, gains = document["ceilings"], list[float]()
    rows: list[list[str | float | int]] = []
    for place in tqdm(
        [asked["check"]] if options.check else asked["places"], desc="places", unit="place"
    ):
        scales = {
            place: {
                **asked["all"],
                **asked["places"][place],
                "rounds": 2 if options.check else asked["epochs"],
            }
        }
        bench = Bench(
            {**document, "scales": scales},
            place,
            options.data,
            out / "search",
            [0],
            0,
            held_out=True,
        )
        found = {
            name: bench.runs(case, learning_rate=asked["rates"][name])[0]
            for name, case in CASES.items()
        }
        for name, run in found.items():
            epochs = ", ".join(f"{100 * sum(row[3:]) / len(run.domains):.1f}" for row in run.rows)
            rows.append(
                [
                    place,
                    name,
                    f"{run.settings['learning_rate']:g}",
                    epochs,
                    f"{100 * run.last():.2f}",
                ]
            )
        gains.append(100 * (found["rank 64"].last() - found["head alone"].last()))
    print("\naccuracy %, one client with all rows, held-out rows, one seed\n")
    print(table(["adapters in", "adapters", "rate", "after each epoch", "last two"], rows))
    if options.check:
        yield at_least("two layers: points of rank 64 above the head alone", gains[0], GAIN)
