"""`Rule`: what takes the place of a sum so that a few hostile clients cannot move it far; and the
rules by entry, `Median` and `TrimmedMean`. Rules for whole updates are in
`bayesfed.federated.aggregation.selection`.

===============  ===================================================================================
rule             hostile clients that it tolerates
===============  ===================================================================================
`Median`         fewer than half of the clients that cover an entry (Yin et al., 2018, definition 1)
`TrimmedMean`    at most `share` of the clients that cover an entry (Yin et al., 2018, definition 2)
`Krum`           `byzantine` of n clients, ``2 byzantine + 2 < n`` (Blanchard et al., 2017, section
                 4)
`NormGate`       those that send long changes; a change of flipped sign is no longer than before and
                 passes
===============  ===================================================================================

The rules bound the influence of hostile clients but do not remove it. Hostile values within the
spread of the honest ones shift every result, and shift it more if honest clients differ more. No
rule weights clients. If only two clients cover an entry, there is no majority.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bayesfed.errors import UpdateError
from bayesfed.errors.checks import checked_class, number
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info, Sum, Update
from bayesfed.trees import Tree, check_shapes, shapes


class Rule(Protocol):
    """A function that takes the place of the sum of the clients' updates."""

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return one update, whose mean takes the place of the clients' mean, and figures for the
        report.

        Parameters
        ----------
        updates
            Updates by client, in the order of their names: at least one, and none of weight zero.
        state
            The server's state at the beginning of the round.

        Raises
        ------
        UpdateError
            If the rule is not defined for these updates.
        """


def added(updates: Mapping[str, Update]) -> Update:
    """Return the sum of at least one update, whose bits do not depend on their order."""
    reducer = Sum()
    for client, update in updates.items():
        reducer.add(client, update)
    return summed(reducer, next(iter(updates.values())).kind)


@dataclass(frozen=True)
class Median:
    """The median of every entry over the clients that cover it. For an even number of clients, the
    mean of the middle two.

    References
    ----------
    Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (2018),
    definition 1.
    """

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return the medians with weight 1, and no figures."""
        total, covered = dict[str, Tensor](), dict[str, Tensor]()
        for name, ordered, count in _ordered(updates):
            low, high = (
                ordered.gather(0, at.clamp_min(0)[None])[0] for at in ((count - 1) // 2, count // 2)
            )
            covered[name] = (count > 0).to(ordered.dtype)
            total[name] = torch.where(count > 0, 0.5 * low + 0.5 * high, 0.0)
        return _update(updates, total, covered), {}


@checked_class({}, share=number("[0, 0.5)", "TrimmedMean(0.2)"))
@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every entry without the largest and the smallest `share` of the values.

    Parameters
    ----------
    share
        Share beta of the clients that cover an entry, left out on each side. The number of clients
        is rounded up, but at least one is left. 0 gives the mean, bit for bit.

    Raises
    ------
    ArgumentError
        If the share is not in [0, 1/2).

    References
    ----------
    Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (2018),
    definition 2.
    """

    share: float

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return the sum of the values that are left, with their number as weight, and no
        figures.
        """
        if not self.share:
            return added(updates), {}
        total, left = dict[str, Tensor](), dict[str, Tensor]()
        for name, ordered, count in _ordered(updates):
            cut = torch.minimum(
                torch.ceil(self.share * count.double() - 1e-9).long(), (count - 1).clamp_min(0) // 2
            )
            at = torch.arange(len(ordered), device=ordered.device).reshape(-1, *[1] * count.dim())
            total[name] = torch.where((at >= cut) & (at < count - cut), ordered, 0.0).sum(0)
            left[name] = (count - 2 * cut).to(ordered.dtype)
        return _update(updates, total, left), {}


def _ordered(updates: Mapping[str, Update]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield by leaf: its name, its values ``(K, ...)`` in ascending order, with infinity where not
    covered, and the clients per entry ``(...)``.
    """
    first = next(iter(updates.values()))
    for update in updates.values():
        if update.kind != first.kind or update.by_entry != first.by_entry:
            raise UpdateError(
                "a robust rule", "updates of one kind and form", "unlike ones", "one view for all"
            )
        check_shapes(update.total, shapes(first.total), where="update")
    for name in first.total:
        weights = [update.weight_of(name) for update in updates.values()]
        values = [
            torch.where(weight > 0, update.total[name] / weight, math.inf)
            for update, weight in zip(updates.values(), weights, strict=True)
        ]
        yield (
            name,
            torch.stack(values).sort(0).values,
            torch.stack([weight > 0 for weight in weights]).sum(0),
        )


def _update(updates: Mapping[str, Update], total: Tree, weight: Tree) -> Update:
    """Return an update whose weight is a number or a tree, as the clients' weights are."""
    first = next(iter(updates.values()))
    if first.by_entry:
        return Update(total, weight, first.kind)
    # Every client covers every entry, so all entries have the same weight.
    shared = max((float(leaf.max()) for leaf in weight.values() if leaf.numel()), default=1.0)
    return Update(total, shared, first.kind)
