"""The image tasks of `fslora.py`: a small network that knows Fashion-MNIST, and the same labels
under transformations that it does not know.

An MLP 196-256-256-10 is trained on Fashion-MNIST at 14 x 14 pixels and then frozen. "dihedral" has
16 domains (rotations, mirrored or not, inverted or not), "permutations" 20 (orders of the pixels).
Clients have rows of all domains ("mixed") or of one ("apart").

"digits" and "rows" are small: 8 x 8 digits, learned as they are and then adapted to one order of
the pixels; by an MLP, and by a network that reads each row of pixels alone first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from parts.fslora.domains import dihedral, permutations
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

import bayesfed as bf
from bayesfed.data import by_domain
from bayesfed.trees import parameters

SIZES, PERMUTED = [196, 256, 256, 10], 20
# Mean and standard deviation of the pixels, 0 to 255.
CENTRE, SPREAD = 72.94, 80.0
# Rows that a search scores: no run of a search trains on them.
TRAINED, SCORED = 50_000, 5_000
KEPT = 0.8


@dataclass(frozen=True)
class ImageTask:
    """The pretrained network, without adapters, and its rows with their domains."""

    net: nn.Module
    train: bf.Dataset
    test: bf.Dataset

    def clients(self, settings: Mapping[str, Any], seed: int) -> dict[str, bf.Dataset]:
        """Return the rows of every client."""
        if settings["split"] == "apart":
            return bf.federate(self.train, by_domain(self.train.domains))
        key = bf.Key(seed, "partition")
        return bf.federate(
            self.train,
            bf.dirichlet(self.train.targets, settings["clients"], settings["concentration"], key),
        )


@cache
def image_task(name: str, folder: Path, kept: Path, *, held_out: bool) -> ImageTask:
    """Return a task, the same for every seed.

    Parameters
    ----------
    name
        "dihedral", "permutations", "digits" or "rows".
    folder
        Folder with the files of Fashion-MNIST.
    kept
        Folder in which the pretrained network is kept.
    held_out
        Whether to score training rows that no run trains on, in place of test rows.
    """
    if name in ("digits", "rows"):
        return _small(name, held_out=held_out)
    pooled = [_pooled(part) for part in bf.fashion_mnist(folder)]
    net = bf.mlp(SIZES, bf.Key(0, "net"))
    file = kept / "fashion_mnist_mlp.safetensors"
    if file.exists():
        net.load_state_dict(load_file(file))
    else:
        _pretrain(net, _scaled(pooled[0]), 4000)
        file.parent.mkdir(parents=True, exist_ok=True)
        save_file(parameters(net), file.with_suffix(".part"))
        file.with_suffix(".part").replace(file)
    train, test = (_scaled(_transformed(name, part)) for part in pooled)
    if held_out:
        train, test = train[:TRAINED], train[TRAINED : TRAINED + SCORED]
    return ImageTask(net, train, test)


def _small(name: str, *, held_out: bool) -> ImageTask:
    """Return a task on digits, under one order of the pixels for everybody."""
    parts = bf.digits()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        by_rows = nn.Sequential(
            nn.Linear(8, 64),
            nn.ReLU(),
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 64),
            nn.ReLU(),
            nn.Linear(64, 10),
        )
    net = by_rows if name == "rows" else bf.mlp([64, 128, 128, 10], bf.Key(0, "net"))
    _pretrain(net, parts[0], 400)
    train, test = (permutations(part, 1, bf.Key(0, name)) for part in parts)
    if held_out:
        count = int(KEPT * len(train))
        train, test = train[:count], train[count:]
    return ImageTask(net, train, test)


def _transformed(name: str, data: bf.Dataset) -> bf.Dataset:
    if name == "dihedral":
        return dihedral(data, bf.Key(0, name))
    return permutations(data, PERMUTED, bf.Key(0, name))


def _pooled(data: bf.Dataset) -> bf.Dataset:
    return bf.Dataset(functional.avg_pool2d(data.inputs[:, None], 2)[:, 0], data.targets)


def _scaled(data: bf.Dataset) -> bf.Dataset:
    return bf.Dataset((255 * data.inputs - CENTRE) / SPREAD, data.targets, (), data.domains)


def _pretrain(net: nn.Module, data: bf.Dataset, steps: int) -> None:
    """Train a network for some steps of 128 rows."""
    optimiser = torch.optim.Adam(net.parameters(), 1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        rows = torch.randint(len(data), (128,), generator=generator)
        optimiser.zero_grad()
        functional.cross_entropy(net(data.inputs[rows]), data.targets[rows]).backward()
        optimiser.step()
        schedule.step()
