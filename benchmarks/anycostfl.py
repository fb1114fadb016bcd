"""AnycostFL's experiments on Fashion-MNIST: Table I, Fig. 4 and Fig. 5, the paper's ratios beside
ours.

    python benchmarks/anycostfl.py [--check]
    python benchmarks/anycostfl.py --scale paper --seeds 0
    python benchmarks/anycostfl.py --scale cifar10 --data cifar-10-batches-bin
    python benchmarks/anycostfl.py --search

Scales: "check" and "small" (12 devices, 6,000 images, a CNN of 13,242 parameters, 24 rounds; one
seed of 3,000 test images, three of 10,000) and "paper" (60 devices, the CNN of 1,663,370, 400
rounds; hours a run), and "cifar10" (60 devices, VGG-9, 500 rounds; days). Sweeps are of the first
seed, all else of all seeds. Devices are those of `bf.fleet`, as much slower as work and updates are
smaller, so that budgets bite as they do in the paper: on Fashion-MNIST 5 s a round for all and 1.5
to 4.5 J, on CIFAR-10 twice that. All methods have the same budgets of time and energy on the same
channels: who cannot train a whole epoch takes the steps that fit, and computes as slowly as the
deadline allows. Seconds and joules are those of the bytes really sent, and of training, three
forwards a step. A client that is late or cannot take one step is "out": FedHQ sends within a
quarter of the deadline, which bad channels do not bear.

A seed's goal is its FedAvg's last accuracy, uncompressed and without devices, less one point. A
method that has not come to it after the scale's rounds goes on, to `patience` times as many; best
accuracies are those of the scale's rounds. HeteroFL has AnycostFL's widths: the paper's own figures
put it at four fifths of the work; "three widths" is HeteroFL with 1, 1/2 and 1/4 of the work.

Runs are kept under --out and not made again; those of "small" are in `records/anycostfl.jsonl`, and
`kept.py unpack` puts them there. --check: one seed, the targets; exit status 1 if one is missed.
--search scores training rows 50,000 to 53,000, which no run trains on; tests are of the test
images.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from parts.anycostfl.figures import curves, sub_models, sweep
from parts.anycostfl.runs import HELD_OUT, SCORED_ALPHAS, Finished, Settings, Task, finished
from parts.shared.settings import resolved, settings_of
from parts.shared.targets import at_least, target
from tqdm import tqdm

import bayesfed as bf
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.inspect import table

# Table I: rounds, kJ, minutes and best accuracy, IID then not, beside AnycostFL's 8.07 kJ; energy
# and time as times AnycostFL's.
PAPER = {
    0.0: {
        "STC": (1.4, 1.6),
        "QSGD": (1.4, 1.4),
        "UVeQFed": (1.4, 1.4),
        "HeteroFL": (1.5, 1.5),
        "FedHQ": (1.7, 1.6),
    },
    0.5: {
        "STC": (1.2, 1.3),
        "QSGD": (1.2, 1.3),
        "UVeQFed": (1.3, 1.2),
        "HeteroFL": (1.3, 1.3),
        "FedHQ": (1.6, 1.5),
    },
}
SWEPT = {
    "epsilon_variance": "variance of energy coefficients, (J / cycle Hz²)²",
    "distance_variance": "variance of distances, m²",
}
HEADS = ["method", "reached", "rounds", "kJ", "minutes", "TFLOPs", "MB up", "out", "best %"]


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
        base = {**self.document["task"], **self.document["scales"][self.scale]}
        return {**resolved(self.document["cases"], case, base), **own}

    def runs(self, case: str, **own: Any) -> list[Finished]:
        """Return a case's runs, one a seed."""
        settings, out = self.settings(case, own), self.out / self.scale
        return [
            finished(case, settings, seed, self.train, self.scored, out, workers=self.workers)
            for seed in self.seeds
        ]

    def until(self, case: str, alpha: float, **own: Any) -> list[Finished]:
        """Return a case's runs; one that has not come to its seed's goal goes on until it has, or
        for `patience` times the rounds.
        """
        grid, found = self.document["grid"], []
        for reference in self.runs(grid["reference"], alpha=alpha):
            goal = round(reference.last(self.document["task"]["last"]) - 0.01, 6)
            if case == grid["reference"]:
                found.append(replace(reference, goal=goal))
            else:
                found += replace(self, seeds=[reference.seed]).runs(
                    case, **own, alpha=alpha, goal=goal
                )
        return found

    def at_defaults(self, alpha: float) -> int:
        """Return how many answers two rounds of AnycostFL without settings lack on the fleet."""
        settings = self.settings(self.document["grid"]["ours"], {"alpha": alpha})
        task = Task(settings, self.seeds[0], self.train, 0)
        plain = bf.anycost_fl(task.net, task.sample, deadline_s=settings["deadline_s"])
        with task.pool:
            reports = rounds(plain, task.pool, rounds=2, on_client_error="drop")
            return sum(len(report.refused) for report in reports)


