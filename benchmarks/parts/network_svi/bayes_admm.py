"""The ordering of FedAvg, IVON with averages (FedIvon), FedLap-Cov and BayesADMM on a tenth of
Fashion-MNIST.

    python benchmarks/network_svi.py --only bayes_admm [--check]

After Moellenhoff et al. (2025) and Swaroop et al. (2025): 6,000 rows, ten clients of unlike sizes
and classes, MLP 784-200-100-10, batches of 32. They have 50 rounds of 10 epochs, here are 20 rounds
of 60 steps; sizes and classes come from one Dirichlet distribution by class (0.5), not from two.
All methods have the same falling schedule, and nothing is tuned, the three settings of `PVI`
included. `--check` has one seed of two. No ordering is a target: it prints what is measured, and
checks that every method learns.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from parts.shared.targets import at_least
from torch.nn import functional

import bayesfed as bf
from bayesfed.errors import ConvergenceWarning
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.inference.variational.fusion import Fusion

ROUNDS, CLIENTS, ROWS = 20, 10, 6000
PROXIMAL = 0.2
METHODS = ("FedAvg", "FedIvon", "FedLap-Cov", "BayesADMM")


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Measure and print; yield whether the target is met."""
    seeds = range(1 if options.check else 2)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in METHODS}
    for seed in seeds:
        for name in METHODS:
            runs[name].append(fitted(name, seed))
            print(
                f"seed {seed}, {name}:",
                ", ".join(f"{what} {value:.4g}" for what, value in runs[name][-1].items()),
                flush=True,
            )
    means = {name: statistics.mean(run["accuracy"] for run in runs[name]) for name in METHODS}
    print(
        "in order:",
        ", ".join(
            f"{name} {100 * means[name]:.1f} %"
            for name in sorted(METHODS, key=lambda name: -means[name])
        ),
    )
    yield at_least("accuracy of the last of them", min(means.values()), 0.75)


def fitted(name: str, seed: int) -> dict[str, float]:
    """Return the test scores of a method."""
    train, test = bf.fashion_mnist()
    rows = train[torch.randperm(len(train), generator=bf.Key(seed, "rows").generator())[:ROWS]]
    clients = bf.federate(
        rows, bf.dirichlet(rows.targets, CLIENTS, 0.5, bf.Key(seed, "partition"), minimum=1)
    )
    start = time.process_time()
    result = bf.run(method(name, rows, seed), clients, rounds=ROUNDS, seed=seed, progress=False)
    seconds = time.process_time() - start
    if name == "FedAvg":
        return {**scored(result.model(test.inputs), test.targets), "seconds": seconds}
    scores = result.predictive(test.inputs, draws=20).scores(test.targets)
    return {
        "accuracy": scores["accuracy"],
        "nll": scores["nll"],
        "ece": scores["ece"],
        "seconds": seconds,
    }


def scored(logits: torch.Tensor, targets: torch.Tensor) -> dict[str, float]:
    """Return accuracy and NLL of a network's outputs."""
    return {
        "accuracy": float((logits.argmax(1) == targets).float().mean()),
        "nll": float(functional.cross_entropy(logits, targets)),
    }


def method(name: str, rows: bf.Dataset, seed: int) -> Algorithm:
    """Return a method by name."""
    net = bf.mlp([784, 200, 100, 10], bf.Key(seed, "net"))
    work: dict[str, Any] = {
        "steps": 60,
        "batch_size": 32,
        "schedule": bf.federated.cosine(0.05, ROUNDS),
    }
    if name == "FedAvg":
        return bf.fed_avg(net, training=bf.Training(optimiser=bf.Adam(1e-3), **work))
    rules: dict[str, Fusion] = {
        "FedIvon": bf.inference.ReverseKL(),
        "FedLap-Cov": bf.PVI(damping=0.1),
        "BayesADMM": bf.PVI(damping=0.3, proximal=PROXIMAL, mixing=1 / (1 + CLIENTS * PROXIMAL)),
    }
    training = bf.Training(optimiser=bf.federated.Ivon(noise=name != "FedLap-Cov"), **work)
    return bf.federated_svi(
        bf.bayesian(net),
        fusion=rules[name],
        observations=len(rows),
        example=rows[:2],
        training=training,
    )
