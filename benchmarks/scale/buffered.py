"""Asynchronous rounds beside synchronous ones, in simulated seconds: FedAvg on devices of which the fastest are thirty times the slowest.

    python benchmarks/scale/buffered.py --check

A hundred clients have digits by Dirichlet 0.3, and the larger a client, the slower its device. Ten clients are at work at any moment: a synchronous
round asks ten and waits for the last one, or for a deadline that half of all clients keep; FedBuff steps after five answers. All runs last as many
simulated seconds.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from targets import at_least, is_check, target

import bayesfed as bf
from bayesfed.federated import Algorithm, latency_s, rounds, score
from bayesfed.wireless import work_cycles

CLIENTS, AT_WORK, BUFFER, MACS = 100, 10, 5, 5e7
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
        name: bf.Device(min_frequency_hz=1e7, max_frequency_hz=5e7 * 30 ** (place / (CLIENTS - 1)), min_distance_m=100.0, max_distance_m=100.0)
        for place, name in enumerate(by_size)
    }


def turn_s(rows: int, device: bf.Device) -> float:
    """Return the seconds that a client computes in a turn."""
    return work_cycles(MACS, rows, macs_per_cycle=device.macs_per_cycle) / device.max_frequency_hz


def fed_avg(seed: int) -> Algorithm:
    """Return FedAvg of a small network."""
    net = bf.mlp([64, 32, 10], bf.Key(seed, "net"))
    return bf.fed_avg(net, training=bf.Training(steps=5, batch_size=16, optimiser=bf.Sgd(0.1)))


def curve(way: str, until: float, seed: int) -> Curve:
    """Return (simulated second, accuracy) after every step of the server."""
    clients, test = problem(seed)
    fleet = devices(clients)
    deadline = statistics.median(turn_s(len(rows), fleet[name]) for name, rows in clients.items()) if way == "with a deadline" else math.inf
    algorithm = bf.timed(fed_avg(seed), MACS, deadline_s=deadline)
    pool = bf.InProcess(clients, devices={name: device.figures() for name, device in fleet.items()})
    buffer = bf.FedBuff(BUFFER, AT_WORK) if way == "FedBuff" else None
    sampler = bf.federated.everyone if buffer else bf.fraction(AT_WORK / CLIENTS)
    clock, points = 0.0, Curve()
    for report in rounds(algorithm, pool, rounds=10**6, seed=seed, sampler=sampler, on_client_error="drop", asynchronous=buffer):
        clock = report.server["simulated_s"] if buffer else clock + (latency_s(report.rows, deadline) or deadline)
        if clock > until:
            break
        if not points or clock - points[-1][0] > until / 200:
            points.append((clock, score(report.model, test)))
    return points


def reached(points: Curve, level: float) -> float:
    """Return the second at which a curve is first at a level; infinity if it never is."""
    return next((second for second, figure in points if figure >= level), math.inf)


def ends(points: Curve) -> float:
    """Return the mean of the last tenth of a curve in time."""
    return statistics.fmean(figure for second, figure in points if second >= 0.9 * points[-1][0])


def targets(check: bool) -> bool:
    """Run all, print a table and the targets, and return whether these are met."""
    seeds, met = range(1 if check else 3), list[bool]()
    for name, until, level in (("FedAvg", 100.0, 0.8),):
        curves = {way: [curve(way, until, seed) for seed in seeds] for way in WAYS}
        print(f"{name}, {until:g} simulated s       at the end   seconds to {level:g}")
        times, last = {}, {}
        for way, runs in curves.items():
            times[way], last[way] = statistics.fmean(reached(points, level) for points in runs), statistics.fmean(map(ends, runs))
            print(f"{way:<27}{last[way]:>12.3f}{times[way]:>14.1f}")
        met.append(target(f"{name}: seconds to {level:g}, FedBuff over waiting for all", times["FedBuff"] / times["waits for all"], 0.5))
        met.append(at_least(f"{name}: accuracy at the end, FedBuff minus the deadline", last["FedBuff"] - last["with a deadline"], 0.0))
    return all(met)


if __name__ == "__main__":
    sys.exit(0 if targets(is_check(__doc__ or "")) else 1)
