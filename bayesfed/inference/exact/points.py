"""Quasi-random points, the same at every site: Sobol points, scrambled by a fixed seed, half of
them mirrored.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from scipy.stats import chi2
from torch import Tensor
from torch.quasirandom import SobolEngine

# Points of the Gaussian's expectations, in so many replicates; of the first importance round; of
# later ones.
DRAWS, REPLICATES, POINTS, MORE = 64, 4, 4096, 1536


def number(size: int) -> int:
    """Return how many points a first importance round in so many dimensions has."""
    return min(POINTS, max(512, 4_000_000 // size // 2 * 2))


def uniform(count: int, size: int, seed: int) -> Tensor:
    """Return scrambled Sobol points in the open unit cube, ``(count, size)``, in 64 bits."""
    drawn = SobolEngine(size, scramble=True, seed=seed).draw(count, dtype=torch.float64)
    return drawn.clamp(1e-9, 1 - 1e-9)


@lru_cache(maxsize=8)
def normal(count: int, size: int, seed: int) -> Tensor:
    """Return points of the standard normal, ``(count, size)``, each followed by its mirror."""
    half = torch.special.ndtri(uniform(count // 2, size, seed))
    return torch.stack([half, -half], 1).reshape(count, size)


@lru_cache(maxsize=8)
def replicates(size: int) -> Tensor:
    """Return the points of the Gaussian's expectations, ``(DRAWS, size)``, replicate by
    replicate.
    """
    each = DRAWS // REPLICATES
    return torch.cat([normal(each, size, 7 + number) for number in range(REPLICATES)])


def freedom(size: int) -> float:
    """Return the degrees of freedom of proposals in so many dimensions: 8, more in many."""
    return max(8.0, 0.6 * size)


@lru_cache(maxsize=8)
def student(count: int, size: int, seed: int) -> Tensor:
    """Return points of the standard Student-t with `freedom`, ``(count, size)``, each followed by
    its mirror.
    """
    half = uniform(count // 2, size + 1, seed)
    nu = freedom(size)
    squares = torch.from_numpy(chi2.ppf(half[:, 0].numpy(), nu)) / nu
    scaled = torch.special.ndtri(half[:, 1:]) / squares.sqrt()[:, None]
    return torch.stack([scaled, -scaled], 1).reshape(count, size)
