"""Every figure of README by its key, computed from `benchmarks/records`; of benchmarks that keep
no runs, from what they measured last (`records/targets.tsv`).
"""

from __future__ import annotations

import json
import re
import statistics
import tomllib
from collections.abc import Iterator, Sequence
from functools import partial

from parts.checks.table import kept
from parts.exact.limits import ERROR, KILOBYTES, ROUNDS, WIDTH, is_near
from parts.exact.told import figures as exact
from parts.front.papers import cifar10, glue, unlike_ranks
from parts.front.record import RECORDS, Figure, Run, commits_of, runs

BITS = "accuracy_vs_bits"


def figures() -> dict[str, Figure]:
    """Return all figures by key."""
    made: dict[str, Figure] = {}
    for maker in MAKERS:
        made.update(maker())
    return made


def curves() -> dict[str, list[list[float]]]:
    """Return (megabytes up, down, accuracy, density) after each round of seed 0, by file name of
    the method.
    """
    return {
        name.removesuffix("_0.json"): run["rounds"]
        for name, run in runs(BITS)
        if name.endswith("_0.json")
    }


def _bits() -> Iterator[tuple[str, Figure]]:
    setting = "MLP 784-256-256-10 on Fashion-MNIST, ten clients, Dirichlet 0.5, one seed"
    made = {name.removesuffix("_0.json"): run for name, run in runs(BITS)}

    def figure(value: str, case: str) -> Figure:
        return Figure((value,), setting, BITS, commits_of([made[case]]))

    for name, rounds in curves().items():
        key = name.lower().replace("-", "_")
        for goal in (84, 86):
            spent = [up + down for up, down, accuracy, _ in rounds if accuracy >= goal / 100]
            if spent:
                shown = f"{spent[0]:.1f}" if spent[0] < 100 else f"{spent[0]:.0f}"
                yield f"bits.{key}.to_{goal}", figure(shown, name)
        yield f"bits.{key}.last", figure(f"{100 * rounds[-1][2]:.1f}", name)
        yield f"bits.{key}.density", figure(f"{100 * rounds[-1][3]:.1f}", name)
    ours = "D-Turbo-VBI_changes"
    yield "bits.temperature", figure(f"{made[ours]['settings']['temperature']:g}", ours)
    yield "goal", figure("86", ours)
    yield "bits.stc.first", figure(f"{curves()['STC'][0][1]:.1f}", "STC")


def corrupted(reading: Run) -> float:
    """Return the mean NLL over corruptions and severities."""
    return statistics.fmean(value for values in reading["corrupted"].values() for value in values)


def readings(
    rows: int = 2000, seeds: Sequence[int] = (0, 1, 2, 3, 4), concentration: float = 0.5
) -> dict[str, list[Run]]:
    """Return the scores at so many rows by method, "fed_avg", "fed_avg.temperature",
    "prior.laplace" and so on, one a seed, with megabytes.

    The prior is the one with the least NLL on held-out rows. Clients have rows by
    Dirichlet(`concentration`).
    """
    chosen = [
        run
        for _, run in runs("uncertainty")
        if run["settings"]["rows"] == rows and run["seed"] in seeds
    ]
    chosen = [run for run in chosen if run["settings"]["concentration"] == concentration]
    precisions: dict[float, list[float]] = {}
    for run in chosen:
        if "prior_precision" in run["settings"]:
            precisions.setdefault(run["settings"]["prior_precision"], []).append(
                run["readings"][""]["held_nll"]
            )
    prior = min(precisions, key=lambda one: statistics.fmean(precisions[one]))
    found: dict[str, list[Run]] = {}
    for run in sorted(chosen, key=lambda run: run["seed"]):
        settings = run["settings"]
        if settings.get("prior_precision", prior) == prior:
            own = next(
                (
                    name
                    for name in ("prior_precision", "dropout", "members", "central")
                    if name in settings
                ),
                "",
            )
            case = {"": settings["method"], "prior_precision": "prior", "members": "ensemble"}.get(
                own, own
            )
            for name, reading in run["readings"].items():
                found.setdefault(
                    ".".join(part for part in (case, name.lower()) if part), []
                ).append({**reading, **{of: run[of] for of in ("megabytes", "commit")}})
    return found


