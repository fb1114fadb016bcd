"""Domains made of one data set: every row under one of several transformations, its label as it
was.

    train, test = (dihedral(data, Key(0, "domains")) for data in fashion_mnist())
    mixed = federate(train, dirichlet(train.targets, 20, 0.5, Key(0)))
    apart = federate(train, by_domain(train.domains))

A network that knows the untransformed rows has much to learn and loses little of what it knows, so
that the rank of an adapter matters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.errors import DataError
from bayesfed.errors.checks import a, checked, whole
from bayesfed.keys import Key

_DATA = a(Dataset, "a data set", "Dataset(inputs, targets)")


@checked(data=_DATA)
def dihedral(data: Dataset, key: Key, *, inverted: bool = True) -> Dataset:
    """Return square images under the symmetries of the square: four rotations, each also mirrored,
    and all of them also inverted.

    Every row is under one transformation, dealt at random to equally many rows each (plus or minus
    one), and has its name as its domain: ``"rotated-90"``, ``"mirrored-rotated-90-inverted"``.

    Parameters
    ----------
    data
        Images ``(N, H, H)`` or ``(N, C, H, H)``, with values from 0 to 1 if they are to be
        inverted.
    key
        Key of the deal. The same transformations are made whatever the key.
    inverted
        Whether to add each transformation followed by ``1 - x``: 16 domains in place of 8.

    Raises
    ------
    DataError
        If the rows are no square images, or have values outside of 0 to 1 that are to be inverted.
    """
    shape = tuple(data.inputs.shape)
    if len(shape) not in (3, 4) or shape[-1] != shape[-2] or not data.inputs.is_floating_point():
        actual = f"{data.inputs.dtype} of shape {shape}"
        raise DataError(
            "dihedral",
            "square images (N, H, H) or (N, C, H, H)",
            actual,
            "permutations, for any rows",
        )
    if (
        inverted
        and len(data)
        and not 0 <= float(data.inputs.min()) <= float(data.inputs.max()) <= 1
    ):
        actual = f"{float(data.inputs.min()):g} to {float(data.inputs.max()):g}"
        raise DataError(
            "dihedral", "values from 0 to 1", actual, "inverted=False, or scaling after dihedral"
        )
    flips = [
        (mirrored, turns, negative)
        for negative in range(1 + inverted)
        for mirrored in range(2)
        for turns in range(4)
    ]
    names = [
        f"{'mirrored-' * mirrored}rotated-{90 * turns}{'-inverted' * negative}"
        for mirrored, turns, negative in flips
    ]

    def moved(rows: Tensor, number: int) -> Tensor:
        mirrored, turns, negative = flips[number]
        rows = torch.rot90(rows.flip(-1) if mirrored else rows, turns, (-2, -1))
        return 1 - rows if negative else rows

    return _dealt(data, names, moved, key)


@checked(data=_DATA, count=whole(1, "20"))
def permutations(data: Dataset, count: int, key: Key) -> Dataset:
    """Return rows under fixed random permutations of their pixels or features. Domains are named
    ``"permutation-00"`` and so on.

    Every row is under one permutation, dealt at random to equally many rows each (plus or minus
    one). Colours of a pixel stay together.

    Parameters
    ----------
    data
        Features ``(N, F)``, images ``(N, H, W)``, or images ``(N, C, H, W)``.
    count
        Number of permutations.
    key
        Key of the permutations and of the deal. With one key, training and test rows have the same
        permutations.

    Raises
    ------
    ArgumentError
        If `count` is below 1.
    DataError
        If the rows have another number of axes.
    """
    if data.inputs.ndim not in (2, 3, 4):
        shape = tuple(data.inputs.shape)
        raise DataError(
            "permutations",
            "rows (F,), (H, W) or (C, H, W)",
            shape,
            "Dataset(inputs.flatten(1), targets)",
        )
    first = data.inputs.ndim - 2 if data.inputs.ndim > 2 else 1
    places = data.inputs.shape[first:].numel()
    orders = [
        torch.randperm(places, generator=key.child("permutation", number).generator())
        for number in range(count)
    ]

    def moved(rows: Tensor, number: int) -> Tensor:
        return rows.flatten(first)[..., orders[number].to(rows.device)].reshape(rows.shape)

    return _dealt(data, [f"permutation-{number:02d}" for number in range(count)], moved, key)


def _dealt(
    data: Dataset, names: Sequence[str], moved: Callable[[Tensor, int], Tensor], key: Key
) -> Dataset:
    """Return every row under one of the transformations, in the order of the rows."""
    numbers = torch.arange(len(data))[
        torch.randperm(len(data), generator=key.child("deal").generator())
    ] % len(names)
    inputs = data.inputs.clone()
    for number in range(len(names)):
        rows = (numbers == number).nonzero()[:, 0].to(inputs.device)
        inputs[rows] = moved(inputs[rows], number)
    return Dataset(
        inputs, data.targets, data.classes, tuple(names[number] for number in numbers.tolist())
    )
