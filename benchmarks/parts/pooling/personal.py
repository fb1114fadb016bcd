"""Own accuracy of clients with unlike data: one model for all, one for each, and methods against
drift.

    python benchmarks/pooling.py --only personal [--check | --tune]

6,000 rows of Fashion-MNIST over twenty clients, Dirichlet 0.1, at least 80 rows each; a quarter of
every client's rows is held out. An MLP 784-32-10, 25 rounds of ten local epochs. "own" scores are
of what each client predicts with on its held-out rows, every client counting alike: the mean, and
that of the worst tenth of the clients. "test" is the transmitted model on the 10,000 test rows of
Fashion-MNIST, after the last round; "rounds" is the first round after which it is at least FedAvg's
last.

Rates and strengths were chosen on rows that are neither trained nor tested on, some of them in
fewer rounds. `--tune` does so for all of `GRID`: it splits every client's rows for training once
more, trains on four fifths and scores on the rest. Personal methods are chosen by own NLL, the
others by the rows of all clients pooled. The program without an option runs three seeds (partition,
network, batches), `--check` one.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from parts.shared.targets import at_least, target
from torch import nn
from tqdm import tqdm

import bayesfed as bf
from bayesfed.data import concatenated
from bayesfed.federated import Algorithm, evaluate
from bayesfed.inspect import table

SEED, ROWS, CLIENTS, LEAST, ROUNDS, DRAWS = 20, 6000, 20, 80, 25, 200
Make = Callable[[nn.Module, float], Algorithm]


def work(rate: float) -> bf.Training:
    """Return ten epochs of SGD."""
    return bf.Training(batch_size=50, epochs=10, optimiser=bf.Sgd(rate))


def bayes(net: nn.Module, rate: float) -> Algorithm:
    """Return pFedBayes with 100 steps of Adam, so that clients with few rows take as many steps as
    others.
    """
    training = bf.Training(batch_size=50, steps=100, optimiser=bf.Adam(rate))
    return bf.p_fed_bayes(
        net, strength=0.03, initial_sd=0.1, prior_update="moments", training=training
    )


def tuned(net: nn.Module, rate: float) -> Algorithm:
    """Return FedAvg, after which each client fine-tunes for 200 steps."""
    return bf.personalised(
        bf.fed_avg(net, training=work(0.1)), steps=200, batch_size=50, optimiser=bf.Sgd(rate)
    )


# By method: how it is made of a number, what was chosen for that number, and what it was chosen
# from.
METHODS: dict[str, tuple[Make, float]] = {
    "FedAvg": (lambda net, rate: bf.fed_avg(net, training=work(rate)), 0.1),
    "FedAvg, fine-tuned": (tuned, 0.03),
    "FedPer": (lambda net, rate: bf.fed_per(net, training=work(rate)), 0.1),
    "Ditto": (lambda net, strength: bf.ditto(net, strength=strength, training=work(0.1)), 0.1),
    "pFedBayes": (bayes, 2e-3),
    "SCAFFOLD": (lambda net, rate: bf.scaffold(net, training=work(rate)), 0.03),
    "FedAdam": (
        lambda net, rate: bf.server_optimised(
            bf.fed_avg(net, training=work(0.1)), bf.FedAdam(rate)
        ),
        0.01,
    ),
    "FedDyn": (lambda net, strength: bf.fed_dyn(net, strength=strength, training=work(0.1)), 0.03),
}
GRID: dict[str, tuple[float, ...]] = {
    "FedAvg": (0.03, 0.1, 0.3),
    "FedAvg, fine-tuned": (0.03, 0.1),
    "FedPer": (0.03, 0.1),
    "Ditto": (0.01, 0.1, 1.0),
    "pFedBayes": (1e-3, 2e-3, 5e-3),
    "SCAFFOLD": (0.03, 0.1),
    "FedAdam": (0.003, 0.01, 0.03),
    "FedDyn": (0.03, 0.1, 0.3),
}
PERSONAL = ("FedAvg, fine-tuned", "FedPer", "Ditto", "pFedBayes")


@dataclass(frozen=True)
class Problem:
    """Clients' rows to train and to score on, rows for the transmitted model, and the network that
    all runs begin with.
    """

    train: Mapping[str, bf.Dataset]
    own: Mapping[str, bf.Dataset]
    test: bf.Dataset
    net: nn.Module
    seed: int


@dataclass(frozen=True)
class Outcome:
    """Scores of one run: clients' own, and the transmitted model's after every round."""

    own: dict[str, float]
    test: list[float]


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether each target is met."""
    torch.set_num_threads(1)
    if options.tune:
        print(tuning(validation(made(SEED))))
        return
    seeds = range(SEED, SEED + (1 if options.check else 3))
    outcomes: dict[str, list[Outcome]] = {name: [] for name in METHODS}
    with tqdm(total=len(seeds) * len(METHODS), disable=not sys.stderr.isatty()) as bar:
        for seed in seeds:
            problem = made(seed)
            for name, (make, value) in METHODS.items():
                outcomes[name].append(run(problem, make, value))
                bar.update()
    print(f"seeds: {len(seeds)}, {CLIENTS} clients, {ROUNDS} rounds")
    print(shown(outcomes))
    yield from met(outcomes)


