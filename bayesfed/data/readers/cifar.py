"""The binary versions of CIFAR-10 and CIFAR-100: records of fixed size, with label bytes and then 3
x 32 x 32 pixels.

Source: Krizhevsky, "Learning multiple layers of features from tiny images" (2009), and the format
note on the page of the data sets. A record of CIFAR-10 has one label byte; CIFAR-100 has two, the
coarse class (of 20) and the fine class (of 100).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from bayesfed.data.dataset import Dataset
from bayesfed.errors import DataError

_IMAGE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


def cifar10(folder: str | Path) -> tuple[Dataset, Dataset]:
    """Read CIFAR-10's binary version as (train, test): inputs ``(N, 3, 32, 32)`` in [0, 1], ten
    classes.

    Parameters
    ----------
    folder
        The unpacked folder ``cifar-10-batches-bin``, or the folder that contains it.

    Raises
    ------
    DataError
        If a file is missing or unreadable, is not a whole number of records, or holds a label
        above 9.
    """
    train = [f"data_batch_{i}.bin" for i in range(1, 6)]
    return _read(
        Path(folder),
        "cifar-10-batches-bin",
        "cifar-10-binary.tar.gz",
        train,
        ["test_batch.bin"],
        labels=1,
        classes=10,
    )


def cifar100(folder: str | Path) -> tuple[Dataset, Dataset]:
    """Read CIFAR-100's binary version as (train, test): inputs ``(N, 3, 32, 32)`` in [0, 1], the
    hundred fine classes.

    Parameters
    ----------
    folder
        The unpacked folder ``cifar-100-binary``, or the folder that contains it.

    Raises
    ------
    DataError
        If a file is missing or unreadable, is not a whole number of records, or holds a fine label
        above 99.
    """
    return _read(
        Path(folder),
        "cifar-100-binary",
        "cifar-100-binary.tar.gz",
        ["train.bin"],
        ["test.bin"],
        labels=2,
        classes=100,
    )


def _read(
    folder: Path,
    unpacked: str,
    archive: str,
    train: Sequence[str],
    test: Sequence[str],
    *,
    labels: int,
    classes: int,
) -> tuple[Dataset, Dataset]:
    names = [*train, *test]
    # The place with more of the files, so that the message names only what is missing there.
    home = max(
        (folder, folder / unpacked),
        key=lambda place: sum((place / name).is_file() for name in names),
    )
    if missing := [name for name in names if not (home / name).is_file()]:
        raise DataError(
            str(home),
            f"{', '.join(names)}, here or in {unpacked}"
            if len(missing) == len(names)
            else ", ".join(names),
            f"no {', '.join(missing)}",
            f"the binary version, {archive}, from the data set's own page, {_PAGE}",
        )
    return _join([home / name for name in train], labels, classes), _join(
        [home / name for name in test], labels, classes
    )


def _join(paths: Sequence[Path], labels: int, classes: int) -> Dataset:
    files = [_records(path, labels + _PIXELS) for path in paths]
    rows = sum(map(len, files))
    # Filled file by file from memory-mapped bytes, so that only one copy of the images is in
    # memory.
    images, targets, start = np.empty((rows, _PIXELS), np.float32), np.empty(rows, np.int64), 0
    for path, records in zip(paths, files, strict=True):
        part = slice(start, start := start + len(records))
        np.divide(records[:, labels:], 255, out=images[part], dtype=np.float32)
        targets[part] = records[:, labels - 1]
        if (highest := int(targets[part].max())) >= classes:
            raise DataError(
                str(path), f"labels from 0 to {classes - 1}", highest, "downloading it again"
            )
    return Dataset(torch.from_numpy(images).reshape(-1, *_IMAGE), torch.from_numpy(targets))


def _records(path: Path, length: int) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    try:
        size = path.stat().st_size
        if not size or size % length:
            raise DataError(
                str(path),
                f"a positive multiple of {length} bytes, a record each",
                size,
                "downloading it again",
            )
        return np.memmap(path, np.uint8, "r", shape=(size // length, length))
    except OSError as problem:
        raise DataError(
            str(path), "a readable file", problem, "checking its permissions"
        ) from problem
