"""The runs of `anycostfl.py`: a case's settings, the algorithm they make on a fleet of devices, and
its finished run, kept on disk.
"""

from __future__ import annotations

import hashlib
import json
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from parts.shared.kept import kept
from tqdm import tqdm

import bayesfed as bf
from bayesfed.algorithms.anycost_fl.recipe import ALPHAS
from bayesfed.compress.codecs import Codec
from bayesfed.compress.coded import Coded
from bayesfed.compress.quantisers.probabilistic import Qsgd
from bayesfed.compress.quantisers.sparsify import TopK
from bayesfed.federated.core.algorithm import Algorithm, Model
from bayesfed.federated.core.protocols import Profile
from bayesfed.federated.engine.metrics import score
from bayesfed.federated.engine.reports import bits, energy_j, latency_s, macs
from bayesfed.federated.engine.round_loop import rounds
from bayesfed.federated.training.descent import Descent
from bayesfed.inference.objectives.likelihood import MaximumLikelihood
from bayesfed.models import (
    Share,
    channel_graph,
    femnist_cnn,
    shrunk,
    shrunk_shares,
    sort_channels,
    vgg9,
)
from bayesfed.models.likelihoods.classes import Categorical
from bayesfed.trees import Tree, parameters
from bayesfed.wireless.devices import Device
from bayesfed.wireless.energy import work_cycles

Settings = Mapping[str, Any]
CLASSES = 10
HELD_OUT = 50_000
# A round of the paper's on Fashion-MNIST: in 5 s 1000 rows of the CNN of 12.27 M MACs and 53.2 Mb
# on the default device, which other work, updates and deadlines are scaled to.
ROUND_S, ROUND_CYCLES, UPDATE_BITS = 5.0, 3 * 12.27e6 * 1000 / Device().macs_per_cycle, 53.2e6
# Sub-models that are scored without training them further, Fig. 5(d).
SCORED_ALPHAS = (1.0, 0.75, 0.5, 0.25)
# Messages of other rounds may be longer than that of the public rows.
MARGIN = 1.25


@dataclass(frozen=True)
class Finished:
    """One run: (accuracy, joules, seconds, flops, bytes up, clients left out) after each round, all
    but the first summed since the start.

    Parameters
    ----------
    sub_models
        Accuracy of `SCORED_ALPHAS` of the model after `rounds`, channels sorted.
    rounds
        After which accuracies are compared; there are more rows where a method had to go on to come
        to the goal.
    goal
        The accuracy that costs are counted to; infinite if there is none.
    """

    case: str
    seed: int
    rows: list[list[float]]
    sub_models: list[float]
    rounds: int
    goal: float

    @property
    def reached(self) -> int | None:
        """The number of rounds after which the goal was first reached."""
        return next(
            (number for number, row in enumerate(self.rows, 1) if row[0] >= self.goal), None
        )

    @property
    def costs(self) -> list[float]:
        """Rounds, J, s, flops, bytes up and clients out when the goal was reached; of the whole run
        if it never was.
        """
        number = self.reached or len(self.rows)
        return [float(number), *self.rows[number - 1][1:]]

    def last(self, count: int) -> float:
        """Return the mean accuracy after the last rounds."""
        return statistics.mean(row[0] for row in self.rows[: self.rounds][-count:])

    @property
    def best(self) -> float:
        """The highest accuracy."""
        return max(row[0] for row in self.rows[: self.rounds])


