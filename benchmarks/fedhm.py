"""FedHM's experiments on Fashion-MNIST: Tables 2 and 3, Figs. 3 and 4 and the ablations, at a size
that a processor trains.

    python benchmarks/fedhm.py [--check]
    python benchmarks/fedhm.py --net slim --seeds 0
    python benchmarks/fedhm.py --search

20 clients, half of them each round, four sizes (rank ratios 1, 1/2, 1/4, 1/8). "Fixed": sizes are
dealt to clients once; "dynamic": anew each round. V2 and V3 leave out the largest one and two
sizes; clients that could train those train the largest that is left. Baselines are slimmed to
widths at which parameters are nearest to FedHM's. FedAvg trains one slimmed size on all clients.
Accuracies are means over the last scores and over seeds, of the test images; the last 10,000
training images are trained on by no run, and --search, which chose what the settings say, scores
the first 3,000 of them.

Bytes are the ledger's, down and up, of all clients: to an accuracy of FedHM with all clients at
1/8, against FedAvg with the whole network, both scored after every round. Networks: "cnn", "small"
and "wide", two convolutions and a hidden layer without norms; "slim", ResNet-18 at 1/8 of its
width, and "resnet18", both with group norm. Clients' factors always begin as the best approximation
of the server's model: spectral initialisation every round. What a start is worth where factors are
averaged as they are is a table of its own. The goal of the bytes is FedAvg's last accuracy, rounded
down, less one point.

"FedHM, printed" is the paper's: a masked loss, clients weighed by their sizes, what a rank leaves
out lost. "FedHM" is modified: unmasked, by rows, and what a rank leaves out is kept until the rate
falls. Both begin at the network itself. `parts/fedhm/defaults.py` measures the default arguments.

A client whose training diverges is left out of the round; the tables say how often. Finished runs
are kept under --out and not made again. --check: six tasks at default arguments, beside FedAvg of
every size, HeteroFL and Split-Mix; and bytes to an accuracy, one seed, Dirichlet 0.5, 6,000
training and 3,000 test images. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from parts.fedhm.defaults import checked
from parts.fedhm.figures import by_layer, by_round, by_size, inference
from parts.fedhm.runs import HELD_OUT, Data, Finished, Settings, finished
from parts.shared.settings import resolved, settings_of
from parts.shared.targets import at_least, target
from tqdm import tqdm

import bayesfed as bf
from bayesfed.inspect import table
from bayesfed.models import resnet18, whole_first

# Thinnest factors take a quarter more rounds than the whole network; they have 7.1 times fewer
# parameters.
POINTS, CHEAPER = 0.5, 5.0


@dataclass(frozen=True)
class Bench:
    """The settings, the data, what is compared, and where results are kept."""

    document: Settings
    network: Settings
    plan: Settings
    data: Data
    out: Path
    seeds: Sequence[int]

    def settings(self, case: str, place: Settings, own: Settings | None = None) -> dict[str, Any]:
        """Return all settings of a case in a place: a partition and a kind of heterogeneity."""
        base = {**self.document["task"], **self.network, **self.plan.get("settings", {}), **place}
        return {**resolved(self.document["cases"], case, base), **(own or {})}

    def runs(self, case: str, place: Settings, **own: Any) -> list[Finished]:
        """Return a case's runs, one a seed."""
        return [
            finished(case, self.settings(case, place, own), seed, self.data, self.out)
            for seed in self.seeds
        ]

    def bytes_to(self, case: str, place: Settings, goal: float) -> float | None:
        """Return mean bytes to an accuracy, of runs that are scored every round; None if a run
        never has it.
        """
        found = [run.bytes_to(goal) for run in self.runs(case, place, every=1)]
        return (
            statistics.mean(some for some in found if some is not None)
            if None not in found
            else None
        )

    def mean(self, case: str, place: Settings, size: int) -> float:
        """Return the accuracy in per cent of a size, as `Finished.last`, over seeds."""
        runs = self.runs(case, place)
        return 100 * statistics.mean(run.last(size, run.settings["last"]) for run in runs)

    def methods(self, place: Settings) -> list[str]:
        """Return the methods for devices of unlike strength that are compared in a place."""
        return [
            *self.plan["methods"],
            *(self.plan["fixed"] if place["heterogeneity"] == "fixed" else []),
        ]

    @property
    def curves(self) -> list[str]:
        """The whole network and the thinnest: what bytes to an accuracy are compared of, scored
        after every round.
        """
        return [self.plan["whole"], self.plan["thin"][-1]]

    @property
    def places(self) -> list[dict[str, Any]]:
        """The partitions and kinds of heterogeneity."""
        return [
            {"alpha": alpha, "heterogeneity": kind}
            for alpha in self.plan["alphas"]
            for kind in self.plan["heterogeneity"]
        ]

    @property
    def ablated(self) -> dict[str, Any]:
        """Where ablations are made: the last partition, the first kind."""
        return {"alpha": self.plan["alphas"][-1], "heterogeneity": self.plan["heterogeneity"][0]}

    def everything(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """Yield every case, place and settings of its own."""
        for place in self.places:
            for case in [*self.methods(place), *self.plan["slimmed"], *self.plan["thin"]]:
                yield case, place, {}
            for case in self.curves:
                yield case, place, {"every": 1}
        for case in [
            *self.plan["printed"],
            *self.plan["ablations"],
            *self.plan["starts"],
            *(case for cases in self.plan["hybrids"].values() for case in cases),
        ]:
            yield case, self.ablated, {}


def main() -> int:
    """Run, print, draw; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="six tasks at default arguments, and bytes; exit 1 if a target is missed",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="score settings on training images that no run trains on",
    )
    parser.add_argument(
        "--net", choices=["cnn", "small", "wide", "slim", "resnet18"], default="cnn"
    )
    parser.add_argument(
        "--data", default="/usr/share/datasets/fashion-mnist", help="folder of the data set's files"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("results/fedhm"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    document = settings_of("fedhm")
    train, test = bf.fashion_mnist(options.data)
    short = options.check or options.search
    plan = document["check" if short else "grid"]
    scored = train[HELD_OUT:] if options.search else test
    data = Data(train[:HELD_OUT], scored[: plan.get("scored", len(scored))])
    bench = Bench(
        document,
        document["nets"][options.net],
        plan,
        data,
        options.out,
        options.seeds[:1] if short else options.seeds,
    )
    if options.search:
        search(bench)
        return 0
    if options.check:
        met = [*checked(options.out), *(bytes_met(bench, place) for place in bench.places)]
        return 0 if all(met) else 1
    with tqdm(list(bench.everything()), desc="runs", unit="case") as bar:
        for case, place, own in bar:
            bar.set_postfix_str(f"{case}, {called(place)}")
            bench.runs(case, place, **own)
    met = [met for place in bench.places for met in compared(bench, place, options.net)]
    print(
        f"\nablations, {called(bench.ablated)}\n\n"
        + sizes_table(bench, [*plan["printed"], *plan["ablations"]], [], bench.ablated)
    )
    for alpha in plan["alphas"]:
        homogeneous(bench, {**bench.ablated, "alpha": alpha}, options.net)
    hybrids(bench, options.net)
    print(f"\nstart of the factors, {called(bench.ablated)}\n\n" + starts(bench))
    untrained(bench)
    print(f"\nruns and pictures in {options.out}/")
    return 0 if all(met) else 1


def called(place: Settings) -> str:
    """Say which partition and which kind."""
    return (
        f"{'Dirichlet ' + format(place['alpha'], 'g') if place['alpha'] else 'IID'}, "
        f"{place['heterogeneity']}"
    )


def compared(bench: Bench, place: Settings, what: str) -> list[bool]:
    """Print a place's tables and targets and draw its picture."""
    seeds = "one seed" if len(bench.seeds) == 1 else f"means over {len(bench.seeds)} seeds"
    print(f"\n{what}, {called(place)}: accuracy % (parameters), {seeds}\n")
    print(sizes_table(bench, bench.methods(place), bench.plan["slimmed"], place))
    print(
        f"\n{what}, {called(place)}: MB to an accuracy, all clients alike; in brackets "
        f"times less than {bench.plan['whole']}\n"
    )
    print(bytes_table(bench, place) + "\n")
    file = bench.out / f"smallest, {what}, {called(place)}.png".replace(", ", "_").replace(" ", "_")
    shown = [*bench.methods(place), bench.plan["slimmed"][-1]]
    by_round(
        {case: bench.runs(case, place) for case in shown},
        file,
        title=f"the smallest model, {what}, {called(place)}, {seeds}",
    )
    return targets_of(bench, place)


def sizes_table(bench: Bench, cases: Sequence[str], slimmed: Sequence[str], place: Settings) -> str:
    """Return accuracy and parameters of every size, largest first; FedAvg's networks of every size
    share a line.
    """
    ratios = bench.document["task"]["ratios"]
    rows: list[list[str | float | int]] = []
    for case in cases:
        runs = bench.runs(case, place)
        # Sizes that are left out come first.
        count = len(runs[0].counts) - 1
        cells = [cell(bench, case, place, size) for size in range(-count, 0)]
        seconds = [cell(bench, case, place, 0), *["-"] * (len(ratios) - count), *cells]
        rows.append([case, *seconds, spread(runs), sum(run.refused for run in runs)])
    if slimmed:
        found = {bench.settings(case, place)["size"]: case for case in slimmed}
        cells = [
            cell(bench, found[size], place, 0) if size in found else "-"
            for size in range(len(ratios))
        ]
        refused = sum(run.refused for case in slimmed for run in bench.runs(case, place))
        rows.append(
            ["FedAvg, slimmed", cells[0], *cells, spread(bench.runs(slimmed[-1], place)), refused]
        )
    return table(
        [
            "method",
            "server's model",
            *(f"size {number + 1}" for number in range(len(ratios))),
            "sd, smallest",
            "left out",
        ],
        rows,
    )


def cell(bench: Bench, case: str, place: Settings, size: int) -> str:
    """Return accuracy and parameters of a size."""
    return f"{bench.mean(case, place, size):.2f} ({bench.runs(case, place)[0].counts[size]:,})"


def spread(runs: Sequence[Finished]) -> str:
    """Return the deviation of the smallest size's accuracy over seeds."""
    values = [100 * run.last(-1, run.settings["last"]) for run in runs]
    return f"{statistics.stdev(values):.2f}" if len(values) > 1 else "-"


def bytes_table(bench: Bench, place: Settings) -> str:
    """Return megabytes to accuracies, means over seeds that reach them."""
    rows: list[list[str | float | int]] = []
    for case in bench.curves:
        cells = []
        for goal in bench.plan["goals"]:
            ours, theirs = (
                bench.bytes_to(name, place, goal) for name in (case, bench.plan["whole"])
            )
            cells.append(
                "-"
                if ours is None
                else f"{ours / 1e6:.1f} ({theirs / ours:.1f})"
                if theirs
                else f"{ours / 1e6:.1f}"
            )
        rows.append([case, f"{bench.runs(case, place)[0].counts[-1]:,}", *cells])
    return table(
        ["clients", "parameters", *(f"{100 * goal:g} %" for goal in bench.plan["goals"])], rows
    )


def targets_of(bench: Bench, place: Settings) -> list[bool]:
    """Print the targets of a place."""
    said, ours = called(place), bench.mean("FedHM", place, -1)
    server = bench.mean("FedHM", place, 0)
    met = [
        target(
            f"{said}, FedHM: points of the smallest below the server's model", server - ours, POINTS
        )
    ]
    for case in [
        *(case for case in bench.methods(place) if not case.startswith("FedHM")),
        bench.plan["slimmed"][-1],
    ]:
        met.append(
            at_least(
                f"{said}, FedHM's smallest: points above that of {case}",
                ours - bench.mean(case, place, -1),
                0.0,
            )
        )
    met.append(
        at_least(
            f"{said}, FedHM's server: points above HeteroFL's",
            server - bench.mean("HeteroFL", place, 0),
            0.0,
        )
    )
    return [*met, bytes_met(bench, place)]


def bytes_met(bench: Bench, place: Settings) -> bool:
    """Print the target of bytes to an accuracy late in the run, with nothing to choose."""
    goal = math.floor(bench.mean(bench.plan["whole"], place, -1)) / 100 - 0.01
    whole, thin = (bench.bytes_to(case, place, goal) for case in bench.curves)
    said = f"{called(place)}, bytes to {100 * goal:g} %: times below the whole model's"
    return at_least(f"{said}, {bench.curves[-1]}", whole / thin if whole and thin else 0.0, CHEAPER)


def homogeneous(bench: Bench, place: Settings, what: str) -> None:
    """Print and draw all clients at one size, factored or slimmed: Table 8 and Fig. 3."""
    cases = {"factored (FedHM)": bench.plan["thin"], "slimmed (FedAvg)": bench.plan["slimmed"]}
    sized(bench, cases, place, f"all clients alike, {what}, {called(place)}", "alike")


def hybrids(bench: Bench, what: str) -> None:
    """Print and draw networks whose first layers are whole or not, Fig. 8."""
    place = bench.ablated
    sized(
        bench,
        bench.plan["hybrids"],
        place,
        f"hybrid or not, all clients alike, {what}, {called(place)}",
        "hybrid",
    )


def sized(
    bench: Bench, cases: Mapping[str, Sequence[str]], place: Settings, title: str, name: str
) -> None:
    """Print accuracy by parameters, and draw it."""
    rows: list[list[str | float | int]] = []
    full = bench.runs(bench.plan["whole"], place)[0].counts[-1]
    for label, named in cases.items():
        for case in named:
            runs = bench.runs(case, place)
            count = runs[0].counts[-1]
            rows.append(
                [
                    label,
                    case,
                    f"{count:,}",
                    f"{100 * count / full:.1f}",
                    f"{bench.mean(case, place, -1):.2f}",
                    spread(runs),
                ]
            )
    print(
        f"\n{title}\n\n"
        + table(["networks", "clients", "parameters", "% of whole", "accuracy %", "sd"], rows)
    )
    groups = {label: [bench.runs(case, place) for case in named] for label, named in cases.items()}
    by_size(
        groups,
        bench.out / f"{name}, {called(place)}.png".replace(", ", "_").replace(" ", "_"),
        title=title,
    )


def starts(bench: Bench) -> str:
    """Return the accuracy of networks of one size, whose factors are averaged from either start, or
    whose products are.
    """
    found = {case: bench.runs(case, bench.ablated) for case in bench.plan["starts"]}
    rows: list[list[str | float | int]] = []
    for case, runs in found.items():
        rows.append(
            [
                case,
                f"{runs[0].counts[-1]:,}",
                f"{bench.mean(case, bench.ablated, -1):.2f}",
                spread(runs),
            ]
        )
    return table(["clients at 1/4", "parameters", "accuracy %", "sd"], rows)


def untrained(bench: Bench) -> None:
    """Print costs by layer (Fig. 7) and inference of the whole ResNet-18 at every ratio."""
    net = resnet18((3, 32, 32), 10, bf.Key(0, "net"), norm="group")
    ratios, whole = (
        bench.document["task"]["ratios"],
        whole_first(net, bench.document["nets"]["resnet18"]["whole_first"]),
    )
    rows = by_layer(
        net,
        torch.zeros(1, 3, 32, 32),
        ratios,
        whole,
        bench.out / "layers.png",
        title="ResNet-18 by layer, 3 x 32 x 32",
    )
    heads = [f"{what} {share:g}" for share in ratios for what in ("parameters", "MACs")]
    print("\nResNet-18 by layer and ratio, Fig. 7\n\n" + table(["layer", *heads], rows))
    images = torch.rand(16, 3, 32, 32, generator=bf.Key(0, "images").generator())
    print("\nResNet-18 as a plain torch module, batch of 16, one thread, interleaved\n")
    print(
        table(
            ["ratio", "parameters", "MB", "ms", "dense / it"],
            inference(net, images, ratios, whole, 7),
        )
    )


def search(bench: Bench) -> None:
    """Print what each searched value gives on training images that no run trains on."""
    place = bench.ablated
    rows: list[list[str | float | int]] = []
    for case, searched in tqdm(bench.document["search"].items(), desc="cases"):
        for name, values in searched.items():
            for value in values:
                run = finished(
                    case,
                    bench.settings(case, place, {name: value}),
                    bench.seeds[0],
                    bench.data,
                    bench.out / "search",
                )
                cells = [f"{100 * run.last(size, run.settings['last']):.2f}" for size in (0, -1)]
                rows.append([case, f"{name} {value}", *cells, run.failure or "-"])
    print(table(["method", "setting", "server's model %", "smallest %", "failure"], rows))


if __name__ == "__main__":
    sys.exit(main())
