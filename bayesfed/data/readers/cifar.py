"""The binary versions of CIFAR-10 and CIFAR-100: records of fixed size, with label bytes and then 3
x 32 x 32 pixels.

Source: Krizhevsky, "Learning multiple layers of features from tiny images" (2009), and the format
note on the page of the data sets. A record of CIFAR-10 has one label byte; CIFAR-100 has two, the
coarse class (of 20) and the fine class (of 100).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from bayesfed.data.dataset import Dataset
from bayesfed.errors import DataError, LocalText
from bayesfed.errors.checks import checked

Records = np.ndarray[tuple[int, int], np.dtype[np.uint8]]
_IMAGE = (3, 32, 32)
_PIXELS = 3 * 32 * 32
_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"


@checked()
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
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    return _read(folder, "cifar-10-batches-bin", "cifar-10-binary.tar.gz", names, 1, 10)


@checked()
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
    names = ["train.bin", "test.bin"]
    return _read(folder, "cifar-100-binary", "cifar-100-binary.tar.gz", names, 2, 100)


def _read(
    folder: str | Path, unpacked: str, archive: str, names: list[str], labels: int, classes: int
) -> tuple[Dataset, Dataset]:
    """Read files of records with so many label bytes, of which the last one counts; the last file
    is the test set.
    """
    # The place with more of the files, so that the message names only what is missing there.
    home = max(
        (Path(folder), Path(folder, unpacked)),
        key=lambda place: sum((place / name).is_file() for name in names),
    )
    if missing := [name for name in names if not (home / name).is_file()]:
        raise DataError(
            LocalText(home),
            f"{', '.join(names)}, here or in {unpacked}"
            if len(missing) == len(names)
            else ", ".join(names),
            f"no {', '.join(missing)}",
            f"the binary version, {archive}, from the data set's own page, {_PAGE}",
        )
    read = [_records(home / name, labels, classes) for name in names]
    return _joined(read[:-1], labels), _joined(read[-1:], labels)


def _joined(files: list[Records], labels: int) -> Dataset:
    records = torch.from_numpy(np.concatenate(files))
    images = records[:, labels:].float().div_(255).reshape(-1, *_IMAGE)
    return Dataset(images, records[:, labels - 1].long())


def _records(path: Path, labels: int, classes: int) -> Records:
    length = labels + _PIXELS
    try:
        size = path.stat().st_size
        if not size or size % length:
            raise DataError(
                LocalText(path),
                f"a positive multiple of {length} bytes, a record each",
                size,
                "downloading it again",
            )
        records = np.fromfile(path, np.uint8).reshape(-1, length)
    except OSError as problem:
        raise DataError(
            LocalText(path), "a readable file", problem, "checking its permissions"
        ) from problem
    if (highest := int(records[:, labels - 1].max())) >= classes:
        raise DataError(
            LocalText(path), f"labels from 0 to {classes - 1}", highest, "downloading it again"
        )
    return records
