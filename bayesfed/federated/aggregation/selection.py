"""Rules of whole updates in place of the mean: `Krum` takes those near to each other, `NormGate` shortens long ones; see `rules`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, UpdateError, complain
from bayesfed.federated.aggregation.changes import change, clipped, norm
from bayesfed.federated.aggregation.robust import added
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Update
from bayesfed.trees import Tree, check_shapes, shapes


@dataclass(frozen=True)
class Krum:
    """Take the updates that lie nearest to their ``n - byzantine - 2`` nearest others, by the sum of squared distances.

    Parameters
    ----------
    byzantine
        f, the largest number of hostile clients of a round.
    keep
        m, of updates that are averaged: 1 is Krum, more is multi-Krum. Equal scores: the client whose name comes first.

    Raises
    ------
    ArgumentError
        If `byzantine` is negative or `keep` below 1.
    """

    byzantine: int
    keep: int = 1

    def __post_init__(self) -> None:
        if self.byzantine < 0 or self.keep < 1:
            raise ArgumentError(complain("Krum", expected="byzantine >= 0, keep >= 1", actual=(self.byzantine, self.keep), hint="Krum(4, 8)"))

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return the sum of those kept; figures say who was left out.

        Raises
        ------
        UpdateError
            If there are too few clients, or they cover unlike entries.
        """
        least = max(2 * self.byzantine + 3, self.byzantine + self.keep)
        if len(updates) < least:
            hint = "fewer byzantine or kept clients, or more a round"
            raise UpdateError(complain("Krum", expected=f"at least {least} clients", actual=len(updates), hint=hint))
        scores = dict(zip(updates, self.scores(_distances(updates)).tolist(), strict=True))
        kept = set(sorted(scores, key=lambda client: (scores[client], client))[: self.keep])
        return added({client: update for client, update in updates.items() if client in kept}), _left_out(updates, kept)

    def scores(self, distances: Tensor) -> Tensor:
        """Return each client's score, ``(n,)``, from squared distances ``(n, n)``."""
        # The smallest of a row is a client's distance to itself.
        nearest: Tensor = distances.sort(1).values[:, 1 : len(distances) - self.byzantine - 1]
        return nearest.sum(1)


@dataclass(frozen=True)
class NormGate:
    """Shorten changes that are longer than `factor` times the median length of the round, or leave them out.

    Parameters
    ----------
    factor
        At least 1; infinity is the mean, to the bit.
    refuse
        Leave longer ones out in place of shortening them.

    Raises
    ------
    ArgumentError
        If the factor is below 1.
    """

    factor: float = 2.0
    refuse: bool = False

    def __post_init__(self) -> None:
        if not self.factor >= 1:
            raise ArgumentError(complain("NormGate", expected="a factor >= 1", actual=self.factor, hint="NormGate(2.0)"))

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return the sum; figures: ``norm_bound``, and who was beyond it.

        Raises
        ------
        UpdateError
            If clients cover unlike entries, or values are not of the state's leaves.
        """
        lengths = {client: norm(change(update, state)) for client, update in updates.items()}
        longest = self.factor * statistics.median(lengths.values()) if math.isfinite(self.factor) else math.inf
        within = {client for client, length in lengths.items() if length <= longest}
        figures = {"norm_bound": longest, **_left_out(updates, within, "left_out" if self.refuse else "shortened")}
        if self.refuse:
            return added({client: update for client, update in updates.items() if client in within}), figures
        return added({client: clipped(update, state, longest) for client, update in updates.items()}), figures


def _distances(updates: Mapping[str, Update]) -> Tensor:
    """Return squared distances between updates, ``(n, n)`` in double precision, by differences: nothing cancels."""
    result: Tensor | None = None
    for values in _stacked(updates):
        found = torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist").square()
        result = found if result is None else result + found
    if result is None:
        raise UpdateError(complain("Krum", expected="updates of at least one leaf", actual="none", hint="a model with parameters"))
    return result


def _stacked(updates: Mapping[str, Update]) -> Iterator[Tensor]:
    values = {client: change(Update(update.total, update.weight, "delta"), {}) for client, update in updates.items()}
    first = next(iter(values.values()))
    for tree in values.values():
        check_shapes(tree, shapes(first), where="update")
    for name in first:
        yield torch.stack([tree[name].flatten() for tree in values.values()])


def _left_out(updates: Mapping[str, Update], within: set[str], word: str = "left_out") -> Info:
    return {word: float(len(updates) - len(within)), **{f"{client}.{word}": 1.0 for client in updates if client not in within}}