def finished(
    name: str,
    settings: Settings,
    seed: int,
    train: bf.Dataset,
    scored: bf.Dataset,
    out: Path,
    workers: int = 0,
) -> Finished:
    """Return a run, from its file if it was made before with the same settings."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    found = kept(
        out / "runs" / f"{digest}_{seed}.json",
        lambda: _made(name, settings, seed, train, scored, workers),
    )
    return Finished(
        name,
        seed,
        found["rows"],
        found["sub_models"],
        settings["rounds"],
        settings.get("goal", math.inf),
    )


def _made(
    name: str, settings: Settings, seed: int, train: bf.Dataset, scored: bf.Dataset, workers: int
) -> dict[str, Any]:
    task = Task(settings, seed, train, workers)
    algorithm, rows, sub_models, start = (
        task.algorithm(),
        list[list[float]](),
        list[float](),
        time.perf_counter(),
    )
    goal, least = settings.get("goal", math.inf), settings["rounds"]
    most = least * settings["patience"] if "goal" in settings else least
    reports = rounds(algorithm, task.pool, rounds=most, seed=seed, on_client_error="drop")
    with task.pool, tqdm(reports, name, least, unit="round", leave=False) as bar:
        for report in bar:
            before = rows[-1] if rows else [0.0] * 6
            spent = [
                energy_j(report.rows),
                latency_s(report.rows, settings["deadline_s"]),
                2 * macs(report.rows),
                bits(report.rows, "up") / 8,
            ]
            rows.append(
                [
                    score(report.model, scored),
                    *(
                        a + b
                        for a, b in zip(
                            before[1:], [*spent, float(len(report.refused))], strict=True
                        )
                    ),
                ]
            )
            bar.set_postfix(accuracy=f"{rows[-1][0]:.4f}")
            if len(rows) == least:
                bar.total = most
                whole = sort_channels(task.graph, dict(report.model.parameters))
                sub_models = [
                    score(task.sub_model(whole, alpha), scored) for alpha in SCORED_ALPHAS
                ]
            if len(rows) >= least and max(row[0] for row in rows) >= goal:
                break
    return {
        "case": name,
        "settings": settings,
        "seconds": time.perf_counter() - start,
        "rows": rows,
        "sub_models": sub_models,
    }


def uniform_range(mean: float, variance: float) -> tuple[float, float]:
    """Return the range of a uniform distribution with this mean and variance, for the heterogeneity
    sweeps of Fig. 5(b, c).

    The paper varies the variances around 7.5e-27 J/(cycle Hz^2) and 400 m without naming the
    distribution; its default of the former is uniform with that mean.
    """
    half = math.sqrt(3 * variance)
    return mean - half, mean + half


class Task:
    """A network, a fleet and the algorithm of a case."""

    def __init__(self, settings: Settings, seed: int, train: bf.Dataset, workers: int) -> None:
        self.settings, self.seed = settings, seed
        data, public = train[: settings["images"]], train[HELD_OUT - settings["public"] : HELD_OUT]
        names, key = settings["clients"], bf.Key(seed, "partition")
        parts = (
            bf.dirichlet(data.targets, names, settings["alpha"], key)
            if settings["alpha"]
            else bf.iid(len(data), names, key)
        )
        clients, self.sample = bf.federate(data, parts), train.inputs[:1]
        self.net = network(settings, seed)
        self.graph = channel_graph(self.net, self.sample)
        (self.whole,) = shrunk_shares(self.net, self.graph, self.sample, [1.0])
        self.fleet = self._fleet(sorted(clients), len(data) / names)
        self.pool = bf.InProcess(
            clients,
            workers=workers,
            devices={name: device.figures() for name, device in self.fleet.items()},
        )
        self.optimiser = bf.Sgd(settings["learning_rate"])
        self.public = public

    def _fleet(self, names: list[str], rows: float) -> dict[str, Device]:
        settings, plain = self.settings, Device()
        longer = settings["deadline_s"] / ROUND_S
        band = plain.bandwidth_hz * 32 * self.whole.parameters / (longer * UPDATE_BITS)
        # The same signal-to-noise ratio in a narrower band.
        noise = plain.noise_w_per_hz * plain.bandwidth_hz / band
        speed = work_cycles(self.whole.macs, 1, macs_per_cycle=1.0) * rows / (longer * ROUND_CYCLES)
        like = replace(plain, macs_per_cycle=speed, bandwidth_hz=band, noise_w_per_hz=noise)
        ranges: dict[str, tuple[float, float]] = {"energy_j": tuple(settings["energy_j"])}
        if "epsilon_variance" in settings:
            ranges["joules_per_cycle_hz2"] = uniform_range(7.5e-27, settings["epsilon_variance"])
        if "distance_variance" in settings:
            ranges["distance_m"] = uniform_range(400.0, settings["distance_variance"])
        return bf.fleet(names, bf.Key(self.seed, "fleet"), like=like, **ranges)

    def sub_model(self, whole: Tree, alpha: float) -> Model:
        """Return the leading channels of a sorted network."""
        made = shrunk(self.net, self.graph, alpha)
        shapes = {name: leaf.shape for name, leaf in parameters(made).items()}
        return Model(
            made,
            {
                name: whole[name][tuple(slice(0, length) for length in shape)]
                for name, shape in shapes.items()
            },
        )

    def update(self) -> Tree:
        """Return the change that the public rows make."""
        descent = Descent(
            MaximumLikelihood(self.net, Categorical()),
            self.optimiser,
            20,
            len(self.public),
            "delta",
        )
        return descent.fit(
            parameters(self.net),
            {},
            self.public,
            bf.Key(self.seed, "public"),
            bf.federated.LocalOptions(),
        ).payload

    def planner(
        self, beta: tuple[float, float], sizes: tuple[Share, ...] | None = None
    ) -> bf.Planner:
        """Return a planner of the devices' own budgets, for any method."""
        settings = self.settings
        return bf.Planner(
            sizes or (self.whole,),
            settings["deadline_s"],
            beta,
            settings["epochs"],
            settings["batch_size"],
        )

    def placed(self, algorithm: Algorithm) -> Algorithm:
        """Return a method that does not plan, on devices; time to send is kept for messages of the
        size that the public update's has.
        """
        (phase,) = algorithm.phases
        found = phase.assign(
            algorithm.initial, 0, Profile("public", 1), bf.Key(self.seed, "public")
        )
        if isinstance(found, bf.federated.Skip):
            raise TypeError("a method that skips clients plans by itself")
        up = found.up.codec if isinstance(found.up, bf.compress.ErrorFeedback) else found.up
        return bf.on_devices(algorithm, self.planner(self.size_of(up)))

    def size_of(self, codec: Codec, net: torch.nn.Module | None = None) -> tuple[float, float]:
        """Return the beta to plan with for messages of a codec, of the whole network or of one that
        is leading channels of it.
        """
        shapes = {name: leaf.shape for name, leaf in parameters(net or self.net).items()}
        update = {
            name: leaf[tuple(slice(0, length) for length in shapes[name])]
            for name, leaf in self.update().items()
        }
        bits = 8 * len(codec.encode(update, {}, bf.Key(self.seed, "public")))
        beta = min(1.0, MARGIN * bits / (32 * sum(shape.numel() for shape in shapes.values())))
        return beta, beta

    def algorithm(self) -> Algorithm:
        """Return the case's method."""
        settings, net = self.settings, self.net
        recipes = {
            "fed_avg": self._fed_avg,
            "anycost_fl": self._anycost_fl,
            "fed_hq": self._fed_hq,
            "hetero_fl": self._hetero_fl,
        }
        if settings["recipe"] in recipes:
            return recipes[settings["recipe"]]()
        # The planner sets the number of steps.
        common = {
            "share": settings["share"],
            "training": bf.Training(1, settings["batch_size"], self.optimiser),
        }
        if settings["recipe"] == "stc":
            return self.placed(bf.stc(net, **common))
        compressed = (
            bf.qsgd(net, levels=settings["levels"], **common)
            if settings["recipe"] == "qsgd"
            else bf.uveqfed(net, bits=settings["bits"], **common)
        )
        return self.placed(compressed)

    def _fed_avg(self) -> Algorithm:
        settings = self.settings
        steps = max(
            1,
            int(
                settings["epochs"]
                * settings["images"]
                / settings["clients"]
                / settings["batch_size"]
            ),
        )
        return bf.fed_avg(
            self.net,
            training=bf.Training(
                steps=steps, batch_size=settings["batch_size"], optimiser=self.optimiser
            ),
        )

    def _anycost_fl(self) -> Algorithm:
        settings, fitted = (
            self.settings,
            bf.compress.fit_flexible([self.update()], bf.Key(self.seed, "settings")),
        )
        return bf.anycost_fl(
            self.net,
            self.sample,
            deadline_s=settings["deadline_s"],
            settings=fitted,
            alphas=settings.get("alphas", ALPHAS),
            beta=tuple(settings.get("beta", (fitted.least, settings["beta_max"]))),
            training=bf.Training(
                epochs=settings["epochs"],
                batch_size=settings["batch_size"],
                optimiser=self.optimiser,
            ),
            aggregation=settings.get("aggregation", "optimal"),
        )

    def _fed_hq(self) -> Algorithm:
        fitted = bf.compress.fit_flexible(
            [self.update()], bf.Key(self.seed, "settings"), shares=(self.settings["share"],)
        )
        return bf.fed_hq(
            self.net,
            self.planner((fitted.least, self.settings["beta_max"])),
            fitted,
            training=bf.Training(optimiser=self.optimiser),
        )

    def _hetero_fl(self) -> Algorithm:
        """HeteroFL: a width for good, from what a device's budget lets it compute in three quarters
        of the deadline.
        """
        settings = self.settings
        rows = shrunk_shares(self.net, self.graph, self.sample, settings.get("alphas", ALPHAS))
        able = {}
        for profile in self.pool.profiles:
            device, time_s = self.fleet[profile.name], 0.75 * settings["deadline_s"]
            cycles = [
                work_cycles(row.macs, max(profile.samples, 1), macs_per_cycle=device.macs_per_cycle)
                for row in rows
            ]
            spent = [device.joules_per_cycle_hz2 * (each / time_s) ** 2 * each for each in cycles]
            able[profile.name] = next(
                (number for number, joules in enumerate(spent) if joules <= device.energy_j),
                len(rows) - 1,
            )
        up = Coded(TopK(settings["share"], Qsgd(settings["levels"], 512, "max")))
        nets = [shrunk(self.net, self.graph, row.alpha) for row in rows]

        def capacity(profile: Profile, round: int, key: bf.Key) -> int:
            return able[profile.name]

        base = bf.hetero_fl(
            nets,
            capacity,
            training=bf.Training(batch_size=settings["batch_size"], optimiser=self.optimiser),
            masked=False,
            up=up,
        )
        # A planner of each width, for the clients that have it.
        sized = [
            bf.on_devices(base, self.planner(self.size_of(up, net), (row,)))
            for row, net in zip(rows, nets, strict=True)
        ]

        def assign(state: Tree, round: int, profile: Profile, key: bf.Key) -> Any:
            return sized[able[profile.name]].phases[0].assign(state, round, profile, key)

        return replace(sized[0], phases=(replace(sized[0].phases[0], assign=assign),))


@cache
def _network(
    kind: str, image: tuple[int, int, int], channels: tuple[int, ...], hidden: int, seed: int
) -> torch.nn.Module:
    key, (depth, height, width) = bf.Key(seed, "net"), image
    if kind == "vgg9":
        return vgg9((3, 32, 32), CLASSES, key)
    return (
        femnist_cnn(CLASSES, key)
        if kind == "femnist_cnn"
        else bf.cnn((depth, height, width), CLASSES, key, channels=channels, hidden=hidden)
    )


def network(settings: Settings, seed: int) -> torch.nn.Module:
    """Return the network that runs of a seed start from."""
    return _network(
        settings["net"],
        tuple(settings.get("image", (1, 28, 28))),
        tuple(settings.get("channels", ())),
        settings.get("hidden", 0),
        seed,
    )
