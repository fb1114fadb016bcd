"""Clients of 10 to 60 rows for `pooling.py`: rotated writers, corrupted images with few classes a
client, and a hierarchy with a known truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

import bayesfed as bf
from bayesfed.data import concatenated
from bayesfed.data.corrupted import Corruption

SEEN, UNSEEN, SCORED, HELD = 100, 40, 50, 0.2
NOISE, SPREAD = 0.5, 0.6


@dataclass(frozen=True)
class Problem:
    """Rows of each client to train on, to choose strengths on and to score, rows of clients that
    are never seen, and the network to begin with.

    It is an MLP of these widths.
    """

    train: Mapping[str, bf.Dataset]
    held: Mapping[str, bf.Dataset]
    test: Mapping[str, bf.Dataset]
    unseen: Mapping[str, bf.Dataset]
    widths: Sequence[int]
    net: nn.Module
    seed: int


def writers(seed: int) -> Problem:
    """Return writers of digits, each with an angle of its own between -90 and 90 degrees.

    1,200 images are for training and 597 for tests. A writer has some of them, turned; another
    writer may have the same image at another angle.
    """
    key = bf.Key(seed, "writers")
    train, test = bf.digits(key.child("split"), test=597)
    noise, parts, scored = (
        key.child("rows").generator(),
        dict[str, bf.Dataset](),
        dict[str, bf.Dataset](),
    )
    for name in names():
        angle = 180 * float(torch.rand(1, generator=noise)) - 90
        parts[name] = turned(chosen(train, size(noise), noise), angle)
        scored[name] = turned(chosen(test, SCORED, noise), angle)
    return made(parts, scored, (64, 32, 10), key, seed)


def garments(seed: int) -> Problem:
    """Return clients with rows of Fashion-MNIST, classes in shares by Dirichlet(0.1), and one
    corruption of severity 3 for each client.

    No image belongs to two clients for training; test rows are drawn from the test set in the
    client's own shares.
    """
    key = bf.Key(seed, "garments")
    train, test = bf.fashion_mnist()
    noise, parts, scored = (
        key.child("rows").generator(),
        dict[str, bf.Dataset](),
        dict[str, bf.Dataset](),
    )
    left = [
        order[torch.randperm(len(order), generator=noise)].tolist() for order in by_class(train)
    ]
    kinds, pools = get_args(Corruption), by_class(test)
    for number, name in enumerate(names()):
        # A Dirichlet of small concentration is a normalised draw of gammas.
        gammas = torch._standard_gamma(torch.full((10,), 0.1, dtype=torch.float64), generator=noise)
        shares = gammas / gammas.sum()
        own = torch.multinomial(shares, size(noise), True, generator=noise).tolist()
        theirs = torch.multinomial(shares, SCORED, True, generator=noise).tolist()
        rows = train[torch.tensor([left[label].pop() for label in own])]
        others = test[
            torch.tensor(
                [
                    int(pools[label][torch.randint(len(pools[label]), (1,), generator=noise)])
                    for label in theirs
                ]
            )
        ]
        for into, part in ((parts, rows), (scored, others)):
            into[name] = bf.data.corrupted(
                part, kinds[number % len(kinds)], 3, key=key.child(name, len(into))
            )
    return made(parts, scored, (784, 32, 10), key, seed)


def hierarchy(seed: int, classes: bool) -> tuple[dict[str, bf.Dataset], Tensor]:
    """Return clients with linear or logistic regressions of their own, and the true parameters,
    slopes and an offset for each client.

    The parameters are drawn from N((1, -1, 0.5, 0, 0.3), 0.6^2), inputs from N(0, 1), the noise of
    numbers has an sd of 0.5.
    """
    noise, data, truth = bf.Key(seed, "hierarchy").generator(), {}, []
    centre = torch.tensor([1.0, -1.0, 0.5, 0.0, 0.3])
    for name in names()[:SEEN]:
        inputs = torch.randn(size(noise), 4, generator=noise)
        theta = centre + SPREAD * torch.randn(5, generator=noise)
        outputs = inputs @ theta[:4] + theta[4]
        if classes:
            targets = (torch.rand(len(inputs), generator=noise) < outputs.sigmoid()).long()
        else:
            targets = (outputs + NOISE * torch.randn(len(inputs), generator=noise))[:, None]
        data[name] = bf.Dataset(inputs, targets)
        truth.append(theta)
    return data, torch.stack(truth)


class Logistic(nn.Module):
    """A regression whose output is the logit of the second of two classes."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return two logits, the first one 0."""
        logit: Tensor = self.line(inputs)
        return torch.cat([torch.zeros_like(logit), logit], 1)


def names() -> list[str]:
    """Return the names of all clients, those that are never seen last."""
    return [f"client-{number:03}" for number in range(SEEN + UNSEEN)]


def made(
    parts: Mapping[str, bf.Dataset],
    scored: Mapping[str, bf.Dataset],
    widths: Sequence[int],
    key: bf.Key,
    seed: int,
) -> Problem:
    """Return the problem: a fifth of each client's rows is held out to choose strengths on."""
    seen = names()[:SEEN]
    held = {name: max(1, round(HELD * len(parts[name]))) for name in seen}
    return Problem(
        {name: parts[name][held[name] :] for name in seen},
        {name: parts[name][: held[name]] for name in seen},
        {name: scored[name] for name in seen},
        {name: scored[name] for name in names()[SEEN:]},
        widths,
        bf.mlp(list(widths), key.child("net")),
        seed,
    )


def size(noise: Generator) -> int:
    """Return a number of rows, 10 to 60."""
    return int(torch.randint(10, 61, (1,), generator=noise))


def chosen(data: bf.Dataset, count: int, noise: Generator) -> bf.Dataset:
    """Return so many rows, drawn without replacement."""
    return data[torch.randperm(len(data), generator=noise)[:count]]


def by_class(data: bf.Dataset) -> list[Tensor]:
    """Return the numbers of the rows of every class."""
    return [(data.targets == label).nonzero()[:, 0] for label in range(10)]


def turned(data: bf.Dataset, degrees: float) -> bf.Dataset:
    """Return images ``(N, 8, 8)`` turned by an angle."""
    angle = math.radians(degrees)
    turn = torch.tensor(
        [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0]]
    ).expand(len(data), 2, 3)
    grid = affine_grid(turn, [len(data), 1, 8, 8], align_corners=False)
    return bf.Dataset(
        grid_sample(data.inputs[:, None], grid, align_corners=False)[:, 0], data.targets
    )


def skewed(
    seed: int, rows: int = 6000, clients: int = 10
) -> tuple[Mapping[str, bf.Dataset], bf.Dataset, bf.Dataset, nn.Module]:
    """Return clients for one round: rows of Fashion-MNIST by Dirichlet(0.1), rows held out of them,
    the test set, and the network.
    """
    key = bf.Key(seed, "one round")
    train, test = bf.fashion_mnist()
    own = chosen(train, rows, key.child("rows").generator())
    parts = bf.federate(
        own, bf.dirichlet(own.targets, clients, 0.1, key.child("partition"), minimum=20)
    )
    kept, held = bf.data.split_rows(parts, 0.1, key=key.child("held"))
    return kept, concatenated(list(held.values())), test, bf.mlp([784, 64, 10], key.child("net"))
