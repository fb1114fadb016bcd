"""From groups of factors to flat models: binary pairs become an edge list.

A finite table over two binary variables is ``t(s, s') = c + A s + B s' + k s s'`` with ``c = t00``,
``A = t10 - t00``, ``B = t01 - t00`` and ``k = t11 + t00 - t01 - t10``: pairwise binary graphs need
no tables. The constants c are added up separately.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import TableGroup, Tables
from bayesfed.inference.sum_product.graphs.recognise import colours
from bayesfed.models.random_fields.ising import Ising


def lower(
    names: Sequence[Hashable], cards: Tensor, groups: Sequence[TableGroup]
) -> tuple[Ising | Tables, float]:
    """Return the flat model of factors, and the log constant that it leaves out.

    Parameters
    ----------
    names
        Names of the variables, for errors.
    cards
        ``(n,)``, number of states of each variable.
    groups
        The factors.

    Raises
    ------
    ArgumentError
        If the unary factors of a variable allow no state.
    """
    if (cards == 2).all() and all(
        group.tables.ndim <= 3 and torch.isfinite(group.tables).all() for group in groups
    ):
        return _lower_pairs(len(cards), groups)
    most = int(cards.max())
    unary = torch.zeros(len(cards), most, dtype=torch.float64).masked_fill_(
        torch.arange(most) >= cards[:, None], -torch.inf
    )
    for group in groups:
        if group.scope.shape[1] == 1:
            unary[:, : group.tables.shape[1]].index_add_(
                0, group.scope[:, 0], group.tables[group.which]
            )
    impossible = (unary == -torch.inf).all(1)
    if impossible.any():
        node = names[int(impossible.nonzero()[0])]
        raise ArgumentError(
            f"variable {node!r}",
            "a state that its unary factors allow",
            "none",
            "unary tables that do not contradict",
        )
    return Tables(cards, unary, tuple(group for group in groups if group.scope.shape[1] > 1)), 0.0


def _lower_pairs(count: int, groups: Sequence[TableGroup]) -> tuple[Ising, float]:
    field, constant = np.zeros(count), 0.0
    pairs = [(np.empty((0, 2), dtype=np.int64), np.empty(0))]
    # In numpy: on busy machines, torch's threads wait for each other at each of these small steps.
    for group in groups:
        table, which, scope = group.tables.numpy(), group.which.numpy(), group.scope.numpy()
        origin = table[:, 0] if scope.shape[1] == 1 else table[:, 0, 0]
        alone = [table[:, 1]] if scope.shape[1] == 1 else [table[:, 1, 0], table[:, 0, 1]]
        for ends, one in zip(scope.T, alone, strict=True):
            field += np.bincount(ends, (one - origin)[which], count)
        constant += float(origin[which].sum())
        if scope.shape[1] == 2:
            pairs.append(
                (scope, (table[:, 1, 1] + origin - table[:, 0, 1] - table[:, 1, 0])[which])
            )
    scope, coupling = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return edge_list(field, scope, coupling), constant


def edge_list(
    field: NDArray[np.float64], ends: NDArray[np.int64], coupling: NDArray[np.float64]
) -> Ising:
    """Return the pairwise model of an edge list: edges sorted, the smaller end first, parallel
    edges added up.

    Parameters
    ----------
    field
        ``(n,)``, log-odds.
    ends
        ``(E, 2)``, variables.
    coupling
        ``(E,)``, in nats.
    """
    count = len(field)
    key, place = np.unique(
        ends.min(1, initial=count) * count + ends.max(1, initial=0), return_inverse=True
    )
    edges = torch.from_numpy(np.stack(np.divmod(key, count)))
    total = torch.from_numpy(np.bincount(place, coupling, len(key)).astype(np.float64))
    return Ising(torch.from_numpy(field), edges, total, (count,), colours(count, edges))