def made(seed: int) -> Problem:
    """Return the problem of a seed."""
    train, test = bf.fashion_mnist()
    key = bf.Key(seed, "personal")
    rows = train[torch.randperm(len(train), generator=key.child("rows").generator())[:ROWS]]
    clients = bf.federate(
        rows, bf.dirichlet(rows.targets, CLIENTS, 0.1, key.child("partition"), minimum=LEAST)
    )
    kept, own = bf.data.split_rows(clients, 0.25, key=key.child("test"))
    return Problem(kept, own, test, bf.mlp([784, 32, 10], key.child("net")), seed)


def validation(problem: Problem) -> Problem:
    """Return the problem with a fifth of the rows for training in the place of those to
    score on.
    """
    train, own = bf.data.split_rows(
        problem.train, 0.2, key=bf.Key(problem.seed, "personal", "validation")
    )
    return Problem(train, own, concatenated(list(own.values())), problem.net, problem.seed)


def run(problem: Problem, make: Make, value: float) -> Outcome:
    """Run one method; two workers share the clients."""
    with bf.InProcess(problem.train, workers=2) as pool:
        result = bf.run(
            make(problem.net, value),
            pool,
            rounds=ROUNDS,
            seed=problem.seed,
            callbacks=[evaluate(problem.test)],
            progress=False,
        )
    return Outcome(
        result.personal_scores(problem.own, draws=DRAWS).figures(),
        [accuracy for _, accuracy in result.series("accuracy")],
    )


def tuning(problem: Problem) -> str:
    """Return the scores of every value of the grid, on rows for validation."""
    rows: list[list[str | float | int]] = []
    for name, values in GRID.items():
        for value in values:
            outcome = run(problem, METHODS[name][0], value)
            rows.append(
                [
                    name,
                    value,
                    100 * outcome.own["own_accuracy"],
                    outcome.own["own_nll"],
                    100 * outcome.test[-1],
                ]
            )
    return table(["method", "value", "own %", "own NLL", "pooled %"], rows)


def first_round(outcome: Outcome, goal: float) -> float:
    """Return the first round, counted from 1, after which the transmitted model is at least as
    accurate as `goal`; infinity if there is none.
    """
    return next(
        (float(number) for number, accuracy in enumerate(outcome.test, 1) if accuracy >= goal),
        math.inf,
    )


def shown(outcomes: Mapping[str, list[Outcome]]) -> str:
    """Return the table of means over seeds."""
    rows: list[list[str | float | int]] = []
    for name, several in outcomes.items():
        own = {
            key: statistics.fmean(one.own[key] for one in several)
            for key in ("own_accuracy", "worst_accuracy", "own_nll", "worst_nll")
        }
        figures = [
            f"{100 * own['own_accuracy']:.1f}",
            f"{100 * own['worst_accuracy']:.1f}",
            f"{own['own_nll']:.3f}",
            f"{own['worst_nll']:.3f}",
        ]
        last = f"{100 * statistics.fmean(one.test[-1] for one in several):.1f}"
        rows.append(
            [name, f"{METHODS[name][1]:g}", *figures, last, f"{reached(outcomes, name):.1f}"]
        )
    return table(
        ["method", "value", "own %", "worst %", "own NLL", "worst NLL", "test %", "rounds"], rows
    )


def reached(outcomes: Mapping[str, list[Outcome]], name: str) -> float:
    """Return the mean round, over seeds, in which a method is where FedAvg ends."""
    return statistics.fmean(
        first_round(one, base.test[-1])
        for one, base in zip(outcomes[name], outcomes["FedAvg"], strict=True)
    )


def met(outcomes: Mapping[str, list[Outcome]]) -> list[bool]:
    """Print the targets, and return whether each is met."""

    def mean(name: str, key: str) -> float:
        return statistics.fmean(one.own[key] for one in outcomes[name])

    best = max(PERSONAL, key=lambda name: mean(name, "own_accuracy"))
    gains = {
        key: 100 * (mean(best, key) - mean("FedAvg", key))
        for key in ("own_accuracy", "worst_accuracy")
    }
    return [
        at_least(f"{best}: points of own accuracy above FedAvg's", gains["own_accuracy"], 3.0),
        at_least(
            f"{best}: points in the worst decile above FedAvg's", gains["worst_accuracy"], 5.0
        ),
        target(
            "pFedBayes: own NLL over that of FedAvg, fine-tuned",
            mean("pFedBayes", "own_nll") / mean("FedAvg, fine-tuned", "own_nll"),
            1.0,
        ),
        target(
            "SCAFFOLD: share of FedAvg's rounds to its last accuracy",
            reached(outcomes, "SCAFFOLD") / ROUNDS,
            0.8,
        ),
        target(
            "FedDyn: share of FedAvg's rounds to its last accuracy",
            reached(outcomes, "FedDyn") / ROUNDS,
            0.8,
        ),
    ]
