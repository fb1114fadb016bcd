"""Robust rules for whole updates: `Krum` selects updates that lie close together, `NormGate`
shortens long ones.

`bayesfed.federated.aggregation.rules` has a table of what each rule tolerates.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesfed.errors import UpdateError
from bayesfed.errors.checks import checked_class, number, whole
from bayesfed.errors.plurals import plural
from bayesfed.federated.aggregation.changes import change, clipped, norm
from bayesfed.federated.aggregation.rules import added
from bayesfed.federated.core import Info, Update
from bayesfed.trees import Tree, check_shapes, shapes


@checked_class({}, byzantine=whole(0, "Krum(4, 8)"), keep=whole(1, "Krum(4, 8)"))
@dataclass(frozen=True)
class Krum:
    """Select the updates with the smallest sum of squared distances to their ``n - byzantine - 2``
    nearest others.

    Parameters
    ----------
    byzantine
        f, the largest number of hostile clients in a round.
    keep
        m, the number of updates that are averaged: 1 is Krum, more is multi-Krum. Among equal
        scores the first client by name is taken.

    Raises
    ------
    ArgumentError
        If `byzantine` is negative or `keep` below 1.

    References
    ----------
    Blanchard et al., "Machine learning with adversaries: Byzantine tolerant gradient descent"
    (2017), section 4.
    """

    byzantine: int
    keep: int = 1

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return the sum of the selected updates. The figures say who was left out.

        Raises
        ------
        UpdateError
            If there are too few clients, or they cover different entries.
        """
        least = max(2 * self.byzantine + 3, self.byzantine + self.keep)
        if len(updates) < least:
            raise UpdateError(
                "Krum",
                f"at least {plural(least, 'client')}",
                len(updates),
                "fewer byzantine or kept clients, or more a round",
            )
        scores = dict(zip(updates, self.scores(_distances(updates)).tolist(), strict=True))
        kept = set(sorted(scores, key=lambda client: (scores[client], client))[: self.keep])
        return added(_of(updates, kept)), _left_out(updates, kept)

    def scores(self, distances: Tensor) -> Tensor:
        """Return each client's score, ``(n,)``, from squared distances ``(n, n)``."""
        # The smallest entry of a row is the client's distance to itself.
        nearest: Tensor = distances.sort(1).values[:, 1 : len(distances) - self.byzantine - 1]
        return nearest.sum(1)


@checked_class({}, factor=number("[1, inf]", "NormGate(2.0)"))
@dataclass(frozen=True)
class NormGate:
    """Shorten changes that are longer than `factor` times the median length of the round, or leave
    them out.

    Parameters
    ----------
    factor
        Factor on the median length, at least 1. Infinity gives the mean, bit for bit.
    refuse
        Whether to leave longer changes out instead of shortening them.

    Raises
    ------
    ArgumentError
        If the factor is below 1.
    """

    factor: float = 2.0
    refuse: bool = False

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return the sum. The figures are ``norm_bound`` and which clients exceeded it.

        Raises
        ------
        UpdateError
            If clients cover different entries, or send values of other leaves than the state has.
        """
        lengths = {client: norm(change(update, state)) for client, update in updates.items()}
        median = statistics.median(lengths.values())
        longest = self.factor * median if math.isfinite(self.factor) else math.inf
        within = {client for client, length in lengths.items() if length <= longest}
        word = "left_out" if self.refuse else "shortened"
        figures = {"norm_bound": longest, **_left_out(updates, within, word)}
        if self.refuse:
            return added(_of(updates, within)), figures
        shorter = {client: clipped(update, state, longest) for client, update in updates.items()}
        return added(shorter), figures


def _distances(updates: Mapping[str, Update]) -> Tensor:
    """Return squared distances between updates, ``(n, n)``, in double precision. They are computed
    from differences, without cancellation.
    """
    trees = [change(replace(update, kind="delta"), {}) for update in updates.values()]
    distances = torch.zeros(len(trees), len(trees), dtype=torch.float64)
    for tree in trees:
        check_shapes(tree, shapes(trees[0]), where="update")
    for name in trees[0]:
        values = torch.stack([tree[name].flatten() for tree in trees])
        squares = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist").square()
        distances += squares
    return distances


def _of(updates: Mapping[str, Update], clients: set[str]) -> dict[str, Update]:
    return {client: update for client, update in updates.items() if client in clients}


def _left_out(updates: Mapping[str, Update], within: set[str], word: str = "left_out") -> Info:
    return {
        word: float(len(updates) - len(within)),
        **{f"{client}.{word}": 1.0 for client in updates if client not in within},
    }
