"""Rules of entries in place of the mean: `Median` and `TrimmedMean`; `bayesfed.federated.aggregation.selection` has those of whole updates.

===============  ===================================================================================================
rule             what it bears
===============  ===================================================================================================
`Median`         fewer than half of the clients that cover an entry (Yin et al., 2018, definition 1)
`TrimmedMean`    a share of at most `share` of them (the same, definition 2)
`Krum`           `byzantine` of n clients, ``2 byzantine + 2 < n`` (Blanchard et al., 2017, section 4)
`NormGate`       what harms by its length; a change of flipped sign is as long and passes
===============  ===================================================================================================

What is borne is bounded, not undone: hostile values inside the spread of the honest ones shift any of these, the more the less alike honest clients
are. None weighs clients. Between two clients who cover an entry there is no majority.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, UpdateError, complain
from bayesfed.federated.aggregation.robust import added
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Update
from bayesfed.trees import Tree, check_shapes, shapes


@dataclass(frozen=True)
class Median:
    """Take the median of every entry over the clients that cover it; of an even number the mean of the middle two.

    References
    ----------
    Yin et al., "Byzantine-robust distributed learning: towards optimal statistical rates" (2018), definition 1.
    """

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return the medians, of weight 1."""
        total, covered = dict[str, Tensor](), dict[str, Tensor]()
        for name, ordered, count in _ordered(updates):
            low, high = (ordered.gather(0, at.clamp_min(0)[None])[0] for at in ((count - 1) // 2, count // 2))
            covered[name] = (count > 0).to(ordered.dtype)
            total[name] = torch.where(count > 0, 0.5 * low + 0.5 * high, 0.0)
        return _update(updates, total, covered), {}


@dataclass(frozen=True)
class TrimmedMean:
    """Leave out of every entry the largest and the smallest `share` of the clients that cover it, and take the mean of the rest.

    Parameters
    ----------
    share
        beta, of each side; as many clients as that rounds up to, but never so many that none is left. 0 is the mean, to the bit.

    Raises
    ------
    ArgumentError
        If it is not in [0, 1/2).
    """

    share: float

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ArgumentError(complain("TrimmedMean", expected="a share in [0, 0.5)", actual=self.share, hint="TrimmedMean(0.2)"))

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return the sum of what is left, and its number as the weight."""
        if not self.share:
            return added(updates), {}
        total, left = dict[str, Tensor](), dict[str, Tensor]()
        for name, ordered, count in _ordered(updates):
            cut = torch.minimum(torch.ceil(self.share * count.double() - 1e-9).long(), (count - 1).clamp_min(0) // 2)
            at = torch.arange(len(ordered), device=ordered.device).reshape(-1, *[1] * count.dim())
            total[name] = torch.where((at >= cut) & (at < count - cut), ordered, 0.0).sum(0)
            left[name] = (count - 2 * cut).to(ordered.dtype)
        return _update(updates, total, left), {}


def _ordered(updates: Mapping[str, Update]) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield each leaf's name, its values in ascending order ``(K, ...)``, infinity where not covered, and how many cover an entry ``(...)``."""
    first = next(iter(updates.values()))
    for update in updates.values():
        if update.kind != first.kind or update.by_entry != first.by_entry:
            raise UpdateError(complain("a robust rule", expected="updates of one kind and form", actual="unlike ones", hint="one view for all"))
        check_shapes(update.total, shapes(first.total), where="update")
    for name in first.total:
        weights = [update.weight_of(name) for update in updates.values()]
        values = [torch.where(weight > 0, update.total[name] / weight, math.inf) for update, weight in zip(updates.values(), weights, strict=True)]
        yield name, torch.stack(values).sort(0).values, torch.stack([weight > 0 for weight in weights]).sum(0)


def _update(updates: Mapping[str, Update], total: Tree, weight: Tree) -> Update:
    """Return an update whose weight has the form of the clients' weights."""
    first = next(iter(updates.values()))
    if first.by_entry:
        return Update(total, weight, first.kind)
    # Everybody covers everything, so that every entry has the same weight.
    return Update(total, max((float(leaf.max()) for leaf in weight.values() if leaf.numel()), default=1.0), first.kind)
