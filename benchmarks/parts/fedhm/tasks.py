"""Six tasks for methods at their default arguments: rows of clients, and a network of any width."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_wine
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

import bayesfed as bf
from bayesfed.keys import forked
from bayesfed.models import resnet18
from bayesfed.trees import parameters, size

LIBRARIES = ("networkx", "numpy", "scipy", "sklearn", "torch")
WORDS, LENGTH, DOCUMENTS = 1000, 24, 400


class Task(NamedTuple):
    """Rows to train and to test on, the network at a width, and how long it is trained.

    Parameters
    ----------
    seeds
        How many seeds an accuracy is the mean of: more where test rows are few.
    """

    data: Callable[[int], tuple[bf.Dataset, bf.Dataset]]
    net: Callable[[float, bf.Key], nn.Module]
    clients: int
    rounds: int
    seeds: int


def wine(seed: int) -> tuple[bf.Dataset, bf.Dataset]:
    """Return scikit-learn's wines, three kinds by 13 measurements, each scaled by the training
    rows.
    """
    found = load_wine()
    order = torch.randperm(len(found.target), generator=bf.Key(seed, "wine").generator()).numpy()
    train, test = order[60:], order[:60]
    middle, spread = found.data[train].mean(0), found.data[train].std(0)
    rows = bf.Dataset(((found.data - middle) / spread).astype(np.float32), found.target)
    return rows[torch.as_tensor(train)], rows[torch.as_tensor(test)]


def digits(seed: int) -> tuple[bf.Dataset, bf.Dataset]:
    """Return scikit-learn's digits."""
    return bf.digits(bf.Key(seed, "digits"))


def text(seed: int) -> tuple[bf.Dataset, bf.Dataset]:
    """Return the first words of installed libraries' docstrings, and which library they are of."""
    inputs, targets = list[Tensor](), list[int]()
    for label, library in enumerate(LIBRARIES):
        found = sorted(set(_documents(library)))
        order = torch.randperm(len(found), generator=bf.Key(seed, library).generator())
        for number in order[:DOCUMENTS].tolist():
            inputs.append(_tokens(found[number]))
            targets.append(label)
    order = torch.randperm(len(targets), generator=bf.Key(seed, "text").generator())
    rows = bf.Dataset(torch.stack(inputs)[order], torch.tensor(targets)[order])
    return rows[len(rows) // 4 :], rows[: len(rows) // 4]


def _documents(library: str) -> Iterator[str]:
    package = import_module(library)
    names = [library, *(f"{library}.{one.name}" for one in pkgutil.iter_modules(package.__path__))]
    for name in names:
        if re.search(r"\._|test|conftest|setup|distutils|f2py|onnx|utils|backends", name):
            continue
        try:
            module = import_module(name)
        except ImportError:
            continue
        for _, one in inspect.getmembers(module, callable):
            said = inspect.getdoc(one) or ""
            if str(getattr(one, "__module__", "")).split(".")[0] == library and len(said) > 200:
                yield re.sub(rf"\b({'|'.join(LIBRARIES)}|np|nx|tensor)\b", " ", said.lower())


def _tokens(said: str) -> Tensor:
    """Return numbers of words, 0 where there are no more."""
    words = re.findall(r"[a-z]+", said)[2 : LENGTH + 2]
    numbers = [1 + int.from_bytes(word.encode(), "big") % (WORDS - 1) for word in words]
    return torch.tensor(numbers + [0] * (LENGTH - len(numbers)))


class Meaned(nn.Module):
    """The mean of the words' vectors, then three layers."""

    def __init__(self, width: float) -> None:
        super().__init__()
        wide, deep = round(32 * width), round(128 * width)
        self.words = nn.Embedding(WORDS, wide)
        self.first, self.second = nn.Linear(wide, deep), nn.Linear(deep, deep)
        self.third, self.last = nn.Linear(deep, deep), nn.Linear(deep, len(LIBRARIES))

    def forward(self, tokens: Tensor) -> Tensor:
        """Map ``(B, L)`` to logits."""
        hidden = self.words(tokens).mean(1)
        for layer in (self.first, self.second, self.third):
            hidden = layer(hidden).relu()
        logits: Tensor = self.last(hidden)
        return logits


def convolved(width: float, key: bf.Key) -> nn.Module:
    """Return three convolutions over the rows of an image, read as a sequence of eight vectors."""
    a, b = round(32 * width), round(64 * width)
    with forked(key):
        return nn.Sequential(
            nn.Conv1d(8, a, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(a, b, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(b, b, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * b, 10),
        )


def meaned(width: float, key: bf.Key) -> nn.Module:
    """Return the text's network."""
    with forked(key):
        return Meaned(width)


def perceptron(*widths: int) -> Callable[[float, bf.Key], nn.Module]:
    """Return a perceptron whose hidden layers are as wide as they are told."""

    def made(width: float, key: bf.Key) -> nn.Module:
        inner = [round(many * width) for many in widths[1:-1]]
        return bf.mlp([widths[0], *inner, widths[-1]], key)

    return made


def small_images(seed: int) -> tuple[bf.Dataset, bf.Dataset]:
    """Return 3,000 images of Fashion-MNIST at half their height and width, and 2,000 to test on."""
    loaded = bf.fashion_mnist("/usr/share/datasets/fashion-mnist")
    rows = [
        part[torch.randperm(len(part), generator=bf.Key(seed, "images").generator())[:count]]
        for part, count in zip(loaded, (3000, 2000), strict=True)
    ]
    train, test = (
        bf.Dataset(avg_pool2d(one.inputs.view(-1, 1, 28, 28), 2)[:, 0], one.targets) for one in rows
    )
    return train, test


def images(width: float, key: bf.Key) -> nn.Module:
    """Return two convolutions and two hidden layers."""
    first, second, hidden = (round(many * width) for many in (8, 16, 64))
    return bf.cnn((1, 14, 14), 10, key, channels=(first, second), hidden=hidden)


def residual(width: float, key: bf.Key) -> nn.Module:
    """Return ResNet-18 at an eighth of its width."""
    return resnet18((1, 8, 8), 10, key, width=width / 8, norm="group")


TASKS: Mapping[str, Task] = {
    "digits": Task(digits, perceptron(64, 64, 64, 64, 64, 10), 6, 24, 5),
    "wine": Task(wine, perceptron(13, 64, 64, 64, 3), 6, 16, 5),
    "sequences": Task(digits, convolved, 6, 12, 1),
    "text": Task(text, meaned, 6, 14, 3),
    "ResNet": Task(digits, residual, 3, 6, 1),
    "Fashion-MNIST": Task(small_images, images, 6, 12, 1),
}


def parts(task: Task, seed: int) -> tuple[Mapping[str, bf.Dataset], bf.Dataset]:
    """Return clients, Dirichlet 0.5, and test rows."""
    train, test = task.data(seed)
    shares = bf.dirichlet(train.targets, task.clients, 0.5, bf.Key(seed, "partition"))
    return bf.federate(train, shares), test


def slimmed(task: Task, count: int, key: bf.Key) -> nn.Module:
    """Return the network of the width, in 64ths, whose parameters are nearest to a count."""
    widths = [step / 64 for step in range(8, 65)]
    counts = [size(parameters(task.net(width, key))) for width in widths]
    return task.net(
        min(zip(counts, widths, strict=True), key=lambda one: abs(one[0] - count))[1], key
    )
