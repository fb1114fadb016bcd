"""Data sets of other libraries: pairs of PyTorch's data sets, and one split of Hugging Face's
`datasets`, which is not imported; rows are read once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset

from bayesfed.data.dataset import Dataset
from bayesfed.data.packed import packed
from bayesfed.data.readers.labels import meant
from bayesfed.data.rows import as_inputs, labelled, numbers_of
from bayesfed.errors import DataError
from bayesfed.errors.checks import ITSELF, checked


@checked(dataset=ITSELF)
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
    rows: list[np.ndarray] = []
    labels: list[object] = []
    for number, row in enumerate(_rows(dataset)):
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise DataError(
                f"row {number}",
                "a pair (input, target)",
                f"{type(row).__name__}{f' of {len(row)}' if isinstance(row, tuple | list) else ''}",
                "a data set of two tensors",
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
        raise DataError(
            "from_torch",
            "a torch.utils.data.Dataset",
            type(dataset).__name__,
            "TensorDataset(inputs, targets)",
        )
    for number in range(len(dataset)):
        yield dataset[number]


def _names(dataset: Any) -> list[str] | None:
    """Return the class names of a data set or, for a subset, of the underlying data set."""
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):
        dataset = dataset.dataset
    names = getattr(dataset, "classes", None)
    return [str(name) for name in names] if isinstance(names, list | tuple) and names else None


class Split(Protocol):
    """The part of ``datasets.Dataset`` that is used: the features of its columns, and rows as
    dictionaries.
    """

    @property
    def features(self) -> Mapping[str, Any] | None:
        """The columns and their features; the feature of class labels has ``names``."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rows, dictionaries."""


@checked(dataset=ITSELF)
def from_hugging_face(
    dataset: Split,
    *,
    inputs: str | Sequence[str] | None = None,
    label: str = "label",
    classes: Sequence[str] | None = None,
    regression: bool = False,
    scale: float | None = None,
) -> Dataset:
    """Read one split: inputs ``(N, ...)``, float32, and targets ``(N,)``.

    Parameters
    ----------
    dataset
        One split of a ``datasets.DatasetDict``.
    inputs
        One column of images, arrays or lists of one shape, or several columns: of one number each
        they become ``(N, columns)``, others a dict of tensors by column that a network takes by
        keyword, in which whole numbers stay whole, as token ids must. None: the only
        column beside the label. Images become ``(rows, columns)`` if grey and
        ``(3, rows, columns)`` otherwise.
    label
        The column of targets.
    classes
        Names of the classes in the order of their numbers. None: the names of the column's feature
        if it is a ``ClassLabel``, else all labels that occur, integers by value and texts
        alphabetically.
    regression
        Whether targets are numbers instead of labels.
    scale
        Factor on the inputs. None: 1 / 255 for bytes (uint8), such as pixels, and 1 for all other
        types.

    Raises
    ------
    DataError
        If it is not one split of such a data set, a column is missing (the message names the
        nearest one), more than one column could be the inputs, there are no rows, a label is
        missing (-1 in a test split), or inputs are texts, not finite or of different shapes (the
        message names the row).
    """
    features = getattr(dataset, "features", None)
    if not isinstance(features, Mapping):
        if isinstance(dataset, Mapping):
            raise DataError(
                "from_hugging_face",
                "one split",
                f"the splits {', '.join(map(str, dataset))}",
                f"dataset[{next(iter(dataset), 'train')!r}]",
            )
        raise DataError(
            "from_hugging_face",
            "a data set whose columns are known",
            type(dataset).__name__,
            "datasets.load_dataset(..., split='train')",
        )
    columns = _columns(inputs, label, list(features))
    several = inputs is not None and not isinstance(inputs, str)
    by_column: list[list[np.ndarray]] = []
    labels: list[object] = []
    for number, row in enumerate(dataset):
        values = [numbers_of(row[name], f"row {number}, column {name!r}") for name in columns]
        by_column.append(values)
        labels.append(row[label].item() if hasattr(row[label], "item") else row[label])

    def at(row: int) -> str:
        return f"row {row}, column {label!r}"

    by_name = dict(zip(columns, zip(*by_column, strict=True) if by_column else ((),), strict=False))

    def of(name: str) -> Callable[[int], str]:
        return lambda row: f"row {row}, column {name!r}"

    leaves = {name: as_inputs(values, scale, of(name)) for name, values in by_name.items()}
    made = leaves[columns[0]]
    if several and all(leaf.ndim == 1 for leaf in leaves.values()):
        made = torch.stack([*leaves.values()], 1)
    elif several:
        whole = {name: values for name, values in by_name.items() if values[0].dtype.kind == "i"}
        ids = {name: torch.from_numpy(np.stack(values)) for name, values in whole.items()}
        made = packed(leaves | ids, "from_hugging_face")
    names = getattr(features[label], "names", None)
    return labelled(made, labels, classes, at, regression=regression, names=names)


def _columns(inputs: str | Sequence[str] | None, label: str, there: list[str]) -> list[str]:
    """Return the columns of inputs."""
    others = [name for name in there if name != label]
    chosen = others if inputs is None else [inputs] if isinstance(inputs, str) else list(inputs)
    for name in (label, *chosen):
        if name not in there:
            raise DataError(
                "from_hugging_face",
                f"a column {name!r}",
                f"{', '.join(there)}",
                meant(name, there),
            )
    if not chosen or label in chosen or (inputs is None and len(chosen) != 1):
        raise DataError(
            "from_hugging_face, inputs",
            "columns beside the label",
            f"{', '.join(chosen) or 'none'}",
            f"inputs={others[0]!r}" if others else "another data set",
        )
    return chosen
