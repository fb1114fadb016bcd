"""Figures of the papers' systems on data of their own: adapters by task, and CIFAR-10."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from functools import partial

from parts.cifar10 import records
from parts.front.record import Figure, Run, commits_of, runs
from parts.shared.settings import settings_of


def unlike_ranks() -> Iterator[tuple[str, Figure]]:
    """Accuracies of FSLoRA's default and of rules for unlike ranks, by recipe: on digits of two
    ranks, images, and digits by rows, each at the rate that was chosen on held-out rows.
    """
    small = settings_of("fslora")["image_small"]
    rates = {
        (*(small["tasks"][task][of] for of in ("task", "rank")), case.lower()): rate
        for task, by in small["rates"].items()
        for case, rate in by.items()
    }
    found: dict[str, dict[str, list[Run]]] = {}
    for _, run in runs("fslora_default"):
        chosen = run["settings"]
        task, recipe, rate = chosen["task"], chosen["recipe"], chosen["learning_rate"]
        best = rates.get((task, chosen["rank"], recipe.replace("_", "")), rate)
        if rate == best and not chosen["held_out"]:
            by = found.setdefault(recipe, {})
            by.setdefault(f"{task} {chosen['rank']}", []).append(run)
    for recipe, by in found.items():
        means = [statistics.fmean(run["rows"][-1][-1] for run in by[task]) for task in sorted(by)]
        commits = commits_of(run for several in by.values() for run in several)
        values = tuple(f"{mean:.1f}" for mean in means)
        yield f"ranks.{recipe}", Figure(values, "three seeds", "fslora_default", commits)


def glue() -> Iterator[tuple[str, Figure]]:
    """Yield what adapters reach on tasks of GLUE by method: accuracy in percent and Matthews'
    correlation; the standard error of accuracies over the rows of dev.
    """
    for _, run in runs("fslora_glue"):
        last = dict(zip(["", "", "", *run["domains"]], run["rows"][-1], strict=True))
        key = _key("glue", run["settings"]["task"], run["case"])
        made = partial(Figure, setting="one seed", source="fslora_glue", commits=(run["commit"],))
        yield f"{key}.accuracy", made((f"{100 * last['accuracy']:.1f}",))
        yield f"{key}.matthews", made((f"{last['Matthews']:.2f}",))
        yield f"{key}.error", made((f"{100 * last['se of accuracy']:.1f}",))


def cifar10() -> Iterator[tuple[str, Figure]]:
    """Yield what a method reached on CIFAR-10, in percent, and sent, in MB both ways and up, by
    case; on devices also the joules to the accuracy that all came to, and how many times ours.
    """
    found = records.recorded()
    wanted = {line[0]: float(line[-1]) for line in records.costs(found)}
    goal = f"{100 * records.goal(found):.1f}"
    for case, run in found.items():
        key = _key("cifar10", case)
        sent = run["megabytes_down"] + run["megabytes_up"]
        made = partial(Figure, setting="one seed", source="cifar10", commits=(run["commit"],))
        yield f"{key}.accuracies", made(tuple(f"{value:.1f}" for value in run["accuracy"]))
        yield f"{key}.accuracy", made((f"{run['accuracy'][0]:.1f}",))
        yield f"{key}.megabytes", made((f"{sent:.{1 + (sent < 1)}f}",))
        yield f"{key}.up", made((f"{run['megabytes_up']:.1f}",))
        if case in wanted:
            times = f"{wanted[case] / wanted['AnycostFL']:.2f}"
            yield f"{key}.joules", made((f"{run['joules']:.0f}",))
            yield f"{key}.joules_to_goal", made((goal, f"{wanted[case]:.0f}"))
            yield f"{key}.times_to_goal", made((times,))


def _key(*said: str) -> str:
    return ".".join("_".join(re.findall(r"\w+", part.lower())) for part in said)
