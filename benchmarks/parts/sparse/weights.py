"""Very few weights: a learned support with a way back by own data, beside a random support at equal
density and at equal bytes, the latter also with one density in all layers, no way back, and
magnitude pruning: as many rounds of a dense network, then as many of `fed_prune` from it, with
values of 16 bits.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from parts.shared.kept import commit
from parts.shared.settings import resolved, settings_of
from parts.shared.targets import at_least, target
from parts.sparse.tasks import TASKS, Task
from parts.sparse.words import words

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import Changes, Returns
from bayesfed.errors import CollapseWarning
from bayesfed.federated import Algorithm, cosine
from bayesfed.inspect import table

RECORDS = Path(__file__).parents[2] / "records" / "sparse.jsonl"
LEARNED, EQUAL, PRUNED = "learned", "random, equal bytes", "pruned"
FLAT = "random, equal bytes, one density"
METHODS = (LEARNED, "no way back", "random", EQUAL, FLAT, PRUNED)
# Settings that say what is wanted of a case, and whether `--check` runs it.
WANTED = ("goal", "megabytes", "found", "lead", "rival", "short")
SHOWN = ("accuracy", "megabytes")
Settings = Mapping[str, Any]


class Row(NamedTuple):
    """What a run gave: accuracy in percent, megabytes both ways, share of active weights, and how
    many of the inputs that matter are among as many that are used most.
    """

    case: str
    method: str
    seed: int
    accuracy: float
    megabytes: float
    density: float
    found: int | None
    rounds: int
    curve: list[tuple[float, float]]


class Made(NamedTuple):
    """A case's task, and its settings."""

    name: str
    seed: int
    task: Task
    settings: Settings


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether each target is met."""
    torch.set_num_threads(1)
    every, rows = cases(), list[Row]()
    names = options.cases or [
        name for name in every if options.check or options.data or every[name]["task"] != "words"
    ]
    for name in names:
        settings = every[name]
        if options.check and not settings["short"]:
            rows += recorded(name)
            continue
        for seed in options.seeds or range(1 if options.check else 3):
            made = Made(name, seed, task_of(settings, seed, options.data), settings)
            for method in options.methods or ((LEARNED, EQUAL) if options.check else METHODS):
                rows.append(run(made, method, rows))
                print(*rows[-1][:-1], flush=True)
                if options.record:
                    record(rows[-1], settings)
    print(table([*Row.__annotations__][:-1], [[*map(str, row)][:-1] for row in rows]))
    for name in names:
        yield from met(name, every[name], [row for row in rows if row.case == name])


def cases() -> dict[str, Settings]:
    """Return the settings of every case."""
    found = settings_of("sparse")
    return {name: resolved(found["cases"], name, found["base"]) for name in found["cases"]}


def recorded(name: str) -> list[Row]:
    """Return the last recorded run of every method and seed of a case with its present settings."""
    lines = [json.loads(line) for line in RECORDS.read_text().splitlines()]
    found = {
        (line["method"], line["seed"]): Row(**{field: line[field] for field in Row.__annotations__})
        for line in lines
        if line["case"] == name and ran(line["settings"]) == ran(cases()[name])
    }
    return [*found.values()]


def cells(name: str) -> list[str]:
    """Return a case's row of the page of benchmarks: number of seeds, mean accuracy and megabytes
    of the learned support, and those of each random one with the lead of the learned one.
    """
    rows = recorded(name)
    of = [[row for row in rows if row.method == method] for method in (LEARNED, EQUAL, FLAT)]
    means = [[statistics.fmean(getattr(row, one) for row in own) for one in SHOWN] for own in of]
    ours, *theirs = ["{:.1f} at {:.2f} MB".format(*both) for both in means]
    leads = [f"{means[0][0] - accuracy:.1f}" for accuracy, _ in means[1:]]
    return [name, str(min(map(len, of))), ours, theirs[0], leads[0], theirs[1], leads[1]]


def ran(settings: Settings) -> Settings:
    """Return the settings that a run depends on."""
    return {name: value for name, value in settings.items() if name not in WANTED}


def met(name: str, settings: Settings, rows: Sequence[Row]) -> Iterator[bool]:
    """Print a case's targets for the means of its seeds; yield whether each is met."""
    of = {method: [row for row in rows if row.method == method] for method in METHODS}
    rival = settings["rival"]
    if not of[LEARNED] or not of[rival]:
        yield at_least(f"{name}: runs to compare", min(len(of[LEARNED]), len(of[rival])), 1)
    if ours := of[LEARNED]:
        accuracy = statistics.fmean(row.accuracy for row in ours)
        yield at_least(f"{name}: accuracy in percent", accuracy, settings["goal"])
        if "megabytes" in settings:
            spent = statistics.fmean(row.megabytes for row in ours)
            yield target(f"{name}: megabytes", spent, settings["megabytes"])
        if "found" in settings:
            found = min(row.found or 0 for row in ours)
            yield at_least(f"{name}: inputs found", found, settings["found"])
        apart = max(abs(row.density / settings["density"] - 1) for row in ours)
        yield target(f"{name}: density got, off by a share of that asked", apart, 0.02)
        for method in (EQUAL, FLAT):
            if theirs := of[method]:
                lead = accuracy - statistics.fmean(row.accuracy for row in theirs)
                if method == rival:
                    yield at_least(f"{name}: points above {method}", lead, settings["lead"])
                else:
                    print(f"{name}: {lead:.1f} points above {method}")