def _uncertainty() -> Iterator[tuple[str, Figure]]:
    setting = "Fashion-MNIST, 2,000 rows of ten clients, Dirichlet 0.5, five seeds"
    every = readings()
    for name, several in every.items():
        made = partial(Figure, setting=setting, source="uncertainty", commits=commits_of(several))
        share = 100 * several[0]["megabytes"] / every["fed_avg"][0]["megabytes"]
        yield f"corrupted.{name}", made((f"{statistics.fmean(map(corrupted, several)):.2f}",))
        yield f"corrupted.{name}.bytes", made((f"{share:.0f}",))
        for score in ("nll", "ece"):
            mean = statistics.fmean(one[score] for one in several)
            yield f"clean.{name}.{score}", made((f"{mean:.3f}",))
    # What the recipe takes where the likelihood leaves it open: a tenth of the rows that are
    # trained on, for each weight of the MLP.
    rows, weights = 2000, 784 * 256 + 256 * 256 + 256 * 10
    commits = commits_of(every["d_turbo_vbi"])
    temperature = (f"{0.1 * rows / weights:.4f}",)
    yield "corrupted.temperature", Figure(temperature, setting, "uncertainty", commits)
    whole = "Fashion-MNIST, 54,000 rows of ten clients, Dirichlet 0.5, five seeds"
    for name, several in readings(54000).items():
        made = partial(Figure, setting=whole, source="uncertainty", commits=commits_of(several))
        accuracy = 100 * statistics.fmean(one["accuracy"] for one in several)
        yield f"whole.{name}", made((f"{statistics.fmean(map(corrupted, several)):.2f}",))
        yield f"whole.{name}.accuracy", made((f"{accuracy:.1f}",))


def _sizes() -> Iterator[tuple[str, Figure]]:
    """Accuracy of the smallest network by method at its defaults, the mean of the tasks' means."""
    found: dict[str, dict[str, list[Run]]] = {}
    for _, run in runs("fedhm_defaults"):
        found.setdefault(run["method"], {}).setdefault(run["task"], []).append(run)
    for method, by in found.items():
        means = [
            statistics.fmean(run["accuracy"][-1] for run in several) for several in by.values()
        ]
        commits = commits_of(run for several in by.values() for run in several)
        setting = {6: "six small tasks, Dirichlet 0.5"}[len(by)]
        values = (f"{statistics.fmean(means):.1f}",)
        yield f"sizes.{_SIZES.get(method, method)}", Figure(values, setting, "fedhm", commits)


_SIZES = {
    "FedHM": "fed_hm",
    "HeteroFL": "hetero_fl",
    "Split-Mix": "split_mix",
    "FedAvg, size 3": "fed_avg",
}


def _budgets() -> Iterator[tuple[str, Figure]]:
    """Joules to the goal as times AnycostFL's, over the seeds of which a rival has a run."""
    joules: dict[tuple[float, str], dict[str, float]] = {}
    by: dict[tuple[float, str], dict[str, Run]] = {}
    for name, run in runs("anycostfl"):
        chosen = run["settings"]
        if "goal" in chosen and not chosen.keys() & {"epsilon_variance", "distance_variance"}:
            rows = run["rows"]
            reached = next((row for row in rows if row[0] >= chosen["goal"]), rows[-1])
            seed = name.rpartition("_")[2]
            joules.setdefault((chosen["alpha"], run["case"]), {})[seed] = reached[1]
            by.setdefault((chosen["alpha"], run["case"]), {})[seed] = run
    for (alpha, case), spent in joules.items():
        ours = joules[alpha, "AnycostFL"]
        if case != "AnycostFL":
            times = sum(spent.values()) / sum(ours[seed] for seed in spent)
            setting = (
                "Fashion-MNIST, 12 devices, "
                + ("one seed", "two seeds", "three seeds")[len(spent) - 1]
            )
            key = f"budgets.{'dirichlet' if alpha else 'iid'}.{case.lower()}"
            both = by[alpha, case], by[alpha, "AnycostFL"]
            commits = commits_of(of[seed] for of in both for seed in spent)
            yield key, Figure((f"{times:.1f}",), setting, "anycostfl", commits)


