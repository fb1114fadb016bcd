"""Whole clusters of weights: all entries of a cluster share one binary variable.

The log-odds of a cluster are the sum of its entries' evidence and its prior's, which is exact: no
message passes between entries. A model of the clusters themselves says how these depend on each
other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

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
    """A binary model whose variables are clusters of entries.

    Parameters
    ----------
    model
        Model of the clusters.
    index
        Which cluster each entry belongs to: integers, of the shape of the evidence.

    Raises
    ------
    ArgumentError
        If the index does not name every variable of the model, and nothing else.
    """

    model: Grid | Ising
    index: Tensor

    def __post_init__(self) -> None:
        found = self.index.unique().tolist()
        if self.index.is_floating_point() or found != list(range(self.count)):
            expected = f"whole numbers, all of 0 to {self.count - 1}"
            hint = f"columns: torch.arange({self.count}).repeat(M, 1)"
            raise ArgumentError("Clusters.index", expected, found[-9:], hint)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the evidence."""
        return tuple(self.index.shape)

    @cached_property
    def whole_rows(self) -> bool:
        """Whether every cluster is made of rows of a matrix."""
        return bool((self.index == self.index[..., :1]).all())

    @property
    def count(self) -> int:
        """Number of clusters."""
        return torch.Size(self.model.shape).numel()

    def sums(self, entries: Tensor) -> Tensor:
        """Return the sum of the entries of each cluster, from ``(..., *shape)`` to the shape of the
        clusters' model; added up in float64.
        """
        flat = entries.flatten(entries.ndim - self.index.ndim).double()
        index = self.index.flatten().to(flat.device)
        sums = flat.new_zeros(*flat.shape[:-1], self.count).index_add(-1, index, flat)
        return sums.reshape(*flat.shape[:-1], *self.model.shape).to(entries.dtype)

    def spread(self, values: Tensor) -> Tensor:
        """Return each entry's value, that of its cluster, from the shape of the clusters' model."""
        return values.flatten(values.ndim - len(self.model.shape))[..., self.index]

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


Lowered = Grid | Ising | Clusters
"""What a support prior is lowered to."""
