"""`Update`, the only thing that is ever aggregated, and the protocol of what adds them
(`bayesfed.federated.core.sums.Sum` by default).

Averages, averages over the clients that cover an entry, products of Gaussians and tangent-space
means are all a sum followed by a server step. Memory therefore holds one model instead of K, the
channel can do the adding, and secure aggregation stays possible. Every update has a `kind`; adding
updates of different kinds raises an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from bayesfed.errors import UpdateError
from bayesfed.trees import Tree, zip_map

Kind = Literal["delta", "value", "moments", "natural", "gradient", "tangent", "factors"]
"""What the numbers of a payload mean, and so which servers may add them."""
Weight = float | Tree


@dataclass(frozen=True)
class Update:
    """A weighted sum of clients' payloads.

    Parameters
    ----------
    total
        ``sum_k weight_k x_k``, leaf by leaf.
    weight
        ``sum_k weight_k``: a number, or a tree of weights by entry when clients cover different
        entries.
    kind
        What the numbers mean. Only updates of equal kind can be added.
    """

    total: Tree
    weight: Weight
    kind: Kind

    @property
    def by_entry(self) -> bool:
        """Whether every entry has a weight of its own."""
        return isinstance(self.weight, dict)

    @property
    def weighs(self) -> bool:
        """Whether any weight is above zero."""
        if isinstance(self.weight, dict):
            return any((leaf > 0).any() for leaf in self.weight.values())
        return self.weight > 0

    def number(self) -> float:
        """Return the weight that all entries have in common.

        Raises
        ------
        UpdateError
            If every entry has a weight of its own.
        """
        if isinstance(self.weight, dict):
            raise UpdateError(
                "update",
                "a number as weight",
                "a weight for each entry",
                "a view that covers everything",
            )
        return self.weight

    def weight_of(self, name: str) -> Tensor:
        """Return the weight of every entry of the leaf `name`, in the shape of the leaf."""
        return (
            self.weight[name]
            if isinstance(self.weight, dict)
            else torch.full_like(self.total[name], self.weight)
        )

    def mean(self) -> Tree:
        """Return ``total / weight``. Entries that no client covers are zero.

        Raises
        ------
        UpdateError
            If the weight is a number and not above zero: no client with data took part.
        """
        if isinstance(self.weight, dict):
            return zip_map(_covered, self.total, self.weight)
        if not self.weight > 0:
            raise UpdateError(
                "averaging updates", "a positive total weight", self.weight, "a client with data"
            )
        return {name: leaf / self.weight for name, leaf in self.total.items()}


def _covered(total: Tensor, weight: Tensor) -> Tensor:
    return torch.where(
        weight > 0, total / weight.clamp_min(torch.finfo(total.dtype).tiny), torch.zeros_like(total)
    )


class Reducer(Protocol):
    """What arriving updates are added to, and what the server step reads."""

    def add(self, client: str, update: Update) -> None:
        """Take one client's update. A refused one raises an error and changes nothing."""
