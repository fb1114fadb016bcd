"""Where uncertainty pays: FedAvg with a temperature, Laplace, a prior, MC-dropout, an ensemble and
D-Turbo-VBI on Fashion-MNIST.

    python benchmarks/uncertainty.py [--check] [--rows 600 2000 60000] [--seeds 0 1] [--cases FedAvg
    "prior .3"]
                                          [--concentration 0.1] [--workers 2]

MLP 784-256-256-10, ten clients, Dirichlet 0.5, Adam 1e-3 on a cosine. A tenth of every client's
rows is held out; temperature, prior and prediction sets are chosen on them, never on the test set.
Corrupted NLL is the mean over five corruptions of five severities; AUROC the mean over four kinds
of rows of no class. Runs are kept in `results/uncertainty/` and gone on with;
`benchmarks/records/uncertainty.jsonl` has those behind the page::

    python benchmarks/kept.py unpack benchmarks/records/uncertainty.jsonl results/uncertainty/runs

Intervals are 95 %, by a bootstrap over test rows that is paired between methods and pooled over
seeds. `--check` has 2,000 rows and two seeds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from parts.shared.settings import settings_of
from parts.shared.targets import at_least, between, target
from parts.uncertainty.runs import Place
from parts.uncertainty.scores import unpacked
from tqdm import tqdm

from bayesfed.data.readers.idx import FASHION_MNIST
from bayesfed.inspect import table

PRIORS = ("prior .1", "prior .3", "prior 1")
# The share by which the best one-run method is to be below the ensemble in corrupted NLL, and the
# AUROC of max-logit that a posterior is to reach.
BELOW, AUROC = {2000: 0.25, 60000: 0.35}, {2000: 0.80, 60000: 0.93}
Runs = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Line:
    """A method: a case and what is read off it."""

    case: str
    reading: str = ""

    def of(self, runs: Runs) -> list[dict[str, Any]]:
        """Return the scores of all seeds."""
        return [run["readings"][self.reading] for run in runs[self.case]]

    def nll(self, runs: Runs) -> np.ndarray:
        """Return the NLL of every row of every seed."""
        return np.concatenate([unpacked(one["rows_nll"]) for one in self.of(runs)])

    def mean(self, runs: Runs, name: str) -> float:
        """Return the mean of a score over seeds."""
        return statistics.fmean(one[name] for one in self.of(runs))

    def corrupted(self, runs: Runs) -> float:
        """Return the mean NLL over corruptions and severities."""
        return statistics.fmean(
            value
            for one in self.of(runs)
            for values in one["corrupted"].values()
            for value in values
        )

    def auroc(self, runs: Runs, kind: str) -> float | None:
        """Return the mean AUROC over kinds of rows."""
        values = [
            area[kind] for one in self.of(runs) for area in one["auroc"].values() if kind in area
        ]
        return statistics.mean(values) if values else None


def main() -> int:
    """Run and print; return the exit status."""
    document = settings_of("uncertainty")
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--check", action="store_true", help="2,000 rows, two seeds; exit 1 if a target is missed"
    )
    arguments.add_argument(
        "--rows", nargs="+", choices=["600", "2000", "60000"], default=["2000", "60000"]
    )
    arguments.add_argument("--seeds", nargs="+", type=int, help="default: five")
    arguments.add_argument(
        "--cases",
        nargs="+",
        choices=list(document["cases"]),
        help="default: all; FedAvg is always among them",
    )
    arguments.add_argument(
        "--concentration", type=float, help="of the Dirichlet split; default: 0.5"
    )
    arguments.add_argument("--workers", type=int, default=2)
    arguments.add_argument("--folder", type=Path, default=FASHION_MNIST)
    arguments.add_argument("--out", type=Path, default=Path("results/uncertainty"))
    given = arguments.parse_args()
    place = Place(given.folder, given.out)
    met = []
    for size in ["2000"] if given.check else given.rows:
        cases = [
            name
            for name in document["cases"]
            if not (given.check and name in ("prior .1", "central"))
        ]
        if given.cases:
            cases = [name for name in cases if name in {"FedAvg", *given.cases}]
        seeds = given.seeds or document["seeds"]["check" if given.check else "whole"]
        common = document["common"] | (
            {"concentration": given.concentration} if given.concentration else {}
        )
        settings = {
            name: {**common, **document["sizes"][size], **document["cases"][name]} for name in cases
        }
        runs = made(place, settings, seeds, given.workers)
        met += shown(int(size), runs)
    return 0 if all(met) else 1


def made(
    place: Place, settings: Mapping[str, Mapping[str, Any]], seeds: Sequence[int], workers: int
) -> Runs:
    """Return all runs by case, those that are missing made by several processes, the
    longest first.
    """
    jobs = [
        (name, seed)
        for name in sorted(settings, key=lambda name: name not in ("D-Turbo-VBI", "ensemble of 5"))
        for seed in seeds
    ]
    runs: Runs = {name: [] for name in settings}
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        done = pool.map(place.run, [settings[name] for name, _ in jobs], [seed for _, seed in jobs])
        for (name, _), run in tqdm(
            zip(jobs, done, strict=True), total=len(jobs), disable=not sys.stderr.isatty()
        ):
            runs[name].append(run)
    return runs


def shown(size: int, runs: Runs) -> list[bool]:
    """Print the table of a size and its targets; return which are met."""
    prior = min(
        (name for name in PRIORS if name in runs),
        key=lambda name: Line(name).mean(runs, "held_nll"),
        default=PRIORS[0],
    )
    every = {
        "FedAvg": Line("FedAvg"),
        "FedAvg + temperature": Line("FedAvg", "temperature"),
        "FedAvg + Laplace": Line("FedAvg", "Laplace"),
        f"{prior}": Line(prior),
        f"{prior} + Laplace": Line(prior, "Laplace"),
        "MC-dropout": Line("dropout .2"),
        "D-Turbo-VBI": Line("D-Turbo-VBI"),
        "ensemble of 5": Line("ensemble of 5"),
        **{name: Line(name) for name in ("SWAG", "FedBE", "FedPA", "beta-PredBayes")},
        "central": Line("central"),
        "central + Laplace": Line("central", "Laplace"),
    }
    lines = {name: line for name, line in every.items() if line.case in runs}
    rows: list[list[str | float | int]] = []
    kinds = ("max_probability", "entropy", "mutual_information", "max_logit", "feature_density")
    for name, line in lines.items():
        scores = [f"{line.mean(runs, score):.3f}" for score in ("nll", "ece", "adaptive_ece")]
        areas = [
            "-" if (area := line.auroc(runs, kind)) is None else f"{area:.2f}" for kind in kinds
        ]
        megabytes = statistics.mean(run["megabytes"] for run in runs[line.case])
        selective = [
            f"{1e3 * line.mean(runs, 'aurc'):.0f}",
            f"{line.mean(runs, 'coverage_at_risk'):.2f}",
        ]
        rows.append(
            [
                name,
                f"{100 * line.mean(runs, 'accuracy'):.1f}",
                *scores,
                *selective,
                f"{line.corrupted(runs):.2f}",
                *areas,
                f"{megabytes:.0f}",
            ]
        )
    seeds = len(runs["FedAvg"])
    head = [
        "method",
        "%",
        "NLL",
        "ECE",
        "adaptive",
        "AURC e-3",
        "coverage",
        "corrupted",
        "max p",
        "entropy",
        "mutual",
        "max logit",
        "density",
        "MB",
    ]
    split = runs["FedAvg"][0]["settings"]["concentration"]
    print(
        f"\n{size} rows, Dirichlet {split:g}, {seeds} seeds; the last columns but one are "
        f"mean AUROCs\n\n{table(head, rows)}\n"
    )
    robust = robustness(size, runs, lines) if "ensemble of 5" in runs else []
    return calibration(size, runs, lines) + robust + outside(size, runs, lines) + coverage(runs)


def difference(runs: Runs, one: Line, other: Line) -> tuple[float, float, float]:
    """Return the difference of two methods' NLL with its paired 95 % bootstrap interval."""
    gaps, noise = one.nll(runs) - other.nll(runs), np.random.default_rng(0)
    means = [gaps[noise.integers(len(gaps), size=len(gaps))].mean() for _ in range(1000)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(gaps.mean()), float(low), float(high)


def calibration(size: int, runs: Runs, lines: Mapping[str, Line]) -> list[bool]:
    """Print how near Laplace without held-out rows is to a temperature with them."""
    rival = lines["FedAvg + temperature"]
    for name, line in lines.items():
        if line != rival:
            mean, low, high = difference(runs, line, rival)
            print(f"{name} less FedAvg + temperature, NLL: {mean:+.4f} [{low:+.4f}, {high:+.4f}]")
    laplace = lines["FedAvg + Laplace"]
    return [
        target(
            f"{size} rows: NLL of Laplace above a temperature's",
            difference(runs, laplace, rival)[0],
            0.003,
        ),
        target(f"{size} rows: ECE of Laplace", laplace.mean(runs, "ece"), 0.02),
    ]


def bayesian(lines: Mapping[str, Line]) -> list[str]:
    """Return the methods that have a posterior after one run."""
    return [
        name
        for name in lines
        if name == "D-Turbo-VBI" or (name.endswith(" + Laplace") and not name.startswith("central"))
    ]


def robustness(size: int, runs: Runs, lines: Mapping[str, Line]) -> list[bool]:
    """Print how far the best one-run Bayesian method is below the ensemble under corruptions."""
    best = min(bayesian(lines), key=lambda name: lines[name].corrupted(runs))
    share = 1 - lines[best].corrupted(runs) / lines["ensemble of 5"].corrupted(runs)
    sent = [
        statistics.mean(run["megabytes"] for run in runs[lines[name].case])
        for name in (best, "FedAvg")
    ]
    wanted = BELOW.get(size, 0.0)
    return [
        at_least(
            f"{size} rows: share of the ensemble's corrupted NLL that {best} is below",
            share,
            wanted,
        ),
        target(f"{size} rows: bytes of {best} as a share of FedAvg's", sent[0] / sent[1], 1.0),
    ]


def outside(size: int, runs: Runs, lines: Mapping[str, Line]) -> list[bool]:
    """Print whether any score of a posterior tells rows of no class apart as plain
    max-logit does.
    """
    plain = lines["FedAvg"].auroc(runs, "max_logit") or 0.0
    found = {
        (name, kind): lines[name].auroc(runs, kind) or 0.0
        for name in bayesian(lines)
        for kind in ("entropy", "mutual_information")
    }
    best = max(found, key=lambda one: found[one])
    print(
        f"max-logit on FedAvg: mean AUROC {plain:.3f}; at {size} rows "
        f"{AUROC.get(size, plain):.2f} is expected"
    )
    return [
        at_least(
            f"{size} rows: AUROC of {best[0]} by {best[1]}, less max-logit's",
            found[best] - plain,
            0.0,
        )
    ]


def coverage(runs: Runs) -> list[bool]:
    """Print what conformal sets cover."""
    kept = [run["conformal"] for run in runs["FedAvg"]]
    for name in ("pooled", "test file", "shifted, marginal", "shifted, weighted"):
        covered, size = (statistics.mean(one[name][place] for one in kept) for place in (1, 2))
        print(f"sets of 90 %, {name}: coverage {covered:.3f}, {size:.2f} classes")
    worst = {}
    for way in ("shared", "own", "by class"):
        of_clients = [
            sorted(value[1:] for name, value in one.items() if name.startswith(f"{way}/"))
            for one in kept
        ]
        worst[way] = statistics.mean(
            statistics.mean(value[0] for value in values[: -(-len(values) // 10)])
            for values in of_clients
        )
        size = statistics.mean(value[1] for values in of_clients for value in values)
        print(
            f"sets of 90 %, thresholds {way}: coverage in the worst decile of clients "
            f"{worst[way]:.3f}, {size:.2f} classes"
        )
    redrawn, sd = (statistics.mean(one["redrawn"][place] for one in kept) for place in (1, 2))
    print(
        f"sets of 90 %, over draws of the held-out rows: coverage {redrawn:.3f}, sd of one "
        f"draw {sd:.3f}"
    )
    return [
        between(
            "coverage of 90 % sets, all rows, over draws of those held out", redrawn, 0.89, 0.91
        ),
        at_least(
            "coverage of 90 % sets by class, worst decile of clients", worst["by class"], 0.85
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
