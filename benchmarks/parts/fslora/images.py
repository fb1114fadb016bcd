"""The tables and targets of `fslora.py` on images, where the rank of an adapter matters."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parts.fslora.bias import biases, large, shares
from parts.fslora.image_runs import Place, Run, Settings
from parts.fslora.memory import peaks
from parts.shared.curves import within
from parts.shared.settings import resolved
from parts.shared.targets import at_least, target

from bayesfed.inspect import table

OURS, HALF, RIVALS = (
    "FSLoRA, anchored",
    "FSLoRA, anchored, A frozen",
    ("HeteroLoRA", "FlexLoRA", "FedStackLoRA"),
)
BESIDE = ("FSLoRA", "FSLoRA, printed", "FFA-LoRA", "all at 64", "all at 8")
PLAIN = ("all at 64, no momentum", "all at 8, no momentum")
RANK_MATTERS, LEAD, NEAR, BELOW, TOTAL, SHARE = 3.0, 1.5, 1.0, 0.5, 0.2, 0.15
# At equal bytes the two are level: two standard errors of their difference over five seeds.
TIE = -0.26


@dataclass(frozen=True)
class Images:
    """The settings, where data and runs are, and the seeds."""

    document: Settings
    place: Place
    seeds: Sequence[int]
    workers: int
    task: str = "dihedral"

    def settings(self, case: str, **own: Any) -> dict[str, Any]:
        """Return all settings of a case; None takes one out."""
        found = {
            **resolved(self.document["image_cases"], case, self.common),
            "task": self.task,
            **own,
        }
        return {name: value for name, value in found.items() if value is not None}

    @property
    def common(self) -> dict[str, Any]:
        """Return the settings that all cases share."""
        return {name: value for name, value in self.document["images"].items() if name != "seeds"}

    def runs(self, case: str, **own: Any) -> list[Run]:
        """Return a case's runs, one a seed."""
        return [self.place.run(self.settings(case, **own), seed) for seed in self.seeds]

    def prepare(self, jobs: Sequence[tuple[str, dict[str, Any]]]) -> None:
        """Make what is missing of these cases, several runs at once."""
        self.place.prepare(
            [(self.settings(case, **own), seed) for case, own in jobs for seed in self.seeds],
            self.workers,
        )


def images(
    document: Settings,
    task: str,
    folder: Path,
    out: Path,
    seeds: Sequence[int],
    workers: int,
    *,
    check: bool = False,
    searched: bool = False,
) -> int:
    """Print all tables, or those of the search; return the exit status."""
    bench = Images(document, Place(folder, out), seeds, workers, task)
    if searched:
        search(bench)
        return 0
    met = compared(bench, check=check) + costs_of(bench) + peaks()
    biased(bench)
    print(f"runs in {out}/")
    return 0 if all(met) else 1


def compared(bench: Images, *, check: bool) -> list[bool]:
    """Print the methods on mixed rows and on one domain a client, at equal rounds and at equal
    bytes; return which targets are met.
    """
    first = replace(bench, seeds=bench.seeds[:1])
    once: tuple[str, ...] = ("FSLoRA, printed", "all at 64") if check else ()
    cases = [
        case
        for case in (OURS, HALF, *RIVALS, *(BESIDE[:-1] if check else BESIDE), *PLAIN)
        if case not in once
    ]
    sides: list[tuple[str, dict[str, Any]]] = [
        (case, {"split": "apart"}) for case in (OURS, *RIVALS, *(() if check else (HALF, *BESIDE)))
    ]
    longer: dict[str, dict[str, Any]] = bench.document["image_bytes"]
    short = "all at 8"
    first.prepare([(short, longer[short]), *((case, {}) for case in once)])
    bench.prepare(
        [
            *((case, {}) for case in cases),
            *((case, longer[case]) for case in longer if case != short),
            *sides,
        ]
    )
    found = {case: bench.runs(case) for case in cases} | {case: first.runs(case) for case in once}
    shown("mixed", found)
    aside = {case: bench.runs(case, **own) for case, own in sides}
    shown("one domain a client", aside)
    long = {case: (first if case == short else bench).runs(case, **longer[case]) for case in longer}
    return ranks_matter(found) + leads(found) + near(aside) + equal_bytes(found | long)


