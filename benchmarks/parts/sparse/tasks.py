"""Tasks in which few inputs or few weights matter, each over ten clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

import bayesfed as bf

CLIENTS = 10
# Inputs of the tasks of digits, and where 64 of them come from a digit.
WIDE, PIXELS = 784, 64
# The planted task: inputs, those that matter, classes, rows to train and to test on.
PLANTED, MATTER, CLASSES, ROWS, TESTED = 1024, 20, 10, 4000, 1000


class Task(NamedTuple):
    """What a run needs, and the truth where it is known."""

    clients: Mapping[str, bf.Dataset]
    test: bf.Dataset
    widths: tuple[int, ...]
    """Of the network: inputs, hidden units, classes."""
    matter: Tensor | None = None
    """Which inputs say anything of the class, booleans ``(inputs,)``."""

    @property
    def observations(self) -> int:
        """Number of rows of all clients."""
        return sum(map(len, self.clients.values()))

    def net(self, seed: int) -> torch.nn.Module:
        """Return a network of the task, from a key."""
        return bf.mlp(list(self.widths), bf.Key(seed, "net"))


def noise_digits(seed: int) -> Task:
    """Put the 64 pixels of digits at drawn places among 720 inputs of noise as wide as theirs."""
    return _digits(seed, noise=True)


def blank_digits(seed: int) -> Task:
    """Put the 64 pixels of digits at drawn places among 720 inputs that are always zero."""
    return _digits(seed, noise=False)


def planted(seed: int) -> Task:
    """Draw normal inputs, of which 20 go into a random network that says the class."""
    key = bf.Key(seed, "planted")
    places = torch.from_numpy(key.child("places").numpy().permutation(PLANTED)[:MATTER])
    random = key.child("rows").generator()
    teacher = bf.mlp([MATTER, 32, CLASSES], key.child("teacher"))
    inputs = torch.randn(ROWS + TESTED, PLANTED, generator=random)
    with torch.no_grad():
        scores = teacher(inputs[:, places])
        # Every class has about as many rows.
        targets = ((scores - scores.mean(0)) / scores.std(0)).argmax(1)
    return _task(seed, inputs, targets, ROWS, (256, 256), places)


def fashion(seed: int) -> Task:
    """Read Fashion-MNIST, of which every pixel says something."""
    train, test = bf.fashion_mnist()
    flat = [bf.Dataset(part.inputs.flatten(1), part.targets) for part in (train, test)]
    return Task(_shared(flat[0], seed), flat[1], (784, 256, 256, 10))


TASKS: Mapping[str, Callable[[int], Task]] = {
    "noise digits": noise_digits,
    "blank digits": blank_digits,
    "planted": planted,
    "fashion": fashion,
}


def _digits(seed: int, noise: bool) -> Task:
    train, test = bf.digits(bf.Key(seed, "digits"))
    key = bf.Key(seed, "wide")
    pixels = torch.cat([train.inputs, test.inputs]).flatten(1)
    places = torch.from_numpy(key.child("places").numpy().permutation(WIDE)[:PIXELS])
    inputs = torch.zeros(len(pixels), WIDE)
    if noise:
        inputs.normal_(float(pixels.mean()), float(pixels.std()), generator=key.generator())
    inputs[:, places] = pixels
    targets = torch.cat([train.targets, test.targets])
    return _task(seed, inputs, targets, len(train), (256, 256), places)


def _task(
    seed: int,
    inputs: Tensor,
    targets: Tensor,
    rows: int,
    hidden: tuple[int, ...],
    places: Tensor,
) -> Task:
    """Return a task whose first rows are trained on."""
    train, test = (
        bf.Dataset(inputs[part], targets[part]) for part in (slice(0, rows), slice(rows, None))
    )
    matter = torch.zeros(inputs.shape[1], dtype=torch.bool)
    matter[places] = True
    widths = (inputs.shape[1], *hidden, int(targets.max()) + 1)
    return Task(_shared(train, seed), test, widths, matter)


def _shared(train: bf.Dataset, seed: int) -> Mapping[str, bf.Dataset]:
    parts = bf.dirichlet(train.targets, CLIENTS, 0.5, bf.Key(seed, "partition"))
    return bf.federate(train, parts)
