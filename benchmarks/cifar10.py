"""The papers' own data: D-Turbo-VBI, FedHM, FedRLR and AnycostFL on CIFAR-10, each beside rivals of
its paper, on one small network that two processor cores train in an hour or two.

    python benchmarks/cifar10.py                                  # tables, from the records
    python benchmarks/cifar10.py --data cifar-10-batches-bin --record
    python benchmarks/cifar10.py --data FOLDER --cases FedHM HeteroFL Split-Mix
    python benchmarks/cifar10.py --data FOLDER --search

Ten clients, Dirichlet 0.5, one seed; a CNN of 156,074 parameters, 20 rounds of 20 steps of 32 rows,
2.6 passes over the training rows. Messages of both directions are counted, headers included.
FOLDER has the binary version of CIFAR-10. The committed records are of a copy of the data set whose
images were stored as JPEG, so that pixels differ a little. Settings are in
`parts/cifar10/settings.toml`; with --record every run is appended to `records/cifar10.jsonl`, and
what is recorded with its present settings is not run again.

"D-Turbo-VBI" learns its support; "random" keeps the one that clients draw from a key, and trains on
until it has sent as much; "pruned" is dense in the first half of its rounds (16 bits both ways),
then `fed_prune`. On devices, every method has the same budgets of time and energy, and the local
steps that fit. --search prints what rates give on training rows 48,000 to 50,000 after a quarter of
the rounds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from parts.cifar10.runs import SEARCHED, Run, cases, made, record, recorded, searched
from parts.cifar10.systems import Settings

import bayesfed as bf
from bayesfed.inspect import table

HEADS = ["method", "rounds", "parameters", "weights %", "accuracy %", "MB down", "MB up"]
ON_DEVICES = ["method", "accuracy %", "MB up", "J", "minutes", "answers left out", "J to"]


def main() -> int:
    """Run what is asked for and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of the data set's files")
    parser.add_argument("--cases", nargs="+", help="default: all that are not recorded")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", action="store_true", help="append the runs to the records")
    parser.add_argument("--search", action="store_true", help="rates, on training rows")
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = {} if options.search else recorded()
    for name, settings in asked(options, runs):
        case = name.split(" @ ")[0]
        run = made(case, settings, bf.cifar10(options.data), options.seed, options.search)
        if options.record:
            record(run)
        runs[name] = run
        print(name, *run["accuracy"], f"{run['seconds']} s", flush=True)
    print(table(HEADS, rows(runs)) + "\n")
    goal, cells = costs(runs)
    print(table([*ON_DEVICES[:-1], f"{ON_DEVICES[-1]} {goal:.1f} %"], cells))
    return 0


def asked(options: argparse.Namespace, runs: Mapping[str, Run]) -> list[tuple[str, Settings]]:
    """Return names and settings of what is to be run: nothing without data."""
    every = cases() if options.data else {}
    if not options.search:
        return [(name, every[name]) for name in options.cases or every if name not in runs]
    return [
        (f"{name} @ {rate:g}", every[name] | {"learning_rate": rate, "rounds": SEARCHED})
        for name, rates in searched().items()
        for rate in rates
        if name in (options.cases or every)
    ]


def rows(runs: Mapping[str, Run]) -> list[list[str]]:
    """Return the lines of methods without devices; of several sizes of device, the largest
    first.
    """
    return [
        [
            name,
            str(run["rounds"]),
            ", ".join(f"{count:,}" for count in run["parameters"]),
            f"{100 * run['density']:.3g}",
            ", ".join(f"{value:.1f}" for value in run["accuracy"]),
            f"{run['megabytes_down']:.2f}",
            f"{run['megabytes_up']:.2f}",
        ]
        for name, run in runs.items()
        if not run["joules"]
    ]


def costs(runs: Mapping[str, Run]) -> tuple[float, list[list[str]]]:
    """Return the accuracy in percent that all methods on devices come to, on the first rows that
    are scored, and their lines, with joules to it.
    """
    placed = {name: run for name, run in runs.items() if run["joules"]}
    best = [max(accuracy for *_, accuracy in run["curve"]) for run in placed.values()]
    goal = min(best, default=0.0)
    return 100 * goal, [
        [
            name,
            f"{run['accuracy'][0]:.1f}",
            f"{run['megabytes_up']:.2f}",
            f"{run['joules']:.0f}",
            f"{run['device_seconds'] / 60:.2f}",
            str(run["left_out"]),
            f"{next(joules for *_, joules, accuracy in run['curve'] if accuracy >= goal):.0f}",
        ]
        for name, run in placed.items()
    ]


if __name__ == "__main__":
    sys.exit(main())
