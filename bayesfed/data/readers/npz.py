"""Arrays of your own, from NumPy's npz files."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bayesfed.data.dataset import Dataset
from bayesfed.data.readers.labels import meant
from bayesfed.data.rows import labelled, scaled
from bayesfed.errors import DataError, LocalText
from bayesfed.errors.checks import checked


@checked()
def from_npz(
    path: str | Path,
    *,
    inputs: str = "inputs",
    targets: str = "targets",
    classes: Sequence[str] | None = None,
    regression: bool = False,
    scale: float | None = None,
    channels_last: bool = False,
) -> Dataset:
    """Read two arrays of an npz file: inputs ``(N, ...)``, which become float32, and targets
    ``(N,)``.

    Parameters
    ----------
    path
        The npz file.
    inputs, targets
        Names of the arrays in the file.
    classes
        Names of the classes in the order of their numbers, such as ``.classes`` of the training set
        for its test set. None: all labels that occur, integers by value and texts alphabetically.
    regression
        Whether targets are numbers, of any shape ``(N, ...)``, instead of labels.
    scale
        Factor on the inputs. None: 1 / 255 for bytes (uint8), such as pixels, and 1 for all other
        types.
    channels_last
        Whether inputs are images ``(N, rows, columns, channels)``. The result always has channels
        first.

    Raises
    ------
    DataError
        If the file is missing or not npz, does not have these arrays (the message names the nearest
        one), or holds Python objects, which are never unpickled; or if lengths differ, there are no
        rows, values are not finite, or labels are neither integers nor texts.
    """
    path = Path(path)
    values, labels = _arrays(path, inputs, targets)
    for name, array, kinds, hint in (
        (inputs, values, "biuf", "encoding texts as numbers"),
        (targets, labels, "biuf" if regression else "biuUS", f"regression={not regression}"),
    ):
        if array.dtype.kind not in kinds:
            raise DataError(
                LocalText(f"{path}, {name}"),
                "an array of numbers" if kinds == "biuf" else "integers or texts as labels",
                array.dtype,
                hint,
            )
    if values.ndim == 0 or labels.ndim == 0 or len(values) != len(labels) or not len(values):
        raise DataError(
            LocalText(f"{path}, {inputs} and {targets}"),
            "as many rows, at least one",
            f"shapes {values.shape} and {labels.shape}",
            "np.savez(path, inputs=..., targets=...) of the same rows",
        )
    if channels_last:
        if values.ndim != 4:
            raise DataError(
                LocalText(f"{path}, {inputs}"),
                "(N, rows, columns, channels)",
                f"shape {values.shape}",
                "channels_last=False",
            )
        values = np.moveaxis(values, -1, 1)
    tensor, where = torch.from_numpy(scaled(values, scale)), LocalText(f"{path}, {targets}")
    if regression:
        return Dataset(tensor, torch.from_numpy(labels.astype(np.float32)))
    if labels.ndim != 1:
        raise DataError(
            where,
            "one label a row, (N,)",
            f"shape {labels.shape}",
            "labels.argmax(1) if they are one-hot",
        )
    plain = (labels.astype(str) if labels.dtype.kind == "S" else labels).tolist()
    return labelled(tensor, plain, classes, lambda row: LocalText(f"{where}, row {row}"))


def _arrays(path: Path, *names: str) -> list[np.ndarray]:
    """Read arrays by name, without unpickling."""
    try:
        with zipfile.ZipFile(path):
            # an npz file is a zip file; NumPy would take anything else for a pickle or a single
            # array
            pass
        with np.load(path, allow_pickle=False) as opened:
            if missing := [name for name in names if name not in opened.files]:
                raise DataError(
                    LocalText(path),
                    f"an array {missing[0]!r}",
                    f"{', '.join(opened.files) or 'none'}",
                    (
                        meant(missing[0], opened.files)
                        if opened.files
                        else "np.savez(path, inputs=..., targets=...)"
                    ),
                )
            return [opened[name] for name in names]
    except (OSError, EOFError, zipfile.BadZipFile) as problem:
        raise DataError(
            LocalText(path), "a readable npz file", problem, "np.savez(path, ...)"
        ) from problem
    except ValueError as problem:
        if isinstance(problem, DataError):
            raise
        raise DataError(
            LocalText(path),
            "arrays of numbers or texts",
            problem,
            "saving array.astype(str) or (float)",
        ) from problem
