"""Small data sets for examples and tests: real digits, and drawn blobs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

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
