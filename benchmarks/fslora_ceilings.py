"""What adapters can gain at most on the rows of `fslora.py`: one client that has them all, the head alone and adapters of rank 8 and 64.

    python benchmarks/fslora_ceilings.py --data FOLDER [--check]

Held-out rows are scored, training rows that no run trains on. What the head alone does not reach is the adapters'; what rank 64 has over rank 8 is
the most that unlike ranks can cost. --check: the last two layers, two epochs; exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

import torch
from fslora import Bench
from targets import at_least
from tqdm import tqdm

from bayesfed.inspect import table

CASES = {"head alone": "head alone", "rank 8": "federated LoRA, rank 8", "rank 64": "federated LoRA"}
GAIN = 1.0


def main() -> int:
    """Run, print; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="the last two layers, two epochs, the target; exit 1 if it is missed")
    parser.add_argument("--data", type=Path, required=True, help="folder with the four *_GroundTruth.txt files")
    parser.add_argument("--out", type=Path, default=Path("results/fslora"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with open(Path(__file__).with_name("fslora.toml"), "rb") as file:
        document = tomllib.load(file)
    asked, gains = document["ceilings"], list[float]()
    rows: list[list[str | float | int]] = []
    for place in tqdm([asked["check"]] if options.check else asked["places"], desc="places", unit="place"):
        scales = {place: {**asked["all"], **asked["places"][place], "rounds": 2 if options.check else asked["epochs"]}}
        bench = Bench({**document, "scales": scales}, place, options.data, options.out / "search", [0], 0, held_out=True)
        found = {name: bench.runs(case, learning_rate=asked["rates"][name])[0] for name, case in CASES.items()}
        for name, run in found.items():
            epochs = ", ".join(f"{100 * sum(row[3:]) / len(run.domains):.1f}" for row in run.rows)
            rows.append([place, name, f"{run.settings['learning_rate']:g}", epochs, f"{100 * run.last():.2f}"])
        gains.append(100 * (found["rank 64"].last() - found["head alone"].last()))
    print("\naccuracy %, one client with all rows, held-out rows, one seed\n")
    print(table(["adapters in", "adapters", "rate", "after each epoch", "last two"], rows))
    return 0 if not options.check or at_least("two layers: points of rank 64 above the head alone", gains[0], GAIN) else 1


if __name__ == "__main__":
    sys.exit(main())
