"""What four hostile clients of twenty do to the plain mean, and to robust rules.

    python benchmarks/hostile.py --only byzantine [--check] [--data digits | fashion]

FedAvg on twenty clients, Dirichlet 1.0; four of them send their own change with its signs flipped,
times 100, or both. A column is an attack, a row what the server makes of the updates; figures are
test accuracy in percent after the last round, the mean over seeds. "mean" takes what comes; "mean,
bound" refuses leaves of a norm above 30 at the link, about twice what honest ones have. The rest go
without that bound and know nothing but how many clients are hostile. A run that ends for want of
clients, since numbers overflow, counts with the model it had. `--check` has one seed of three, on
digits; its targets are the points that median, trimmed mean and multi-Krum lose against the mean
without an attack: at most 3, in every attack.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from parts.shared.targets import target
from tqdm import tqdm

import bayesfed as bf
from bayesfed.errors import ClientError
from bayesfed.federated import Digital, Rule, rounds, score
from bayesfed.inspect import table
from tests.support.hostile.byzantine import byzantine

CLIENTS, HOSTILE, ROUNDS, BOUND = 20, 4, 15, 30.0
ATTACKS = {"none": 1.0, "signs": -1.0, "x 100": 100.0, "signs x 100": -100.0}
RULES: dict[str, tuple[Rule | None, float]] = {
    "mean": (None, math.inf),
    "mean, bound": (None, BOUND),
    "median": (bf.federated.Median(), math.inf),
    "trimmed mean": (bf.federated.TrimmedMean(HOSTILE / CLIENTS), math.inf),
    "Krum": (bf.federated.Krum(HOSTILE), math.inf),
    "multi-Krum": (bf.federated.Krum(HOSTILE, 12), math.inf),
    "norm gate": (bf.federated.NormGate(1.0), math.inf),
    "norm gate, refusing": (bf.federated.NormGate(2.0, refuse=True), math.inf),
}
HELD = ("median", "trimmed mean", "multi-Krum")


@dataclass(frozen=True)
class Problem:
    """Clients' rows, test rows and the network that all runs begin with."""

    clients: Mapping[str, bf.Dataset]
    test: bf.Dataset
    net: torch.nn.Module

    @property
    def bad(self) -> list[str]:
        """Names of the hostile clients."""
        return sorted(self.clients)[:: CLIENTS // HOSTILE]


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether each target is met."""
    torch.set_num_threads(1)
    seeds, data = (1, "digits") if options.check else (3, options.data)
    found: dict[tuple[str, str], float] = {}
    with tqdm(total=seeds * len(RULES) * len(ATTACKS), disable=not sys.stderr.isatty()) as bar:
        for seed in range(seeds):
            problem = made(data, seed)
            for rule in RULES:
                for attack in ATTACKS:
                    found[rule, attack] = (
                        found.get((rule, attack), 0.0)
                        + 100 * accuracy(problem, rule, attack, seed) / seeds
                    )
                    bar.update()
    print(f"{data}, seeds: {seeds}, {HOSTILE} of {CLIENTS} clients hostile, accuracy in percent")
    print(
        table(
            ["", *ATTACKS],
            [[rule, *(f"{found[rule, attack]:.1f}" for attack in ATTACKS)] for rule in RULES],
        )
    )
    attacks, whole = [attack for attack in ATTACKS if attack != "none"], found["mean", "none"]
    for rule in HELD:
        for attack in attacks:
            yield target(f"{rule}, {attack}: points lost", whole - found[rule, attack], 3.0)


def made(data: str, seed: int) -> Problem:
    """Return the problem of a seed."""
    train, test = bf.digits() if data == "digits" else bf.fashion_mnist()
    clients = bf.federate(
        train, bf.dirichlet(train.targets, CLIENTS, 1.0, bf.Key(seed, "partition"))
    )
    return Problem(clients, test, bf.mlp([train.inputs[0].numel(), 64, 10], bf.Key(seed, "net")))


def accuracy(problem: Problem, rule: str, attack: str, seed: int) -> float:
    """Return the test accuracy after the last round that there was."""
    instead, max_norm = RULES[rule]
    algorithm = bf.fed_avg(
        problem.net,
        training=bf.Training(steps=10, batch_size=32, optimiser=bf.Sgd(0.2)),
        link=Digital(max_norm=max_norm),
    )
    algorithm = (
        byzantine(algorithm, problem.bad, ATTACKS[attack]) if attack != "none" else algorithm
    )
    algorithm = bf.robust(algorithm, instead) if instead else algorithm
    model = algorithm.predictor(algorithm.initial)
    try:
        for report in rounds(
            algorithm,
            bf.InProcess(problem.clients),
            rounds=ROUNDS,
            seed=seed,
            on_client_error="drop",
        ):
            model = report.model
    except ClientError:
        # Overflow at every client.
        pass
    return score(model, problem.test)
