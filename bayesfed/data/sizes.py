"""Sizes of clients: how many rows each has, where most have few and some have many."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import KEY, a, checked, whole
from bayesfed.keys import Key


@checked(
    clients=whole(1, "1_000_000"),
    key=KEY,
    exponent=a((int, float), "a number", "2.0"),
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
    if not 1 < exponent < math.inf:
        raise ArgumentError("power_law, exponent", "a number above 1", exponent, "2.0")
    if not 1 <= least <= most:
        raise ArgumentError("power_law", "1 <= least <= most", (least, most), "least=1, most=1000")
    power = 1.0 - exponent
    # The law of a continuous size from least to most + 1, rounded down, so that both bounds can be
    # drawn.
    low, high = float(least) ** power, float(most + 1) ** power
    sizes = (low - key.numpy().random(clients) * (low - high)) ** (1.0 / power)
    return torch.from_numpy(np.clip(np.floor(sizes).astype(np.int64), least, most))