def task_of(settings: Settings, seed: int, folder: Path | None) -> Task:
    """Return a case's task, with hidden layers of its own widths."""
    task = (
        words(seed, folder)
        if settings["task"] == "words" and folder
        else TASKS[settings["task"]](seed)
    )
    return task._replace(widths=(task.widths[0], *settings["hidden"], task.widths[-1]))


def run(made: Made, method: str, before: Sequence[Row]) -> Row:
    """Run a method once."""
    name, seed, task, settings = made
    rounds = settings["rounds"]
    if method in {EQUAL, FLAT}:
        ours = [row for row in [*recorded(name), *before] if row[:3] == (name, LEARNED, seed)][-1]
        # A round's bytes do not depend on its steps.
        few = made._replace(settings={**settings, "steps": 1})
        probe = algorithm(few, task.net(seed), method, rounds)
        rounds = rounds_of(ours.megabytes, probe, task.clients, seed)
    net, spent = task.net(seed), 0.0
    if method == PRUNED:
        dense = bf.run(
            bf.fed_avg(net, training=work(settings, rounds), codec=bf.Cast(16)),
            task.clients,
            rounds=rounds,
            seed=seed,
            progress=False,
        )
        net.load_state_dict(dict(dense.model.parameters))
        spent = dense.bits() / 8e6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)
        result = bf.run(
            algorithm(made, net, method, rounds),
            task.clients,
            rounds=rounds,
            test=task.test,
            seed=seed,
            progress=False,
        )
    parameters, first = result.model.parameters, next(iter(bf.declare(net).sites))
    weights = [leaf for leaf in parameters.values() if leaf.ndim > 1]
    left = sum(int(leaf.count_nonzero()) for leaf in weights)
    found = None
    if task.matter is not None:
        most = (parameters[first] != 0).sum(0).topk(int(task.matter.sum())).indices
        found = int(task.matter[most].sum())
    accuracy, sent = result.series("accuracy"), result.bits() / 8e6
    density = (
        left / sum(leaf.numel() for leaf in weights)
        if method == PRUNED
        else result.final("density")
    )
    return Row(
        name,
        method,
        seed,
        round(100 * accuracy[-1][1], 2),
        round(spent + sent, 4),
        density,
        found,
        rounds,
        [
            (round(spent + sent * (at + 1) / rounds, 4), round(100 * value, 2))
            for at, value in accuracy
        ],
    )


def rounds_of(
    megabytes: float, algorithm: Algorithm, clients: Mapping[str, bf.Dataset], seed: int
) -> int:
    """Return the rounds in which a support that stays as it is sends so much."""
    few = bf.run(algorithm, clients, rounds=3, seed=seed, progress=False)
    # From the third round on all have the same length.
    *first, later = (sum(row.bits for row in record.rows) / 8e6 for record in few.history)
    return math.ceil(len(first) + (megabytes - sum(first)) / later)


def algorithm(made: Made, net: torch.nn.Module, method: str, rounds: int) -> Algorithm:
    """Return a method's algorithm."""
    _, _, task, settings = made
    density, training = settings["density"], work(settings, rounds)
    if method == PRUNED:
        return bf.fed_prune(net, share=density, training=training, codec=bf.Cast(16))
    prior = bf.Prior(
        bf.models.MarkovGrid(*settings["stay"]),
        bf.BernoulliGamma(settings["slab_sd"], settings["spike_sd"]),
    )
    declared = bf.declare(
        net, prior, likelihood=bf.Categorical(temperature=settings["temperature"])
    )
    learn = method in (LEARNED, "no way back")
    densities = patch("bayesfed.algorithms.d_turbo_vbi.changes.densities", dict.fromkeys)
    with densities if method == FLAT else nullcontext():
        return bf.d_turbo_vbi(
            declared,
            observations=task.observations,
            training=training,
            changes=Changes.ternary(density, up=settings["up"], down=settings["down"], learn=learn),
            density=density,
            returns=Returns(every=settings["every"]) if method == LEARNED else Returns(0.0),
        )


def work(settings: Settings, rounds: int) -> bf.Training:
    """Return the local work of a round."""
    return bf.Training(
        settings["steps"], 64, bf.Adam(settings["learning_rate"]), cosine(0.1, rounds)
    )


def record(row: Row, settings: Settings) -> None:
    """Append a run to the records, with its settings and the commit."""
    with RECORDS.open("a") as file:
        file.write(json.dumps(row._asdict() | {"settings": settings, "commit": commit()}) + "\n")