def _package() -> Iterator[tuple[str, Figure]]:
    project = tomllib.loads((RECORDS.parents[1] / "pyproject.toml").read_text())["project"]
    yield (
        "python",
        Figure((project["requires-python"].removeprefix(">="),), "or later", "pyproject.toml"),
    )


def posteriors() -> list[Run]:
    """Return the scores of posteriordb's posteriors, as `exact.py` recorded them."""
    lines = map(json.loads, (RECORDS / "exact.jsonl").read_text().splitlines())
    found = next(line for line in lines if line["name"] == "posteriors")
    return [score | {"commit": found["commit"]} for score in found["scores"]]


def supports() -> dict[str, dict[str, list[Run]]]:
    """Return the runs of `sparse.py`, one a seed, by case and method."""
    found: dict[str, dict[str, dict[int, Run]]] = {}
    for line in map(json.loads, (RECORDS / "sparse.jsonl").read_text().splitlines()):
        found.setdefault(line["case"], {}).setdefault(line["method"], {})[line["seed"]] = line
    return {c: {m: [*of.values()] for m, of in by.items()} for c, by in found.items()}


def _posteriors() -> Iterator[tuple[str, Figure]]:
    rows = posteriors()
    near = [row for row in rows if is_near(row["error"], row["low"], row["high"])]
    rough = [row for row in rows if row["laplace"] <= ERROR]
    commits, every = commits_of(rows), f"{len(rows)}"
    within = f"{ERROR}", f"{100 * WIDTH:.0f}"
    yield "posteriors.within", Figure(within, "posteriordb", "exact", commits)
    yield "posteriors.near", Figure((f"{len(near)}", every), "posteriordb", "exact", commits)
    yield "posteriors.laplace", Figure((f"{len(rough)}", every), "posteriordb", "exact", commits)
    met = [row for row in near if row["rounds"] <= ROUNDS and row["kilobytes"] <= KILOBYTES]
    limits = f"{len(met)}", f"{ROUNDS}", f"{KILOBYTES:g}"
    yield "posteriors.met", Figure(limits, "posteriordb", "exact", commits)
    for name in ("rounds", "kilobytes"):
        spent = [row[name] for row in near]
        ends = f"{min(spent):.0f}", f"{max(spent):.0f}"
        yield f"posteriors.{name}", Figure(ends, "posteriordb", "exact", commits)


def _supports() -> Iterator[tuple[str, Figure]]:
    for case, of in supports().items():
        seeds = {1: "one seed", 2: "two seeds", 3: "three seeds"}[len(of["learned"])]
        for method, several in of.items():
            words = re.findall(r"\w+", f"{case} {method}".lower())
            key = f"supports.{'_'.join(words)}"
            commits = commits_of(several)
            for name, digits in (("accuracy", 1), ("megabytes", 2)):
                mean = statistics.fmean(row[name] for row in several)
                yield f"{key}.{name}", Figure((f"{mean:.{digits}f}",), seeds, "sparse", commits)
            asked = f"{100 * several[0]['settings']['density']:g}"
            yield f"{key}.density", Figure((asked,), seeds, "sparse", commits)


def _targets() -> Iterator[tuple[str, Figure]]:
    """Yield what programs measured last, by program and the words of a target before its first
    number: ``targets.hostile.cases_of``.
    """
    for one in kept():
        words = re.findall(r"[^\W\d_]+", re.split(r"\d", one.target)[0])
        numbers = re.findall(r"\d[\d.]*(?:e-\d+)?", f"{one.target} {one.measured}")
        yield (
            f"targets.{one.program.partition('.')[0]}.{'_'.join(words)}",
            Figure(
                tuple(f"{float(n.rstrip('.')):,g}" for n in numbers),
                "",
                one.program,
                (one.commit,),
            ),
        )


MAKERS = (
    *(_bits, _uncertainty, _sizes, _budgets, _posteriors, exact, _supports),
    *(unlike_ranks, glue, cifar10, _package, _targets),
)
