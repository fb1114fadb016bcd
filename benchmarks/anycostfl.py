"""AnycostFL's experiments on Fashion-MNIST: Table I, Fig. 4 and Fig. 5, the paper's ratios beside ours.

    python benchmarks/anycostfl.py [--check]
    python benchmarks/anycostfl.py --scale paper --seeds 0
    python benchmarks/anycostfl.py --search

Scales: "check" (12 devices, 6,000 images, a CNN of 13,242 parameters, 24 rounds), "small" (20 devices, 10,000 images, the same CNN, 40 rounds) and
"paper" (60 devices, the CNN of 1,663,370, 400 rounds; hours a run). Sweeps are of the first seed, all else of all seeds. Devices are those of
`bf.fleet`, as much slower as work and updates are smaller, so that budgets bite as they do in the paper: 5 s a round for all, 1.5 to 4.5 J for
methods that know budgets. Methods that do not (all but AnycostFL; HeteroFL sets widths once) spend what the deadline makes them: they compute as
slowly as it allows. Seconds and joules are those of the bytes really sent, and of training, three forwards a step. A client that is late or cannot
take part is "out".

The goal is FedAvg's last accuracy, uncompressed and without devices, less one point. A method that has not come to it after the scale's
rounds goes on, to `patience` times as many; best accuracies are those of the scale's rounds. HeteroFL has AnycostFL's widths: the paper's own
figures put it at four fifths of the work; "three widths" is HeteroFL with 1, 1/2 and 1/4 of the work.

Runs are kept under --out and not made again. --check: one seed, the targets; exit status 1 if one is missed. --search scores training rows 50,000 to
53,000, which no run trains on; tests are of the test images.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from anycostfl_figures import curves, sub_models, sweep
from anycostfl_runs import HELD_OUT, SCORED_ALPHAS, Finished, Settings, finished
from targets import at_least
from tqdm import tqdm

import bayesfed as bf
from bayesfed.inspect import table

# Table I: rounds, kJ, minutes and best accuracy, IID then not, beside AnycostFL's 8.07 kJ; energy and time as times AnycostFL's.
PAPER = {
    0.0: {"STC": (1.4, 1.6), "QSGD": (1.4, 1.4), "UVeQFed": (1.4, 1.4), "HeteroFL": (1.5, 1.5), "FedHQ": (1.7, 1.6)},
    0.5: {"STC": (1.2, 1.3), "QSGD": (1.2, 1.3), "UVeQFed": (1.3, 1.2), "HeteroFL": (1.3, 1.3), "FedHQ": (1.6, 1.5)},
}


@dataclass(frozen=True)
class Bench:
    """The settings, the scale, the data and where results are kept."""

    document: Settings
    scale: str
    train: bf.Dataset
    scored: bf.Dataset
    out: Path
    seeds: Sequence[int]
    workers: int

    def settings(self, case: str, own: Settings) -> dict[str, Any]:
        """Return all settings of a case."""
        found = dict(self.document["cases"][case])
        base = self.settings(found.pop("like"), {}) if "like" in found else {**self.document["task"], **self.document["scales"][self.scale]}
        return {**base, **found, **own}

    def runs(self, case: str, **own: Any) -> list[Finished]:
        """Return a case's runs, one a seed."""
        settings, out = self.settings(case, own), self.out / self.scale
        return [finished(case, settings, seed, self.train, self.scored, out, workers=self.workers) for seed in self.seeds]

    def until(self, case: str, goal: float, **own: Any) -> list[Finished]:
        """Return a case's runs; one that has not come to the goal goes on until it has, or for `patience` times the rounds."""
        return self.runs(case, **own, goal=round(goal, 6))

    def goal(self, alpha: float) -> float:
        """Return FedAvg's last accuracy less one point."""
        last = self.document["task"]["last"]
        return statistics.mean(run.last(last) for run in self.runs(self.document["grid"]["reference"], alpha=alpha)) - 0.01


