"""The runs of `fedhm.py`: a case's settings, the algorithm they make, and its finished run, kept on
disk.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from parts.shared.curves import Curve, reached
from parts.shared.kept import kept

import bayesfed as bf
from bayesfed.algorithms.baselines.hetero_fl import hetero_fl
from bayesfed.algorithms.baselines.split_mix.recipe import split_mix
from bayesfed.algorithms.fed_hm.recipe import fed_hm
from bayesfed.errors import BayesfedError
from bayesfed.federated.core.algorithm import Algorithm, Predictor
from bayesfed.federated.core.protocols import Profile
from bayesfed.federated.engine.metrics import score
from bayesfed.federated.engine.reports import RoundReport, bits
from bayesfed.federated.engine.samplers import fraction
from bayesfed.federated.training.model_sizes import Capacity, dynamic, fixed
from bayesfed.federated.training.optimisers import Schedule
from bayesfed.models.low_rank.hybrid import hybrid, whole_first
from bayesfed.models.nets.resnet import resnet18

Settings = Mapping[str, Any]
IMAGE, CLASSES = (1, 28, 28), 10
# No run trains on the last training images, so that searches can score them.
HELD_OUT = 50_000


@dataclass(frozen=True)
class Data:
    """What runs train on, and what they are scored on."""

    train: bf.Dataset
    scored: bf.Dataset


@dataclass(frozen=True)
class Finished:
    """One run: its sizes, largest first, and (round, bytes so far, accuracy of the server's model
    and of every size) where it was scored.

    Parameters
    ----------
    counts
        Parameters of the server's model and of every size.
    failure
        Why it ended early, if it did.
    refused
        How often a client was left out of a round: those whose training diverged.
    """

    case: str
    seed: int
    settings: Settings
    counts: list[int]
    rows: list[tuple[int, float, list[float]]]
    failure: str = ""
    refused: int = 0

    def last(self, size: int, count: int) -> float:
        """Return the mean accuracy at the last scores: of size -1 the smallest, 1 the largest, 0
        the server's model; chance if it diverged.
        """
        if self.failure or not self.rows:
            return 1 / CLASSES
        return statistics.mean(accuracies[size] for _, _, accuracies in self.rows[-count:])

    def bytes_to(self, goal: float) -> float | None:
        """Return the bytes, down and up, after which the smallest size first had an accuracy."""
        curve: Curve = [(spent, accuracies[-1]) for _, spent, accuracies in self.rows]
        return reached(curve, goal)


def finished(name: str, settings: Settings, seed: int, data: Data, out: Path) -> Finished:
    """Return a run, from its file if it was made before with the same settings; a run that diverges
    keeps the rounds before.
    """
    # All clients have one size: nothing depends on how sizes are dealt.
    mattering = {
        key: value
        for key, value in settings.items()
        if key != "heterogeneity" or settings["capacities"] == "unlike"
    }
    digest = hashlib.sha256(
        json.dumps([mattering, len(data.scored)], sort_keys=True).encode()
    ).hexdigest()[:12]
    found = kept(out / "runs" / f"{digest}_{seed}.json", lambda: _made(name, settings, seed, data))
    return Finished(
        name,
        seed,
        settings,
        found["counts"],
        found["rows"],
        found["failure"],
        found.get("refused", 0),
    )


def _made(name: str, settings: Settings, seed: int, data: Data) -> dict[str, Any]:
    clients, algorithm = parts(settings, seed, data.train), recipe(settings, seed)
    sizes = {"server": algorithm.predictor, **(algorithm.sizes or {"whole": algorithm.predictor})}
    counts = [numbers(of(algorithm.initial)) for of in sizes.values()]
    rows, spent, refused, failure, start = (
        list[tuple[int, float, list[float]]](),
        [0.0],
        [0],
        "",
        time.perf_counter(),
    )

    def note(report: RoundReport) -> None:
        spent[0] += bits(report.rows) / 8
        refused[0] += len(report.refused)
        number = report.snapshot.round
        if number % settings["every"] and number < settings["rounds"]:
            return
        measured = [score(of(report.state), data.scored) for of in list(sizes.values())[1:]]
        # The server's model is the largest size, unless clients that train the largest are left
        # out.
        server = (
            measured[0]
            if counts[0] == counts[1]
            else score(algorithm.predictor(report.state), data.scored)
        )
        rows.append((number, spent[0], [server, *measured]))
        report.metrics["smallest"] = measured[-1]

    try:
        bf.run(
            algorithm,
            clients,
            rounds=settings["rounds"],
            seed=seed,
            sampler=fraction(settings["share"]),
            callbacks=[note],
            on_client_error="drop",
        )
    except BayesfedError as problem:
        # Divergence is a finding here; anything else is a fault of this program.
        if not any(word in str(problem) for word in ("finite", "NaN")):
            raise
        failure = str(problem)
    taken = {"seconds": time.perf_counter() - start, "failure": failure, "refused": refused[0]}
    return {"case": name, "settings": settings, "counts": counts, "rows": rows, **taken}


def numbers(model: Predictor) -> int:
    """Return how many parameters a model has."""
    return sum(leaf.numel() for leaf in model.parameters.values())


def parts(settings: Settings, seed: int, train: bf.Dataset) -> dict[str, bf.Dataset]:
    """Return the clients' rows."""
    data, key, count = (
        train[slice(0, settings["images"])],
        bf.Key(seed, "partition"),
        settings["clients"],
    )
    return bf.federate(
        data,
        bf.dirichlet(data.targets, count, settings["alpha"], key)
        if settings["alpha"]
        else bf.iid(len(data), count, key),
    )


