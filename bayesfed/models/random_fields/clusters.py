"""Whole clusters of weights: all entries of a cluster share one binary variable.

The log-odds of a cluster are the sum of its entries' evidence and its prior's, which is exact: no
message passes between entries. A model of the clusters themselves says how these depend on each
other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked_class
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising, check_arrangement


# Compared by identity, because results computed for a model are cached with it.
@checked_class()
@dataclass(frozen=True, eq=False)
class Clusters:
    """A binary model whose variables are blocks of the entries of a matrix.

    Parameters
    ----------
    model
        Model of the clusters, row by row of the blocks.
    unit
        Sides of a block.
    shape
        Shape ``(M, N)`` of the matrix.

    Raises
    ------
    ArgumentError
        If the sides do not divide the matrix, or the model has not one variable for each block.
    """

    model: Grid | Ising
    unit: tuple[int, int]
    shape: tuple[int, int]

    def __post_init__(self) -> None:
        sides, found = zip(self.shape, self.unit, strict=True), math.prod(self.model.shape)
        if min(self.unit) < 1 or any(side % own for side, own in sides) or found != self.count:
            expected = "blocks that divide the matrix, and a variable for each"
            hint = f"Clusters(model, (M, 1), (M, {found})), a cluster a column"
            raise ArgumentError("Clusters", expected, (found, self.unit, self.shape), hint)

    @property
    def count(self) -> int:
        """Number of clusters."""
        return math.prod(self.shape) // math.prod(self.unit)

    @property
    def whole_rows(self) -> bool:
        """Whether every cluster is made of whole rows."""
        return self.unit[1] == self.shape[1]

    def sums(self, entries: Tensor) -> Tensor:
        """Return the sum of the entries of each cluster, from ``(..., M, N)`` to the shape of the
        clusters' model; added up in float64.
        """
        (rows, columns), (high, wide) = self.shape, self.unit
        batch = entries.shape[:-2]
        tiled = entries.double().reshape(*batch, rows // high, high, columns // wide, wide)
        return tiled.sum((-3, -1)).reshape(*batch, *self.model.shape).to(entries.dtype)

    def spread(self, values: Tensor) -> Tensor:
        """Return each entry's value, that of its cluster, from the shape of the clusters' model."""
        batch = values.shape[: values.ndim - len(self.model.shape)]
        return spread(values.reshape(*batch, -1), self.unit, self.shape)

    def energy(self, support: Tensor) -> Tensor:
        """Return the unnormalised log probability ``(...)`` of supports ``(..., *shape)``; -inf
        where a cluster is neither on nor off.
        """
        check_arrangement(support, self.shape)
        on = self.sums(support.double())
        off = self.sums(1 - support.double())
        broken = ((on > 0) & (off > 0)).flatten(on.ndim - len(self.model.shape)).any(-1)
        energy = self.model.energy((on > 0).to(torch.get_default_dtype()))
        return energy.masked_fill(broken, -torch.inf)

    def strength(self) -> float:
        """Return the largest coupling of clusters in spin units, |J| = |coupling| / 4."""
        return self.model.strength()

    def attractive(self) -> bool:
        """Return whether no coupling of clusters is negative."""
        return self.model.attractive()


def spread(values: Tensor, unit: tuple[int, int], shape: tuple[int, int]) -> Tensor:
    """Return the values ``(..., n)`` of the blocks of a matrix, row by row, as those of its entries
    ``(..., M, N)``.
    """
    tiled = values.reshape(*values.shape[:-1], shape[0] // unit[0], shape[1] // unit[1])
    return tiled.repeat_interleave(unit[0], -2).repeat_interleave(unit[1], -1)


Lowered = Grid | Ising | Clusters
"""What a support prior is lowered to."""