def ranks_matter(found: dict[str, list[Run]]) -> list[bool]:
    """Print whether the task needs its rank."""
    return [
        at_least(
            "all at 64 above all at 8, points",
            mean(found[PLAIN[0]]) - mean(found[PLAIN[1]]),
            RANK_MATTERS,
        )
    ]


def leads(found: dict[str, list[Run]]) -> list[bool]:
    """Print the leads on mixed rows; seeds are paired."""
    best = max(RIVALS, key=lambda case: mean(found[case]))
    pairs = [
        ours.rows[-1][3] - theirs.rows[-1][3]
        for ours, theirs in zip(found[OURS], found[best], strict=True)
    ]
    print(f"{OURS} less {best}, by seed: {', '.join(f'{pair:.2f}' for pair in pairs)}")
    whole = found[PLAIN[0]]
    return [
        at_least(
            f"mixed: points above the best of {', '.join(RIVALS)}", statistics.mean(pairs), LEAD
        ),
        target(
            "mixed: points below all at 64 without momentum", mean(whole) - mean(found[OURS]), BELOW
        ),
    ]


def near(aside: dict[str, list[Run]]) -> list[bool]:
    """Print the distance from the best with one domain a client, and what that one sends."""
    best = max(RIVALS, key=lambda case: mean(aside[case]))
    behind, share = (
        mean(aside[best]) - mean(aside[OURS]),
        aside[OURS][0].total / aside[best][0].total,
    )
    lines = [
        target(f"one domain a client: points below the best of the others, {best}", behind, NEAR)
    ]
    if behind <= 0:
        print(
            f"one domain a client: ahead of the others, at {share:.2f} of the total bytes of {best}"
        )
        return lines
    return [
        *lines,
        target(f"one domain a client: share of the total bytes of {best}", share, TOTAL),
    ]


def equal_bytes(found: dict[str, list[Run]]) -> list[bool]:
    """Print what each method reaches with the bytes, both ways, of the anchored runs. Those in
    "image_bytes" have rounds of their own for it.
    """
    budget = min(run.total for run in found[OURS])
    reached = {
        case: statistics.mean(within(run.curve, budget) for run in runs)
        for case, runs in found.items()
    }
    rows: list[list[str | float | int]] = [
        [case, f"{value:.2f}", spent(found[case][0], budget)] for case, value in reached.items()
    ]
    print(
        f"\nwith at most {budget:.2f} MB of a client, up and down\n\n"
        + table(["method", "accuracy %", "rounds"], rows)
        + "\n"
    )
    own = (OURS, HALF, "FSLoRA")
    ours = max((case for case in own if case in reached), key=reached.__getitem__)
    # Some cases are of the first seed only; seeds are paired.
    behind = {
        case: _lead(found[ours], runs, budget) for case, runs in found.items() if case not in own
    }
    best = min(behind, key=behind.__getitem__)
    return [
        at_least(
            f"at equal total bytes: points of {ours} above the best of all others, {best}",
            behind[best],
            TIE,
        )
    ]


def _lead(ours: Sequence[Run], theirs: Sequence[Run], budget: float) -> float:
    return statistics.mean(
        within(own.curve, budget) - within(other.curve, budget)
        for own, other in zip(ours, theirs, strict=False)
    )


def spent(run: Run, budget: float) -> int:
    """Return the last scored round within a budget."""
    return max((int(row[0]) for row in run.rows if row[1] + row[2] <= budget), default=0)


