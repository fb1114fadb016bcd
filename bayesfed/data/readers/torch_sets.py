"""Data sets of PyTorch: pairs of an input and a target, read once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from bayesfed.data.dataset import Dataset
from bayesfed.data.rows import as_inputs, labelled, numbers_of
from bayesfed.errors import DataError
from bayesfed.errors.checks import checked


@checked()
def from_torch(
    dataset: TorchDataset[Any],
    *,
    classes: Sequence[str] | None = None,
    regression: bool = False,
    scale: float | None = None,
) -> Dataset:
    """Read every pair of a map-style or iterable data set: inputs ``(N, ...)``, float32, and
    targets ``(N,)``.

    Transforms are applied once, while reading. A random transform therefore gives the same image in
    every epoch.

    Parameters
    ----------
    dataset
        Pairs (input, target). Inputs are tensors, arrays or Pillow images; targets are integers,
        texts or numbers.
    classes
        Names of the classes in the order of their numbers. None: ``classes`` of the data set, which
        those of torchvision have, or for a ``Subset`` those of the underlying data set; else all
        labels that occur, integers by value and texts alphabetically.
    regression
        Whether targets are numbers instead of labels.
    scale
        Factor on the inputs. None: 1 / 255 for bytes (uint8), such as pixels, and 1 for all other
        types.

    Raises
    ------
    DataError
        If there are no rows, a row is not a pair, a label is missing or has no name, or inputs are
        texts, not finite or of different shapes; the message names the row.
    """
    rows: list[np.ndarray[Any, Any]] = []
    labels: list[object] = []
    for number, row in enumerate(_rows(dataset)):
        if not isinstance(row, tuple | list) or len(row) != 2:
            actual = (
                f"{type(row).__name__}{f' of {len(row)}' if isinstance(row, tuple | list) else ''}"
            )
            raise DataError(
                f"row {number}", "a pair (input, target)", actual, "a data set of two tensors"
            )
        rows.append(numbers_of(row[0], f"row {number}, input"))
        labels.append(row[1].item() if hasattr(row[1], "item") and np.ndim(row[1]) == 0 else row[1])

    def at(row: int) -> str:
        return f"row {row}, target"

    inputs = as_inputs(rows, scale, lambda row: f"row {row}, input")
    return labelled(inputs, labels, classes, at, regression=regression, names=_names(dataset))


def _rows(dataset: Any) -> Iterator[Any]:
    """Yield all rows; by number if there is a length, since plain iteration ends only with an
    IndexError.
    """
    if isinstance(dataset, IterableDataset):
        yield from dataset
        return
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        expected = "a torch.utils.data.Dataset"
        raise DataError(
            "from_torch", expected, type(dataset).__name__, "TensorDataset(inputs, targets)"
        )
    for number in range(len(dataset)):
        yield dataset[number]


def _names(dataset: Any) -> list[str] | None:
    """Return the class names of a data set or, for a subset, of the underlying data set."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    return [str(name) for name in names] if isinstance(names, list | tuple) and names else None
