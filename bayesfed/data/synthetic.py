"""Small data sets for examples and tests, real digits and drawn blobs; and sizes of clients, where
most have few rows and some have many.
"""

from __future__ import annotations

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, MissingExtraError
from bayesfed.errors.checks import Role, checked, whole
from bayesfed.keys import Key


@checked()
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
    inputs = torch.as_tensor(raw[:, :-1]).reshape(-1, 8, 8).float() / 16
    targets = torch.as_tensor(raw[:, -1]).long()
    if not 0 < test < len(inputs):
        raise ArgumentError("digits", f"test in 1..{len(inputs) - 1}", test, "test=360")
    order = torch.randperm(len(inputs), generator=(key or Key(0, "digits")).generator())
    whole = Dataset(inputs[order], targets[order])
    return whole[slice(test, None)], whole[slice(0, test)]


@checked()
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


@checked(
    clients=whole(1, "1_000_000"),
    exponent=Role(lambda exponent: 1 < exponent < math.inf, "a number above 1", "2.0"),
    least=whole(0, "1"),
    most=whole(1, "1000"),
)
def power_law(
    clients: int, key: Key, *, exponent: float = 2.0, least: int = 1, most: int = 1000
) -> Tensor:
    """Draw numbers of rows from a power law between two bounds: n rows have a probability density
    in proportion to ``n ** -exponent``.

    Parameters
    ----------
    clients
        Number of clients K.
    key
        Key of the draws. The size of a client does not depend on how many come after it.
    exponent
        Exponent of the density, above 1. The larger it is, the rarer are large clients.
    least, most
        Smallest and largest number of rows.

    Returns
    -------
    Tensor
        Numbers of rows ``(K,)``, whole numbers.

    Raises
    ------
    ArgumentError
        If the exponent is not above 1 and finite, or `least` is not from 1 to `most`.

    References
    ----------
    Clauset, Shalizi and Newman, "Power-law distributions in empirical data", SIAM Review 2009,
    appendix D: the inverse of the distribution function.
    """
    if not 1 <= least <= most:
        raise ArgumentError("power_law", "1 <= least <= most", (least, most), "least=1, most=1000")
    power = 1.0 - exponent
    # The law of a continuous size from least to most + 1, rounded down, so that both bounds can be
    # drawn.
    low, high = float(least) ** power, float(most + 1) ** power
    sizes = (low - key.numpy().random(clients) * (low - high)) ** (1.0 / power)
    return torch.from_numpy(np.clip(np.floor(sizes).astype(np.int64), least, most))
