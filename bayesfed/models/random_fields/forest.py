"""Forests, that is pairwise models without cycles: the order of exact sums from leaves to roots and
back, and exact draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from bayesfed.models.random_fields.ising import Ising, breadth_first, components
from bayesfed.models.random_fields.kept import kept


@dataclass(frozen=True)
class Forest:
    """The rooted form of a pairwise model without cycles.

    Parameters
    ----------
    order
        ``(n,)`` variables, each parent before its children.
    parent
        ``(n,)`` parent of each variable, -1 for roots.
    edge
        ``(n,)`` index of the edge to the parent, -1 for roots.
    levels
        Variables by depth, roots first.
    """

    order: Tensor
    parent: Tensor
    edge: Tensor
    levels: tuple[Tensor, ...]

    @staticmethod
    @kept
    def of(model: Ising) -> Forest:
        """Root every component of a model that `is_forest` at its first variable; computed once for
        each model.
        """
        count, ends = model.field.numel(), model.edges.cpu().numpy()
        left, right = ends
        roots = np.unique(components(count, left, right)[1], return_index=True)[1]
        order, parent, depth = breadth_first(count, ends, roots)
        edge = np.full(count, -1, dtype=np.int64)
        down = parent[right] == left
        edge[np.where(down, right, left)] = np.arange(len(left))
        by_depth = order[np.argsort(depth[order], kind="stable")]
        levels = np.split(by_depth, np.cumsum(np.bincount(depth))[:-1])

        def tensor(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(values.astype(np.int64)).to(model.edges.device)

        return Forest(tensor(order), tensor(parent), tensor(edge), tuple(map(tensor, levels)))


def sample(model: Ising, count: int) -> Tensor:
    """Draw states ``(count, n)`` of a model without cycles: sum towards the roots, then draw from
    the roots down.

    Uses torch's global generator.
    """
    forest, log_odds = Forest.of(model), model.field.double().clone()
    coupling = (
        model.coupling.double()[forest.edge.clamp(min=0)] if model.coupling.numel() else log_odds
    )
    for level in reversed(forest.levels[1:]):
        below = log_odds[level]
        log_odds.index_add_(
            0, forest.parent[level], softplus(below + coupling[level]) - softplus(below)
        )
    drawn = torch.bernoulli(torch.sigmoid(log_odds).expand(count, -1))
    for level in forest.levels[1:]:
        pull = log_odds[level] + coupling[level] * drawn[:, forest.parent[level]]
        drawn[:, level] = torch.bernoulli(torch.sigmoid(pull))
    return drawn