def main() -> int:
    """Run, print, draw; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="one seed, scale check, the targets; exit 1 if one is missed",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="score settings on training rows that no run trains on",
    )
    parser.add_argument("--scale", choices=["check", "small", "paper", "cifar10"], default="small")
    parser.add_argument(
        "--data",
        default="/usr/share/datasets/fashion-mnist",
        help="folder of the data set's files (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--workers", type=int, default=2, help="processes that clients run in; 0: this one"
    )
    parser.add_argument("--out", type=Path, default=Path("results/anycostfl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    document = settings_of("anycostfl")
    scale = "check" if options.check else options.scale
    reader = getattr(bf.data, document["scales"][scale].get("data", "fashion_mnist"))
    train, test = reader(options.data)
    if options.search and len(train) <= HELD_OUT:
        parser.error(
            f"--search scores training rows from {HELD_OUT:,} on, of which {options.data} "
            "has none; try another --scale"
        )
    held = train[HELD_OUT:] if options.search else test
    scored = held[: document["scales"][scale]["scored"] if not options.search else 3000]
    seeds = options.seeds[:1] if options.check or options.search else options.seeds
    bench = Bench(
        document,
        scale,
        train,
        scored,
        options.out / "search" if options.search else options.out,
        seeds,
        options.workers,
    )
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
    # Ours is the last, as in the pictures.
    cases = [grid["reference"], *grid["methods"]]
    found = {case: bench.until(case, alpha) for case in tqdm(cases, desc=said, unit="case")}
    print(
        f"\n{bench.scale}, {said}, to {goals(found[grid['reference']])}, {counted(bench)}; "
        f"in brackets times {grid['ours']}'s\n"
    )
    ours = means([run.costs for run in found[grid["ours"]]])
    rows = [
        [*row_of(case, found[case], ours), "{:g}, {:g}".format(*PAPER[alpha].get(case, (1.0, 1.0)))]
        for case in grid["methods"]
    ]
    print(
        table(
            [*HEADS, "paper kJ, minutes"],
            [*rows, [*row_of(grid["reference"], found[grid["reference"]], None), "-"]],
        )
        + "\n"
    )
    place, title = bench.out / bench.scale, f"{bench.scale}, {said}, {counted(bench)}"
    curves(found, place / f"accuracy_{said.replace(' ', '_')}.png", title=title)
    sub_models(
        found,
        SCORED_ALPHAS,
        place / f"sub_models_{said.replace(' ', '_')}.png",
        title=f"sub-models without training, {said}",
    )
    cells = [
        [
            case,
            *(
                f"{100 * statistics.mean(run.sub_models[n] for run in runs):.1f}"
                for n in range(len(SCORED_ALPHAS))
            ),
        ]
        for case, runs in found.items()
    ]
    print(
        "\naccuracy % of sub-models, not trained further, Fig. 5(d)\n\n"
        + table(["method", *(f"alpha {x:g}" for x in SCORED_ALPHAS)], cells)
        + "\n"
    )
    return targets_of(bench, alpha, said, found)


def counted(bench: Bench) -> str:
    """Say how many seeds there are."""
    return "one seed" if len(bench.seeds) == 1 else f"means over {len(bench.seeds)} seeds"


def goals(runs: Sequence[Finished]) -> str:
    """Say which accuracies the seeds' costs are counted to."""
    return ", ".join(f"{100 * run.goal:.1f}" for run in runs) + " %"


def means(rows: Iterable[Sequence[float]]) -> list[float]:
    """Return the mean of every column."""
    return [statistics.mean(column) for column in zip(*rows, strict=True)]


def row_of(
    case: str, runs: Sequence[Finished], ours: list[float] | None
) -> list[str | float | int]:
    """Return one line of the table; costs of runs that never came to the goal are those of the
    whole run, and so at least.
    """
    best = [100 * run.best for run in runs]
    spread = f" +- {statistics.stdev(best):.2f}" if len(best) > 1 else ""
    count = sum(run.reached is not None for run in runs)
    least = "" if count == len(runs) else "> "
    cells: list[str | float | int] = [case, f"{count} of {len(runs)}"]
    scales, digits = (1.0, 1e3, 60.0, 1e12, 1e6, 1.0), (1, 3, 2, 3, 2, 0)
    for number, (value, scale, places) in enumerate(
        zip(means([run.costs for run in runs]), scales, digits, strict=True)
    ):
        times = f" ({value / ours[number]:.2f})" if ours and number < 5 and ours[number] else ""
        cells.append(f"{least}{value / scale:.{places}f}{times}")
    return [*cells, f"{statistics.mean(best):.2f}{spread}"]


