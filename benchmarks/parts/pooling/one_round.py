"""One round: ten clients of Fashion-MNIST by Dirichlet(0.1) that train from the same network until
they are fused once.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from copy import deepcopy

import torch
from parts.pooling import problems
from parts.pooling.runs import work
from parts.shared.targets import at_least
from torch import Tensor, nn

import bayesfed as bf
from bayesfed.federated import Algorithm
from bayesfed.inspect import table


def targets(options: argparse.Namespace) -> Iterator[bool]:
    """Run and print; yield whether the target is met."""
    torch.set_num_threads(1)
    accuracies: dict[str, list[float]] = {}
    for seed in range(1 if options.check else 5):
        for name, accuracy in fused(seed).items():
            accuracies.setdefault(name, []).append(100 * accuracy)
    means = {name: statistics.fmean(values) for name, values in accuracies.items()}
    print(table(["fusion", "test %"], [[name, f"{value:.1f}"] for name, value in means.items()]))
    averages = max(value for name, value in means.items() if "average" in name)
    yield at_least(
        "one round: points of fused Laplace above the better average",
        means["laplace"] - averages,
        10.0,
    )


def fused(seed: int) -> dict[str, float]:
    """Return test accuracies after one round, each at the strength that the held-out rows of all
    clients chose.
    """
    train, held, test, net = problems.skewed(seed)

    def score(algorithm: Algorithm) -> tuple[float, float]:
        model = bf.run(algorithm, train, rounds=1, seed=seed, progress=False).model
        return accuracy(model(held.inputs), held), accuracy(model(test.inputs), test)

    lengths = (30, 100, 300)
    tried = {
        "average": [
            bf.one_round(net, fusion="average", training=work(steps, 0.1)) for steps in lengths
        ],
        "average of last layers": [
            bf.one_round(last_alone(net), fusion="average", training=work(steps, 0.3))
            for steps in lengths
        ],
        "fisher": [
            bf.one_round(net, fusion="fisher", training=work(steps, 0.1)) for steps in lengths
        ],
        "laplace": [
            bf.one_round(net, prior_precision=one, training=work(100, 0.3))
            for one in (0.1, 1.0, 10.0)
        ],
    }
    return {name: max(map(score, algorithms))[1] for name, algorithms in tried.items()}


def last_alone(net: nn.Module) -> nn.Module:
    """Return a copy of the network of which only the last layer is trained."""
    copy = deepcopy(net)
    for name, value in copy.named_parameters():
        value.requires_grad_(name.startswith("3"))
    return copy


def accuracy(outputs: Tensor, data: bf.Dataset) -> float:
    """Return the share of rows that are classified rightly."""
    return float((outputs.argmax(1) == data.targets).double().mean())
