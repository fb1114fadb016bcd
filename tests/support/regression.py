"""Regression data drawn with a known, sparse truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.keys import Key


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
