"""Small data sets for examples and tests: real digits, and random data with a known truth."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, MissingExtraError
from bayesfed.keys import Key


def digits(key: Key | None = None, *, test: int = 360) -> tuple[Dataset, Dataset]:
    """Load scikit-learn's handwritten digits as (train, test): 1,797 real images ``(N, 8, 8)`` in
    [0, 1].

    Parameters
    ----------
    key
        Key of the shuffle before the split. Default: ``Key(0, "digits")``.
    test
        Number of test images, out of 1,797.

    Raises
    ------
    MissingExtraError
        If scikit-learn is not installed.
    ArgumentError
        If the training set or the test set would be empty.
    """
    # Its file is read without importing the library: that takes seconds, since pandas and
    # scipy.stats come with it.
    library = find_spec("sklearn")
    if library is None or not library.submodule_search_locations:
        raise MissingExtraError("scikit-learn", "examples")
    raw = np.loadtxt(
        Path(library.submodule_search_locations[0], "datasets", "data", "digits.csv.gz"),
        delimiter=",",
    )
    inputs, targets = (
        torch.as_tensor(raw[:, :-1]).reshape(-1, 8, 8).float() / 16,
        torch.as_tensor(raw[:, -1]).long(),
    )
    if not 0 < test < len(inputs):
        raise ArgumentError("digits", f"test in 1..{len(inputs) - 1}", test, "test=360")
    order = torch.randperm(len(inputs), generator=(key or Key(0, "digits")).generator())
    whole = Dataset(inputs[order], targets[order])
    return whole[slice(test, None)], whole[slice(0, test)]


def blobs(
    key: Key, *, samples: int = 400, features: int = 8, classes: int = 3, spread: float = 0.5
) -> Dataset:
    """Draw Gaussian blobs: inputs ``(samples, features)`` and class labels ``(samples,)``.

    Parameters
    ----------
    key
        Key of the draw.
    samples
        Number of rows; classes differ in size by at most one.
    features
        Number of features.
    classes
        Number of classes. Their centres are standard normal.
    spread
        Standard deviation around a centre.
    """
    generator = key.generator()
    centres = torch.randn(classes, features, generator=generator)
    targets = torch.arange(samples) % classes
    inputs = centres[targets] + spread * torch.randn(samples, features, generator=generator)
    return Dataset(inputs, targets)


@dataclass(frozen=True)
class SparseRegression:
    """A regression data set with the truth behind it.

    Parameters
    ----------
    data
        Inputs ``(samples, features)`` and targets ``(samples, outputs)``.
    weights
        True weights ``(outputs, features)``.
    support
        True support, booleans ``(outputs, features)``.
    noise_sd
        Standard deviation of the noise.
    """

    data: Dataset
    weights: Tensor
    support: Tensor
    noise_sd: float


def sparse_regression(
    key: Key,
    *,
    samples: int = 400,
    outputs: int = 6,
    features: int = 20,
    block: int = 4,
    noise_sd: float = 0.1,
) -> SparseRegression:
    """Draw ``y = W x + noise`` with a clustered support: W is zero outside one rectangle of `block`
    rows and columns.

    Parameters
    ----------
    key
        Key of the draw.
    samples, outputs, features
        Numbers of rows, of outputs and of features.
    block
        Side of the rectangle.
    noise_sd
        Standard deviation of the noise.

    Raises
    ------
    ArgumentError
        If the rectangle does not fit the weights.
    """
    if not 0 < block <= min(outputs, features):
        raise ArgumentError(
            "sparse_regression", f"block in 1..{min(outputs, features)}", block, "a smaller block"
        )
    generator = key.generator()
    top, left = (
        int(torch.randint(0, n - block + 1, (), generator=generator)) for n in (outputs, features)
    )
    support = torch.zeros(outputs, features, dtype=torch.bool)
    support[top : top + block, left : left + block] = True
    weights = torch.randn(outputs, features, generator=generator) * support
    inputs = torch.randn(samples, features, generator=generator)
    targets = inputs @ weights.T + noise_sd * torch.randn(samples, outputs, generator=generator)
    return SparseRegression(Dataset(inputs, targets), weights, support, noise_sd)
