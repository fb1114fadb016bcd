"""Asynchronous rounds beside synchronous ones, in simulated seconds, on devices of which the
fastest are thirty times the slowest.

    python benchmarks/scale_out.py --only buffered --check

A hundred clients have digits by Dirichlet 0.3, and the larger a client, the slower its device. Ten
clients are at work at any moment: a synchronous round asks ten and waits for the last one, or for a
deadline that half of all clients keep; FedBuff steps after five answers. All runs last as many
simulated seconds. FedAvg trains a small network; PVI fits the weights of a logistic regression, by
federated SVI with factors that clients keep.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import pyro
import pyro.distributions as dist
import torch
from parts.shared.targets import at_least, target
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.federated import Algorithm, latency_s, rounds, score
from bayesfed.wireless import work_cycles

CLIENTS, AT_WORK, BUFFER, MACS = 100, 10, 5, 5e7
# About one over the clients at work, times two: PVI's factors are changed by several clients at
# once.
DAMPING = 0.2
WAYS = ("waits for all", "with a deadline", "FedBuff")
Clients = Mapping[str, bf.Dataset]
Curve = list[tuple[float, float]]


def problem(seed: int) -> tuple[dict[str, bf.Dataset], bf.Dataset]:
    """Return clients with digits, and rows to score on."""
    train, test = bf.digits()
    parts = bf.dirichlet(train.targets, CLIENTS, 0.3, bf.Key(seed, "partition"), minimum=1)
    return bf.federate(train, parts), test


def devices(clients: Clients) -> dict[str, bf.Device]:
    """Return devices of 0.05 to 1.5 GHz, the slowest for the largest client."""
    by_size = sorted(clients, key=lambda name: (-len(clients[name]), name))
    return {
        name: bf.Device(
            min_frequency_hz=1e7,
            max_frequency_hz=5e7 * 30 ** (place / (CLIENTS - 1)),
            min_distance_m=100.0,
            max_distance_m=100.0,
        )
        for place, name in enumerate(by_size)
    }


def turn_s(rows: int, device: bf.Device) -> float:
    """Return the seconds that a client computes in a turn."""
    return work_cycles(MACS, rows, macs_per_cycle=device.macs_per_cycle) / device.max_frequency_hz


def fed_avg(seed: int, train: bf.Dataset) -> Algorithm:
    """Return FedAvg of a small network."""
    net = bf.mlp([64, 32, 10], bf.Key(seed, "net"))
    return bf.fed_avg(net, training=bf.Training(steps=5, batch_size=16, optimiser=bf.Sgd(0.1)))


def logistic(inputs: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
    """Logistic regression with standard normal weights."""
    weights = pyro.sample("weights", dist.Normal(torch.zeros(64, 10), 1.0).to_event(2))
    with pyro.plate("rows", len(inputs)):
        labels: torch.Tensor = pyro.sample(
            "y", dist.Categorical(logits=inputs.flatten(1) @ weights), obs=targets
        )
    return labels


def pvi(seed: int, train: bf.Dataset) -> Algorithm:
    """Return PVI of a logistic regression."""
    work = bf.Training(steps=5, batch_size=None, optimiser=bf.federated.NaturalGradient(0.2))
    fusion = bf.PVI(damping=DAMPING)
    return bf.federated_svi(
        logistic,
        AutoNormal,
        fusion=fusion,
        scale="local",
        observations=len(train),
        example=train[:2],
        training=work,
        seed=seed,
    )


@dataclass(frozen=True)
class Race:
    """A method, how old answers count, the simulated seconds of its runs, the accuracy whose second
    is of interest, and how often it is scored.
    """

    name: str
    made: Callable[[int, bf.Dataset], Algorithm]
    staleness: Literal["polynomial", "constant"]
    until: float
    level: float
    points: int


RACES = (
    Race("FedAvg", fed_avg, "polynomial", 100.0, 0.8, 200),
    Race("PVI", pvi, "constant", 80.0, 0.7, 40),
)


def curve(race: Race, way: str, seed: int) -> Curve:
    """Return (simulated second, accuracy) after every step of the server."""
    clients, test = problem(seed)
    fleet = devices(clients)
    deadline = (
        statistics.median(turn_s(len(rows), fleet[name]) for name, rows in clients.items())
        if way == "with a deadline"
        else math.inf
    )
    algorithm = bf.timed(
        race.made(seed, bf.data.concatenated(list(clients.values()))), MACS, deadline_s=deadline
    )
    pool = bf.InProcess(clients, devices={name: device.figures() for name, device in fleet.items()})
    buffer = (
        bf.federated.FedBuff(BUFFER, AT_WORK, staleness=race.staleness)
        if way == "FedBuff"
        else None
    )
    sampler = bf.federated.everyone if buffer else bf.fraction(AT_WORK / CLIENTS)
    clock, points = 0.0, Curve()
    for report in rounds(
        algorithm,
        pool,
        rounds=10**6,
        seed=seed,
        sampler=sampler,
        on_client_error="drop",
        asynchronous=buffer,
    ):
        clock = (
            report.server["simulated_s"]
            if buffer
            else clock + (latency_s(report.rows, deadline) or deadline)
        )
        if clock > race.until:
            break
        if not points or clock - points[-1][0] > race.until / race.points:
            points.append((clock, score(report.model, test)))
    return points


def reached(points: Curve, level: float) -> float:
    """Return the second at which a curve is first at a level; infinity if it never is."""
    return next((second for second, figure in points if figure >= level), math.inf)


def ends(points: Curve) -> float:
    """Return the mean of the last tenth of a curve in time."""
    return statistics.fmean(figure for second, figure in points if second >= 0.9 * points[-1][0])


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run all, print a table and the targets, and yield whether each is met."""
    seeds = range(1 if options.check else 3)
    for race in RACES:
        curves = {way: [curve(race, way, seed) for seed in seeds] for way in WAYS}
        print(
            f"{race.name}, {race.until:g} simulated s".ljust(27)
            + f"  at the end   seconds to {race.level:g}"
        )
        times, last = {}, {}
        for way, runs in curves.items():
            times[way], last[way] = (
                statistics.fmean(reached(points, race.level) for points in runs),
                statistics.fmean(map(ends, runs)),
            )
            print(f"{way:<27}{last[way]:>12.3f}{times[way]:>14.1f}", flush=True)
        name = f"{race.name}: seconds to {race.level:g}, FedBuff over waiting for all"
        yield target(name, times["FedBuff"] / times["waits for all"], 0.5)
        yield at_least(
            f"{race.name}: accuracy at the end, FedBuff minus the deadline",
            last["FedBuff"] - last["with a deadline"],
            0.0,
        )