def targets_of(
    bench: Bench, alpha: float, said: str, found: Mapping[str, Sequence[Finished]]
) -> list[bool]:
    """Print the targets of a partition. A method that does not come to the goal, however long it
    may go on, costs at least its whole run.
    """
    grid, wanted = bench.document["grid"], bench.document["targets"]
    spent = {
        case: means([run.costs for run in runs])
        for case, runs in found.items()
        if case != grid["reference"]
    }
    ours, others = spent.pop(grid["ours"]), spent
    share = statistics.mean(run.reached is not None for run in found[grid["ours"]])
    met = [at_least(f"{said}, {grid['ours']}: share of seeds that reach the goal", share, 1.0)]
    rival = min(others, key=lambda case: others[case][1])
    met.append(
        at_least(
            f"{said}, energy of the best rival, {rival}, times ours",
            others[rival][1] / ours[1],
            wanted["energy"][str(alpha)],
        )
    )
    met.append(
        at_least(f"{said}, time of STC, times ours", others["STC"][2] / ours[2], wanted["time"])
    )
    met.append(
        at_least(
            f"{said}, least time of the others, times ours",
            min(each[2] for each in others.values()) / ours[2],
            1.0,
        )
    )
    best = {
        case: 100 * statistics.mean(run.best for run in runs)
        for case, runs in found.items()
        if case != grid["reference"]
    }
    out = bench.at_defaults(alpha)
    met.append(target(f"{said}, answers left out at anycost_fl's defaults", out, 0.0))
    lead = best[grid["ours"]] - max(value for case, value in best.items() if case != grid["ours"])
    met.append(at_least(f"{said}, best accuracy: points above the best of the others", lead, 0.0))
    return met


def ablated(bench: Bench) -> None:
    """Print what each of the three techniques is worth, Fig. 5(a), IID."""
    grid = bench.document["grid"]
    found = {
        case: bench.until(case, 0.0)
        for case in tqdm(grid["ablations"], desc="ablations", unit="case")
    }
    ours = means([run.costs for run in found[grid["ours"]]])
    print(f"\nablations, IID, to {goals(found[grid['ours']])}, Fig. 5(a)\n")
    print(table(HEADS, [row_of(case, runs, ours) for case, runs in found.items()]))


def swept(bench: Bench) -> None:
    """Draw energy and time against how unlike devices are, Fig. 5(b, c), IID."""
    bench = replace(bench, seeds=bench.seeds[:1])
    for what, values in bench.document["sweeps"].items():
        found: dict[str, list[Finished]] = {}
        for case in tqdm(bench.document["grid"]["methods"], desc=what, unit="case"):
            found[case] = [
                run for value in values for run in bench.until(case, 0.0, **{what: value})
            ]
        rows = [[case, *(_spent(run) for run in runs)] for case, runs in found.items()]
        print(
            f"\n{what}, one seed: kJ, minutes to {goals(found[case][:1])}\n\n"
            + table(["method", *(f"{value:g}" for value in values)], rows)
        )
        sweep(found, values, bench.out / bench.scale / f"{what}.png", label=SWEPT[what])


def _spent(run: Finished) -> str:
    """Write energy and time."""
    return f"{'' if run.reached else '> '}{run.costs[1] / 1e3:.3f}, {run.costs[2] / 60:.2f}"


def search(bench: Bench) -> None:
    """Print what each searched value gives on training rows that no run trains on, not IID."""
    rows: list[list[str | float | int]] = []
    for case, searched in tqdm(bench.document["search"].items(), desc="cases"):
        for name, values in searched.items():
            for value in values:
                (run,) = bench.runs(case, alpha=0.5, **{name: value})
                last, end = 100 * run.last(bench.document["task"]["last"]), run.costs
                rows.append(
                    [
                        case,
                        f"{name} {value}",
                        f"{last:.2f}",
                        f"{end[1] / 1e3:.3f}",
                        f"{end[4] / 1e6:.2f}",
                        f"{end[5]:.0f}",
                    ]
                )
    print(table(["method", "setting", "accuracy %", "kJ", "MB up", "out"], rows))


if __name__ == "__main__":
    sys.exit(main())
