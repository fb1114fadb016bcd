"""How often intervals cover the truth: 100 regressions of numbers or of two classes, with
parameters of their own.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator

import torch
from parts.pooling import problems
from parts.shared.targets import between
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.personal.pooled.posterior import PartPosterior


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether each target is met."""
    torch.set_num_threads(1)
    for classes in (False, True):
        name, sets = "logistic" if classes else "linear", range(4 if options.check else 12)
        covered = 100 * statistics.fmean(coverage(one, classes) for one in sets)
        yield between(f"{name} hierarchy: coverage of 90 % intervals, %", covered, 88, 92)


def coverage(seed: int, classes: bool) -> float:
    """Return how many of the true parameters of all clients lie in the central 90 % intervals of
    the clients' posteriors.
    """
    data, truth = problems.hierarchy(seed, classes)
    net: nn.Module = problems.Logistic() if classes else nn.Linear(4, 1)
    likelihood = bf.Categorical() if classes else bf.Normal(problems.NOISE)
    training = bf.Training(steps=30, batch_size=None, optimiser=bf.Sgd(1.0 if classes else 0.1))
    algorithm = bf.pooled(
        net,
        local=everything,
        prior="layer",
        initial_sd=1.0,
        likelihood=likelihood,
        training=training,
        approximation="variational",
    )
    result = bf.run(algorithm, data, rounds=6, progress=False)
    inside = []
    for name, theta in zip(data, truth, strict=True):
        posterior = result.clients[name].posterior
        assert isinstance(posterior, PartPosterior)
        centre, sd = (
            torch.cat([leaf.flatten() for leaf in tree.values()])
            for tree in (posterior.mean, posterior.sd)
        )
        inside.append(((centre - theta).abs() <= 1.6449 * sd).double().mean())
    return float(torch.stack(inside).mean())


def everything(name: str, module: nn.Module) -> bool:
    """Choose every parameter."""
    return True
