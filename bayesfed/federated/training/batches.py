"""Batches of local work: which rows, and what is made of them anew at every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor

from bayesfed.data import Dataset
from bayesfed.data.dataset import rows_of, unchecked
from bayesfed.data.packed import Packed, packed, taken_apart
from bayesfed.errors import DataError
from bayesfed.errors.checks import shown
from bayesfed.errors.plurals import plural

Augment = Callable[[Any], Any]
"""``inputs -> inputs``: those of a batch, as a network gets them."""


def batches(data: Dataset, size: int | None, steps: int, generator: Generator) -> Iterator[Dataset]:
    """Yield `steps` batches of `size` rows from reshuffled passes. The incomplete last batch of a
    pass is dropped.

    Parameters
    ----------
    data
        At least one row.
    size
        Rows of a batch. None, or more than there are, takes all.
    steps
        Number of batches.
    generator
        Source of the order of the rows, on the CPU.
    """
    for rows in row_numbers(len(data), size, steps, generator).to(data.inputs.device):
        yield rows_of(data, rows)


def row_numbers(count: int, size: int | None, steps: int, generator: Generator) -> Tensor:
    """Return the row numbers of the batches that `batches` cuts from `count` rows,
    ``(steps, min(size, count))``.
    """
    size = min(size or count, count)
    whole = count // size
    passes = [
        torch.randperm(count, generator=generator)[: whole * size].view(whole, size)
        for _ in range(-(-steps // whole))
    ]
    return torch.cat(passes)[:steps]


def augmented(batch: Dataset, augment: Augment) -> Dataset:
    """Return rows with other inputs.

    Raises
    ------
    DataError
        If they are not as many, or no tensors.
    """
    inputs = batch.inputs
    if isinstance(inputs, Packed):
        given, named = taken_apart(inputs)
        made = packed(augment(named or given), "augment")
    else:
        made = augment(inputs)
    if not isinstance(made, Tensor) or len(made) != len(batch):
        expected = f"inputs of the {plural(len(batch), 'row')} that it was given"
        raise DataError("Training, augment", expected, shown(made), "a function of all inputs")
    return unchecked(made, batch.targets, batch.classes, batch.domains)
