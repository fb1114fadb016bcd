"""NumPy arrays and pandas frames as the tensors of a data set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.data.readers.labels import class_numbers, named_numbers
from bayesfed.errors import DataError
from bayesfed.errors.roles import an


def as_tensor(values: object, where: str) -> Tensor:
    """Return tensors as they are, and numbers of an array or a frame as a tensor.

    Parameters
    ----------
    values
        A tensor, a NumPy array, or a frame or series of pandas. Fractions become float32 and whole
        numbers int64; frames always become float32.
    where
        Name of the values, for errors.

    Raises
    ------
    DataError
        If they are anything else, or not numbers.
    """
    if isinstance(values, Tensor):
        return values
    frame = hasattr(values, "to_numpy") and hasattr(values, "columns")
    if not isinstance(values, np.ndarray) and not hasattr(values, "to_numpy"):
        raise DataError(
            where,
            "a tensor, an array or a frame",
            an(type(values).__name__),
            "torch.tensor(rows), np.array(rows), or a reader (from_csv, from_npz, from_torch)",
        )
    _check_columns(values, where)
    array = _array(values, where)
    if array.dtype.kind not in "biuf":
        raise DataError(
            where,
            "numbers",
            (
                f"{array.dtype} such as {array.reshape(-1)[0]!r:.40}"
                if array.size
                else str(array.dtype)
            ),
            "numbers in place of texts and missing values; text labels become numbers if they "
            "are the targets",
        )
    whole = array.dtype.kind in "biu" and not frame
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.int64 if whole else np.float32)))


def as_targets(
    values: object, classes: Sequence[str], where: str
) -> tuple[Tensor, tuple[str, ...]]:
    """Return targets as `as_tensor` does, and the names of their classes; text labels become class
    numbers.

    Parameters
    ----------
    values
        As for `as_tensor`, or texts.
    classes
        Names of the classes; empty if the labels have none, or are texts that name them.
    where
        Name of the targets, for errors.

    Raises
    ------
    DataError
        As `as_tensor`, and if a text label is missing or not among the classes.
    """
    if isinstance(values, Tensor):
        return values, tuple(classes)
    frame: Any = values
    if hasattr(frame, "columns") and len(frame.columns) == 1:
        values = frame[frame.columns[0]]
    given = isinstance(values, np.ndarray) or hasattr(values, "to_numpy")
    array = _array(values, where) if given else None
    if array is not None and array.dtype.kind in "OUST" and array.size:
        labels = array.reshape(len(array), -1)
        if labels.shape[1] == 1 and all(isinstance(label, str) for label in labels[:, 0]):
            texts, wanted = labels[:, 0].tolist(), list(classes) or None
            known: Any = getattr(getattr(values, "dtype", None), "categories", None)
            if hasattr(known, "get_indexer"):
                # Categories of pandas say their order, and which classes have no rows.
                numbers, names = known.get_indexer(texts).tolist(), [*map(str, known)]
                return named_numbers(numbers, names, wanted, lambda row: f"{where}, row {row}")
            return class_numbers(texts, wanted, lambda row: f"{where}, row {row}")
        missing = sum(not isinstance(label, str) for label in labels.reshape(-1))
        raise DataError(
            where,
            "one label a row",
            f"{missing} without, or several columns",
            "leaving out such rows, as frame.dropna() does, and one column of labels",
        )
    return as_tensor(values, where), tuple(classes)


def _array(values: Any, where: str) -> np.ndarray:
    if hidden := int(np.ma.getmaskarray(values).sum()) if np.ma.isMaskedArray(values) else 0:
        expected, hint = "a number in every cell", "leaving out such rows, or values.filled(...)"
        raise DataError(where, expected, f"{hidden} masked", hint)
    return values if isinstance(values, np.ndarray) else np.asarray(values.to_numpy())


def _check_columns(values: Any, where: str) -> None:
    """Raise `DataError` if columns of a frame are no numbers, or cells are missing: all of them at
    once.
    """
    if not hasattr(values, "columns"):
        return
    texts = [
        name for name, kind in values.dtypes.items() if getattr(kind, "kind", "O") not in "biuf"
    ]
    if texts:
        raise DataError(
            where,
            "columns of numbers",
            f"others: {', '.join(map(str, texts[:10]))}",
            f"frame.drop(columns={texts})",
        )
    counts = {str(name): int(count) for name, count in values.isna().sum().items() if count}
    if counts:
        raise DataError(
            where,
            "a number in every cell",
            f"{sum(counts.values())} empty: "
            f"{', '.join(f'{count} in {name!r}' for name, count in list(counts.items())[:10])}",
            "frame.dropna(), or frame.fillna(frame.mean())",
        )