def shown(title: str, found: dict[str, list[Run]]) -> None:
    """Print one table."""
    rows: list[list[str | float | int]] = []
    for case, runs in found.items():
        last = [run.rows[-1] for run in runs]
        spread = f"{statistics.stdev(row[3] for row in last):.2f}" if len(runs) > 1 else "-"
        settings = runs[0].settings
        chosen = [rate_of(settings), f"{settings['momentum']:g}"]
        rows.append(
            [
                case,
                len(runs),
                *chosen,
                f"{statistics.mean(row[3] for row in last):.2f}",
                spread,
                f"{last[0][1]:.2f}",
                f"{last[0][2]:.2f}",
            ]
        )
    print(
        f"\n{title}\n\n"
        + table(["method", "seeds", "rate", "momentum", "%", "sd", "MB up", "MB down"], rows)
        + "\n"
    )


def rate_of(settings: Settings) -> str:
    """Return the learning rate, "falling" if it does."""
    return f"{settings['learning_rate']:g}" + (", falling" if settings.get("falling") else "")


def mean(runs: Sequence[Run]) -> float:
    """Return the mean of the last accuracies."""
    return statistics.mean(run.rows[-1][3] for run in runs)


def costs_of(bench: Images) -> list[bool]:
    """Print what clients of every size hold and compute, for this network and for one of 10^8
    parameters, and the targets on it.
    """
    settings = bench.settings(OURS)
    found = shares(settings, bench.place) | large(settings)
    print(
        "\nclients of 8 and of 64 slices\n\n"
        + table(
            ["figure", "8 slices", "64 slices", "ratio"],
            [one.row(name) for name, one in found.items()],
        )
        + "\n"
    )
    return [
        target(f"1/8 of the slices: {name}", one.ratio, SHARE)
        for name, one in found.items()
        if one.counts
    ]


def biased(bench: Images) -> None:
    """Print how far the mean update of sketched clients is from that of whole adapters."""
    rows: list[list[str | float | int]] = [
        list(row) for row in biases(bench.settings(OURS), bench.place)
    ]
    print(
        "\nmean update of a client with 8 of 64 slices, against that with all: distance "
        "after the best scaling, cosine, length\n"
    )
    print(table(["mode", "optimiser", "steps", "distance", "cosine", "length"], rows) + "\n")


def search(bench: Images) -> None:
    """Print what rates and momenta give on held-out rows.

    Two rates at a momentum of 0.5, other momenta at the better rate, then rates that fall, of the
    first seed; then the two best of all, of all seeds.
    """
    asked = bench.document["image_search"]
    common = {"rounds": asked["rounds"], "held_out": asked["held_out"], "falling": None}
    one = replace(bench, seeds=bench.seeds[:1])
    cases = [OURS, HALF, *RIVALS, *BESIDE]
    settings = {
        case: [
            {**common, "learning_rate": rate, "momentum": 0.5} for rate in asked["learning_rate"]
        ]
        for case in cases
    }
    one.prepare([(case, own) for case in cases for own in settings[case]])
    for case in cases:
        best = max(settings[case], key=lambda own: mean(one.runs(case, **own)))
        settings[case] += [{**best, "momentum": momentum} for momentum in asked["momentum"]]
        settings[case] += [{**common, **own} for own in asked["falling"]]
    one.prepare([(case, own) for case in cases for own in settings[case]])
    last = {
        case: sorted(settings[case], key=lambda own: -mean(one.runs(case, **own)))[:2]
        for case in cases
    }
    bench.prepare([(case, own) for case in cases for own in last[case]])
    rows: list[list[str | float | int]] = []
    for case in cases:
        for own in settings[case]:
            every = f"{mean(bench.runs(case, **own)):.2f}" if own in last[case] else ""
            rows.append(
                [
                    case,
                    rate_of(own),
                    f"{own['momentum']:g}",
                    f"{mean(one.runs(case, **own)):.2f}",
                    every,
                ]
            )
    print(
        f"\n{asked['rounds']} rounds, held-out rows\n\n"
        + table(["method", "rate", "momentum", "% of one seed", f"of {len(bench.seeds)}"], rows)
    )
