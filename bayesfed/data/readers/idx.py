"""The IDX file format of MNIST and its relatives, plain or gzipped.

A file holds two zero bytes, a type code, the number of dimensions, each dimension as a big-endian
32-bit integer, and then the values. Source: the format note on the MNIST page of LeCun, Cortes and
Burges.
"""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.errors import DataError, LocalText
from bayesfed.errors.checks import checked

_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")


@checked()
def read_idx(path: str | Path) -> Tensor:
    """Read one IDX file as a tensor of the shape and type in its header.

    Raises
    ------
    DataError
        If the file is missing, is not IDX, or does not have the length that its header implies.
    """
    path = Path(path)
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as problem:
        raise DataError(
            LocalText(path), "a readable IDX file", problem, "checking the path"
        ) from problem
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] not in _TYPES or len(raw) < 4 + 4 * raw[3]:
        raise DataError(LocalText(path), "an IDX header", raw[:4], "the original file")
    shape = tuple(int.from_bytes(raw[4 + 4 * axis : 8 + 4 * axis], "big") for axis in range(raw[3]))
    dtype = np.dtype(_TYPES[raw[2]])
    body = raw[4 + 4 * raw[3] :]
    if len(body) != math.prod(shape) * dtype.itemsize:
        raise DataError(
            LocalText(path),
            f"{math.prod(shape) * dtype.itemsize} bytes for shape {shape}",
            len(body),
            "downloading it again",
        )
    return torch.from_numpy(
        np.frombuffer(body, dtype).astype(dtype.newbyteorder("=")).reshape(shape)
    )


@checked()
def fashion_mnist(folder: str | Path = FASHION_MNIST) -> tuple[Dataset, Dataset]:
    """Read Fashion-MNIST as (train, test): inputs ``(N, 28, 28)`` in [0, 1], ten classes.

    Any data set in the four files of MNIST can be read (MNIST, KMNIST, ...).

    Parameters
    ----------
    folder
        The folder with the four files.

    Raises
    ------
    DataError
        If the folder does not hold the four files; the message names the command that installs
        them.
    """
    folder = Path(folder)
    sets = []
    for part in ("train", "t10k"):
        images, labels = (
            _find(folder, f"{part}-{kind}") for kind in ("images-idx3-ubyte", "labels-idx1-ubyte")
        )
        sets.append(Dataset(read_idx(images).float() / 255, read_idx(labels).long()))
    return sets[0], sets[1]


def _find(folder: Path, stem: str) -> Path:
    for name in (stem, f"{stem}.gz"):
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        LocalText(folder),
        f"{stem} or {stem}.gz",
        "no such file",
        "`apt-get install dataset-fashion-mnist`, or the folder that holds the four files",
    )
