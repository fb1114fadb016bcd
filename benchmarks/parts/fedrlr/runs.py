"""The runs of `fedrlr.py`: a case's settings, the algorithm they make, and its finished run, kept
on disk.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from parts.shared.curves import Curve

import bayesfed as bf
from bayesfed.algorithms import fed_l1, fed_mid, fed_prune
from bayesfed.algorithms.fed_rlr.encodings import Factors, Points, Tangents, Transmission
from bayesfed.algorithms.fed_rlr.local import sent_shapes
from bayesfed.algorithms.fed_rlr.recipe import fed_rlr
from bayesfed.compress.lossless.bits import Fixed
from bayesfed.compress.quantisers.floats import Uniform
from bayesfed.errors import BayesfedError
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Link
from bayesfed.federated.engine.metrics import score
from bayesfed.federated.engine.reports import RoundReport, channel_uses
from bayesfed.federated.links.compressed_sensing import Compressed
from bayesfed.federated.links.digital import Digital
from bayesfed.federated.links.over_the_air import OverTheAir
from bayesfed.federated.training.optimisers import Schedule, constant, inverse
from bayesfed.models import fixed_rank
from bayesfed.wireless.power_control import ChannelInversion, Gbma, PowerControl

Settings = Mapping[str, Any]
# The paper's Table II: 75.00 rounds of digital FedAvg, one model of 268,800 weights and 522 biases
# a round.
DENSE, REFERENCE = 269_322, 2.02e7
# Rows that are trained on and scored: the paper's, and a search's, which takes neither from the
# test rows.
ROWS = {
    "test": (slice(0, 50_000), slice(50_000, 60_000)),
    "search": (slice(0, 40_000), slice(40_000, 42_000)),
}


@dataclass(frozen=True)
class Finished:
    """One run: (channel uses so far, accuracy, the clients' mean training loss) after each round.

    Parameters
    ----------
    failure
        Why it ended early, if it did.
    own
        The mean accuracy of the clients' own models after the last round, where they keep one.
    """

    case: str
    seed: int
    settings: Settings
    rounds: list[list[float]]
    failure: str = ""
    own: float | None = None
    curve: Curve = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "curve", [(uses, accuracy) for uses, accuracy, _ in self.rounds])

    def reached(self, goal: float) -> int | None:
        """Return the number of rounds after which an accuracy was first reached."""
        return next(
            (number for number, (_, accuracy, _) in enumerate(self.rounds, 1) if accuracy >= goal),
            None,
        )

    def last(self, count: int) -> float:
        """Return the mean accuracy after the last rounds; that of chance for a run that
        diverged.
        """
        return (
            0.1
            if self.failure or not self.rounds
            else sum(row[1] for row in self.rounds[-count:]) / len(self.rounds[-count:])
        )

    @property
    def uses_a_round(self) -> float:
        """Channel uses of a round in which anybody sends: silent ones cost nothing."""
        return max(
            (after[0] - before[0] for before, after in pairwise([[0.0], *self.rounds])), default=0.0
        )


def resolved(document: Settings, name: str) -> dict[str, Any]:
    """Return all settings of a case: the task's, those of its local work, those of the case it is
    like, its own.
    """
    own = dict(document["cases"][name])
    base = resolved(document, own.pop("like")) if "like" in own else dict(document["task"])
    work = document["work"][own["work"]] if "work" in own else {}
    return {**base, **work, **own}


def finished(name: str, settings: Settings, seed: int, train: bf.Dataset, out: Path) -> Finished:
    """Return a run, from its file if it was made before with the same settings; a run that diverges
    keeps the rounds before.
    """
    # Nothing in a run depends on how many rounds follow, so a longer one serves.
    rounds, shared = (
        settings["rounds"],
        {key: value for key, value in settings.items() if key != "rounds"},
    )
    digest = hashlib.sha256(json.dumps(shared, sort_keys=True).encode()).hexdigest()[:10]
    file = out / "runs" / f"{digest}_{seed}.json"
    if file.exists() and (
        (found := json.loads(file.read_text()))["failure"] or len(found["rounds"]) >= rounds
    ):
        short, whole = len(found["rounds"]) < rounds, len(found["rounds"]) == rounds
        return Finished(
            name,
            seed,
            settings,
            found["rounds"][:rounds],
            found["failure"] if short else "",
            found.get("own") if whole else None,
        )
    print(f"seed {seed}, {name}", flush=True)
    data, scored = (
        train[chosen] for chosen in ROWS["search" if settings.get("search") else "test"]
    )
    key, clients = bf.Key(seed, "partition"), settings["clients"]
    parts = (
        bf.dirichlet(data.targets, clients, settings["alpha"], key)
        if settings["alpha"]
        else bf.iid(len(data), clients, key)
    )
    algorithm, rows, failure, start = (
        recipe(settings, seed),
        list[list[float]](),
        "",
        time.perf_counter(),
    )
    digital = 0 if settings["link"] != "digital" else sent(settings, algorithm)

    own = list[float]()

    def note(report: RoundReport) -> None:
        uses = (rows[-1][0] if rows else 0) + (digital or channel_uses(report.rows))
        infos = report.clients.values()
        rows.append(
            [
                uses,
                report.metrics["accuracy"],
                sum(info["loss"] for info in infos) / max(1, len(infos)),
            ]
        )
        if not settings.get("reset", True) and len(rows) == rounds:
            own.extend(
                score(algorithm.predictor(memory), scored)
                for memory in report.snapshot.memories.values()
            )

    try:
        bf.run(
            algorithm,
            bf.federate(data, parts),
            rounds=rounds,
            test=scored,
            seed=seed,
            callbacks=[note],
        )
    except BayesfedError as problem:
        # Divergence is a finding here; anything else is a fault of this program.
        if not any(word in str(problem) for word in ("finite", "norm", "NaN")):
            raise
        failure = str(problem)
    file.parent.mkdir(parents=True, exist_ok=True)
    mean = statistics.mean(own) if own else None
    content = {
        "case": name,
        "settings": settings,
        "seconds": time.perf_counter() - start,
        "rounds": rows,
        "failure": failure,
        "own": mean,
    }
    file.write_text(json.dumps(content) + "\n")
    return Finished(name, seed, settings, rows, failure, mean)


def sent(settings: Settings, algorithm: Algorithm) -> int:
    """Return the real numbers of one client's payload: what a digital link is charged a round, one
    number a sub-carrier, as in the paper.
    """
    if settings["recipe"] != "fed_rlr":
        return sum(leaf.numel() for leaf in algorithm.initial.values())
    return sum(
        torch.Size(shape).numel()
        for shape in sent_shapes(algorithm.initial, transmission(settings)).values()
    )


@cache
def network(widths: tuple[int, ...], seed: int) -> torch.nn.Module:
    """Return the network that runs of a seed start from."""
    return bf.mlp(widths, bf.Key(seed, "net"))


def recipe(settings: Settings, seed: int) -> Algorithm:
    """Return a case's algorithm."""
    net = network(tuple(settings["widths"]), seed)
    schedule: Schedule = inverse(settings["nu"]) if settings["nu"] else constant
    training = bf.Training(
        settings["steps"], settings["batch_size"], bf.Sgd(settings["learning_rate"]), schedule
    )
    common: dict[str, Any] = {"training": training, "link": link(settings)}
    if settings["recipe"] == "fed_rlr":
        pull = settings["consensus"]
        # A constant mu: the share eta mu / K shrinks with eta. The paper's mu = c_1 / eta: it
        # stays.
        consensus = (lambda round: pull * schedule(round)) if settings["constant_mu"] else pull
        own = {
            "consensus": consensus,
            "reset": settings["reset"],
            "transmission": transmission(settings),
            "clip": settings.get("clip", math.inf),
        }
        return fed_rlr(model(settings, seed), None, **own, **common)
    if settings["recipe"] == "fed_mid":
        return fed_mid(net, strength=settings["strength"], **common)
    if settings["recipe"] == "fed_l1":
        return fed_l1(net, strength=settings["strength"], **common)
    if settings["recipe"] == "fed_prune":
        return fed_prune(net, share=settings["share"], **common)
    codec = bf.compress.Coded(Uniform(settings["bits"], Fixed())) if settings["bits"] else None
    return bf.fed_avg(net, codec=codec, **common)


def link(settings: Settings) -> Link:
    """Return how payloads travel."""
    if settings["link"] == "digital":
        return Digital()
    # Products of two sums need a link that is unbiased for products.
    gbma = Gbma("product" if settings["transmission"] == "factors" else "sum")
    power: PowerControl = (
        gbma if settings["link"] == "gbma" else ChannelInversion(settings["threshold"])
    )
    sensing = Compressed(settings["sensing_rows"], 256) if settings["sensing_rows"] else None
    return OverTheAir(power, snr_db=settings["snr_db"], per=settings["per"], sensing=sensing)


def transmission(settings: Settings) -> Transmission:
    """Return what clients of fixed rank send."""
    if settings["transmission"] == "factors":
        return Factors(settings["precoder"])
    return Points() if settings["transmission"] == "points" else Tangents()


def model(settings: Settings, seed: int) -> torch.nn.Module:
    """Return a case's network of fixed rank as it begins; a layer smaller than the rank keeps its
    own.
    """
    net = network(tuple(settings["widths"]), seed)
    ranks = {
        name: min(settings["rank"], layer.in_features, layer.out_features)
        for name, layer in net.named_modules()
        if isinstance(layer, torch.nn.Linear)
    }
    return fixed_rank(net, ranks, initial=settings["initial"], key=bf.Key(seed, "fixed rank"))