def main() -> int:
    """Run, print, draw; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="one seed, scale check, the targets; exit 1 if one is missed")
    parser.add_argument("--search", action="store_true", help="score settings on training rows that no run trains on")
    parser.add_argument("--scale", choices=["check", "small", "paper"], default="small")
    parser.add_argument("--data", default="/usr/share/datasets/fashion-mnist", help="folder of the data set's files")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2, help="processes that clients run in; 0: this one")
    parser.add_argument("--out", type=Path, default=Path("results/anycostfl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    with open(Path(__file__).with_suffix(".toml"), "rb") as file:
        document = tomllib.load(file)
    train, test = bf.fashion_mnist(options.data)
    scale = "check" if options.check else options.scale
    held = train[HELD_OUT:] if options.search else test
    scored = held[: document["scales"][scale]["scored"] if not options.search else 3000]
    seeds = options.seeds[:1] if options.check or options.search else options.seeds
    bench = Bench(document, scale, train, scored, options.out / "search" if options.search else options.out, seeds, options.workers)
    if options.search:
        search(bench)
        return 0
    met = [met for alpha in document["grid"]["alphas"] for met in compared(bench, alpha)]
    if not options.check:
        ablated(bench)
        swept(bench)
    print(f"\nruns and pictures in {options.out / scale}/")
    return 0 if all(met) else 1


def compared(bench: Bench, alpha: float) -> list[bool]:
    """Print Table I for one partition, draw Fig. 4 and Fig. 5(d); print the targets."""
    grid, said = bench.document["grid"], f"Dirichlet {alpha:g}" if alpha else "IID"
    goal = bench.goal(alpha)
    # Ours is the last, as in the pictures.
    found = {grid["reference"]: bench.runs(grid["reference"], alpha=alpha)}
    found |= {case: bench.until(case, goal, alpha=alpha) for case in tqdm(grid["methods"], desc=said, unit="case")}
    print(f"\n{bench.scale}, {said}, to {100 * goal:.1f} %, {counted(bench)}; in brackets times {grid['ours']}'s\n")
    heads = ["method", "reached", "rounds", "kJ", "minutes", "TFLOPs", "MB up", "out", "best %", "paper kJ, minutes"]
    ours = costs_of(found[grid["ours"]], goal)
    rows = [row_of(case, found[case], goal, ours, PAPER[alpha].get(case)) for case in grid["methods"]]
    print(table(heads, [*rows, row_of(grid["reference"], found[grid["reference"]], goal, None, None)]) + "\n")
    place = bench.out / bench.scale
    curves(found, place / f"accuracy_{said.replace(' ', '_')}.png", title=f"{bench.scale}, {said}, {counted(bench)}", goal=goal)
    sub_models(found, SCORED_ALPHAS, place / f"sub_models_{said.replace(' ', '_')}.png", title=f"sub-models without training, {said}")
    cells = [
        [case, *(f"{100 * statistics.mean(run.sub_models[n] for run in runs):.1f}" for n in range(len(SCORED_ALPHAS)))]
        for case, runs in found.items()
    ]
    print(
        "\naccuracy % of sub-models, not trained further, Fig. 5(d)\n\n" + table(["method", *(f"alpha {x:g}" for x in SCORED_ALPHAS)], cells) + "\n"
    )
    return targets_of(bench, alpha, said, found, goal)


def counted(bench: Bench) -> str:
    """Say how many seeds there are."""
    return "one seed" if len(bench.seeds) == 1 else f"means over {len(bench.seeds)} seeds"


def costs_of(runs: Sequence[Finished], goal: float) -> list[float] | None:
    """Return rounds, J, s, flops, bytes and clients out at the goal, means over seeds, None if a run never comes to it."""
    numbers = [run.reached(goal) for run in runs]
    if None in numbers:
        return None
    at = [[float(number or 0), *run.rows[(number or 1) - 1][1:]] for number, run in zip(numbers, runs, strict=True)]
    return [statistics.mean(column) for column in zip(*at, strict=True)]


def row_of(case: str, runs: Sequence[Finished], goal: float, ours: list[float] | None, paper: tuple[float, float] | None) -> list[str | float | int]:
    """Return one line of the table."""
    best = [100 * run.best for run in runs]
    spread = f" +- {statistics.stdev(best):.2f}" if len(best) > 1 else ""
    found = costs_of(runs, goal)
    reached = sum(run.reached(goal) is not None for run in runs)
    cells: list[str | float | int] = [case, f"{reached} of {len(runs)}"]
    if found is None:
        cells += [f"> {len(runs[0].rows)}", *["-"] * 5]
    else:
        scales, digits = (1.0, 1e3, 60.0, 1e12, 1e6, 1.0), (0, 3, 2, 3, 2, 0)
        for number, (value, scale, places) in enumerate(zip(found, scales, digits, strict=True)):
            times = f" ({value / ours[number]:.2f})" if ours and number < 5 and ours[number] else ""
            cells.append(f"{value / scale:.{places}f}{times}")
    return [*cells, f"{statistics.mean(best):.2f}{spread}", "{:g}, {:g}".format(*paper) if paper else "-"]


def targets_of(bench: Bench, alpha: float, said: str, found: Mapping[str, Sequence[Finished]], goal: float) -> list[bool]:
    """Print the targets of a partition. A method that does not come to the goal, however long it may go on, costs at least its whole run."""
    grid, wanted = bench.document["grid"], bench.document["targets"]
    spent = {case: costs_of(runs, goal) or at_end(runs) for case, runs in found.items() if case != grid["reference"]}
    ours, others = spent.pop(grid["ours"]), spent
    met = [at_least(f"{said}, {grid['ours']}: share of seeds that reach the goal", reached(found[grid["ours"]], goal), 1.0)]
    for case in ("HeteroFL", "FedHQ"):
        met.append(at_least(f"{said}, energy of {case}, times ours", others[case][1] / ours[1], wanted["energy"][str(alpha)]))
    met.append(at_least(f"{said}, time of STC, times ours", others["STC"][2] / ours[2], wanted["time"]))
    met.append(at_least(f"{said}, least energy of the others, times ours", min(each[1] for each in others.values()) / ours[1], 1.0))
    met.append(at_least(f"{said}, least time of the others, times ours", min(each[2] for each in others.values()) / ours[2], 1.0))
    best = {case: 100 * statistics.mean(run.best for run in runs) for case, runs in found.items() if case != grid["reference"]}
    lead = best[grid["ours"]] - max(value for case, value in best.items() if case != grid["ours"])
    met.append(at_least(f"{said}, best accuracy: points above the best of the others", lead, 0.0))
    return met


def at_end(runs: Sequence[Finished]) -> list[float]:
    """Return what whole runs cost, means over seeds."""
    return [statistics.mean(column) for column in zip(*([float(len(run.rows)), *run.rows[-1][1:]] for run in runs), strict=True)]


def reached(runs: Sequence[Finished], goal: float) -> float:
    """Return the share of runs that come to the goal."""
    return sum(run.reached(goal) is not None for run in runs) / len(runs)


def ablated(bench: Bench) -> None:
    """Print what each of the three techniques is worth, Fig. 5(a), IID."""
    goal, rows = bench.goal(0.0), list[list[str | float | int]]()
    ours = costs_of(bench.until(bench.document["grid"]["ours"], goal, alpha=0.0), goal)
    for case in bench.document["grid"]["ablations"]:
        rows.append(row_of(case, bench.until(case, goal, alpha=0.0), goal, ours, None)[:-1])
    heads = ["", "reached", "rounds", "kJ", "minutes", "TFLOPs", "MB up", "out", "best %"]
    print(f"\nablations, IID, to {100 * goal:.1f} %, Fig. 5(a)\n\n" + table(heads, rows))


def swept(bench: Bench) -> None:
    """Draw energy and time against how unlike devices are, Fig. 5(b, c), IID."""
    goal, bench = bench.goal(0.0), replace(bench, seeds=bench.seeds[:1])
    for what, values in bench.document["sweeps"].items():
        found: dict[str, list[list[float] | None]] = {}
        for case in bench.document["grid"]["methods"]:
            found[case] = [costs_of(bench.until(case, goal, alpha=0.0, **{what: value}), goal) for value in values]
        rows = [[case, *(f"{each[1] / 1e3:.3f}, {each[2] / 60:.2f}" if each else "-" for each in costs)] for case, costs in found.items()]
        print(f"\n{what}, one seed: kJ, minutes to {100 * goal:.1f} %\n\n" + table(["method", *(f"{value:g}" for value in values)], rows))
        sweep(found, values, bench.out / bench.scale / f"{what}.png", label=what.replace("_", ", "))


def search(bench: Bench) -> None:
    """Print what each searched value gives on training rows that no run trains on, not IID."""
    rows: list[list[str | float | int]] = []
    for case, searched in tqdm(bench.document["search"].items(), desc="cases"):
        for name, values in searched.items():
            for value in values:
                (run,) = bench.runs(case, alpha=0.5, **{name: value})
                last, end = 100 * run.last(bench.document["task"]["last"]), at_end([run])
                rows.append([case, f"{name} {value}", f"{last:.2f}", f"{end[1] / 1e3:.3f}", f"{end[4] / 1e6:.2f}", f"{end[5]:.0f}"])
    print(table(["method", "setting", "accuracy %", "kJ", "MB up", "out"], rows))


if __name__ == "__main__":
    sys.exit(main())