@cache
def network(kind: str, base: Sequence[float], width: float, seed: int) -> torch.nn.Module:
    """Return a network of the seed at a width, and so with every size's first values."""
    key = bf.Key(seed, "net")
    if kind == "resnet18":
        return resnet18(IMAGE, CLASSES, key, width=base[0] * width, norm="group")
    first, second, hidden = (max(1, round(size * width)) for size in base)
    return bf.cnn(IMAGE, CLASSES, key, channels=(first, second), hidden=hidden)


def net(settings: Settings, number: int, seed: int) -> torch.nn.Module:
    """Return the slimmed network of a size; number 0 is the whole."""
    return network(settings["net"], tuple(settings["base"]), settings["widths"][number], seed)


def capacity(settings: Settings, left_out: int) -> Capacity:
    """Return who trains which size; those who could train one that is left out train the largest
    there is.
    """
    names = sorted(bf.federate(_nobody(), [torch.arange(0) for _ in range(settings["clients"])]))
    count = len(settings["ratios"])
    dealt = dynamic(count) if settings["heterogeneity"] == "dynamic" else fixed(names, count)

    def capped(profile: Profile, round: int, key: bf.Key) -> int:
        return max(dealt(profile, round, key) - left_out, 0)

    return capped


def _nobody() -> bf.Dataset:
    return bf.Dataset(torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))


def milestones(settings: Settings) -> Schedule:
    """Return the paper's schedule, a tenth of the rate after each of these shares of the rounds,
    after a warm-up.
    """
    at = [round(share * settings["rounds"]) for share in settings["milestones"]]
    slow = settings.get("warm_up", 0) + 1
    return lambda round: min(1.0, (round + 1) / slow) * 0.1 ** sum(round >= mark for mark in at)


def recipe(settings: Settings, seed: int) -> Algorithm:
    """Return a case's algorithm."""
    left_out, rate, decay = settings["left_out"], settings["learning_rate"], settings["decay"]
    optimiser = bf.Sgd(rate, settings["momentum"], 0.0 if settings["recipe"] == "fed_hm" else decay)
    common: dict[str, Any] = {
        "training": bf.Training(
            settings["steps"], settings["batch_size"], optimiser, milestones(settings)
        ),
        "masked": settings["masked"],
    }
    if settings["recipe"] == "fed_hm":
        whole = net(settings, 0, seed)
        alike = settings["capacities"] == "alike"
        ratios = (
            settings["ratios"][settings["size"] :][:1] if alike else settings["ratios"][left_out:]
        )
        temperature = (
            settings["temperature"] if settings["heterogeneity"] == "dynamic" else float("inf")
        )
        keep = None if settings["whole_first"] < 0 else whole_first(whole, settings["whole_first"])
        own = {
            "whole": keep,
            "split": settings["split"],
            "decay": decay,
            "temperature": temperature,
            "by_rows": settings["by_rows"],
            # Printed, and what the records were measured with; `defaults.py` has the default.
            "start": "whole",
            "min_rank": 1,
            "residual": round(settings["residual"] * settings["rounds"]),
        }
        return fed_hm(
            whole, ratios, dynamic(1) if alike else capacity(settings, left_out), **own, **common
        )
    if settings["recipe"] == "hetero_fl":
        nets = [net(settings, number, seed) for number in range(left_out, len(settings["ratios"]))]
        return hetero_fl(nets, capacity(settings, left_out), **common)
    if settings["recipe"] == "split_mix":
        width = settings["widths"][-1]

        def narrow(key: bf.Key) -> torch.nn.Module:
            # Each network has a seed of its own.
            own = int(torch.randint(2**31, (), generator=key.generator()))
            return network(settings["net"], tuple(settings["base"]), width, own)

        share = capacity(settings, 0)
        return split_mix(narrow, settings["narrow"], share, key=bf.Key(seed, "narrow"), **common)
    if settings["recipe"] == "factored":
        whole = net(settings, 0, seed)
        start = {
            "initial": settings["initial"],
            "key": bf.Key(seed, "factors") if settings["initial"] == "random" else None,
        }
        keep = whole_first(whole, settings["whole_first"])
        return bf.fed_avg(
            hybrid(whole, settings["ratios"][settings["size"]], whole=keep, **start), **common
        )
    return bf.fed_avg(net(settings, settings["size"], seed), **common)
