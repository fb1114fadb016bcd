"""The papers' own data: D-Turbo-VBI, FedHM, FedRLR and AnycostFL on CIFAR-10, each beside rivals of
its paper, on one small network that two processor cores train in an hour or two.

    python benchmarks/cifar10.py [--check]                        # tables, from the records
    python benchmarks/cifar10.py --data cifar-10-batches-bin --record
    python benchmarks/cifar10.py --data FOLDER --cases FedHM HeteroFL Split-Mix

Ten clients, Dirichlet 0.5, one seed; a CNN of 72,986 parameters, 20 rounds of 25 steps of 32 rows,
3.2 passes over the training rows. Messages of both directions are counted, headers included.
FOLDER has the binary version of CIFAR-10. The committed records are of a copy of the data set whose
images were stored as JPEG, so that pixels differ a little. Settings are in
`parts/cifar10/settings.toml`; with --record every run is appended to `records/cifar10.jsonl`, whose
last run of a case with its present settings is shown.

"D-Turbo-VBI" learns its support; "random" keeps the one that clients draw from a key, and trains on
until it has sent as much; "pruned" is dense in the first half of its rounds (16 bits both ways),
then `fed_prune`. On devices, every method has the same budgets of time and energy, and the local
steps that fit. --check: exit status 1 if a case lacks a run.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from parts.cifar10.records import (
    HEADS,
    ON_DEVICES,
    cases,
    costs,
    goal,
    record,
    recorded,
    rows,
)
from parts.cifar10.runs import made
from parts.shared.targets import at_least

import bayesfed as bf
from bayesfed.inspect import table


def main() -> int:
    """Run what is asked for and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the data set's files")
    parser.add_argument("--cases", nargs="+", help="default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="append the runs to the records")
    parser.add_argument("--check", action="store_true", help="exit 1 if a case lacks a run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = recorded()
    if options.data:
        data = bf.data.cifar10(options.data)
        for name, settings in cases().items():
            if options.cases and name not in options.cases:
                continue
            run = made(name, settings, data, options.seed)
            if options.record:
                record(run)
            runs[name] = run
            print(name, *run["accuracy"], f"{run['seconds']} s", flush=True)
    print(table(HEADS, rows(runs)) + "\n")
    print(table([*ON_DEVICES, f"J to {100 * goal(runs):.1f} %"], costs(runs)))
    met = at_least("cases with a run at their present settings", len(runs), len(cases()))
    return 0 if met or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
