"""Support priors p(s): which weights may be non-zero, declared without any tensor.

Sources: the hidden Markov grid of Xia, Tsang and Lau (D-Turbo-VBI, section II-B). Its prior
is the product of one transition table per horizontal and per vertical neighbour pair, so on
a grid it is an Ising model with coupling ``J = ln(p / (1 - p)) / 2`` for a stay probability p.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, OrderingWarning, complain
from bayesfed.models.ising import Ising

Shape = tuple[int, int]
# tanh(J) = 1/3: where loopy belief propagation on a 4-neighbour grid gets a second fixed point.
BETHE_THRESHOLD = math.atanh(1 / 3)
# sinh(2 J) = 1: where the infinite grid itself orders (Onsager).
ONSAGER_THRESHOLD = math.asinh(1.0) / 2


class Support(Protocol):
    """The seam: lower a declaration to a pairwise binary model for one M x N weight matrix."""

    def lower(self, shape: Shape) -> Ising:
        """Return the model over the ``(M, N)`` supports of one matrix."""
        ...


def probability(name: str, value: float) -> float:
    """Return `value` if it lies strictly between 0 and 1; raise `ArgumentError` otherwise."""
    if not (isinstance(value, int | float) and 0 < value < 1):
        raise ArgumentError(complain(name, expected="a probability in (0, 1)", actual=value, hint="0.6"))
    return float(value)


@dataclass(frozen=True)
class Transition:
    """A Markov chain on {0, 1}: the probabilities to stay off and to stay on."""

    off: float
    on: float

    def __post_init__(self) -> None:
        probability("Transition.off", self.off)
        probability("Transition.on", self.on)

    def terms(self) -> tuple[float, float, float]:
        """Return (coupling, field of the source, field of the target), in nats."""
        l00, l01 = math.log(self.off), math.log1p(-self.off)
        l10, l11 = math.log1p(-self.on), math.log(self.on)
        return l11 + l00 - l10 - l01, l10 - l00, l01 - l00


@dataclass(frozen=True)
class Independent:
    """Each weight is active on its own with the given probability."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        probability("Independent.probability", self.probability)

    def lower(self, shape: Shape) -> Ising:
        """Return a model without edges."""
        odds = math.log(self.probability) - math.log1p(-self.probability)
        count = shape[0] * shape[1]
        empty = torch.empty(2, 0, dtype=torch.long)
        return Ising(torch.full((count,), odds), empty, torch.empty(0), shape, torch.zeros(count, dtype=torch.long))


@dataclass(frozen=True)
class MarkovGrid:
    """Rows and columns of the weight matrix are Markov chains: active weights come in clusters.

    Parameters
    ----------
    row, column
        Transition along a row (to the next column) and along a column (to the next row): a
        `Transition`, or a stay probability when both states are alike.
    field
        Log-odds added to every weight: negative makes the prior sparser.

    Notes
    -----
    A stay probability above 2/3 is past the point where message passing has several fixed
    points; above 0.7071 the grid itself orders and whole layers switch together. `lower` warns.
    """

    row: float | Transition = 0.6
    column: float | Transition = 0.6
    field: float = 0.0

    def __post_init__(self) -> None:
        for name in ("row", "column"):
            if not isinstance(value := getattr(self, name), Transition):
                probability(f"MarkovGrid.{name}", value)
        if not math.isfinite(self.field):
            raise ArgumentError(complain("MarkovGrid.field", expected="a finite number", actual=self.field, hint="0.0"))

    def transitions(self) -> tuple[Transition, Transition]:
        """Return the row and the column transition."""
        row, column = (t if isinstance(t, Transition) else Transition(t, t) for t in (self.row, self.column))
        return row, column

    def lower(self, shape: Shape) -> Ising:
        """Return the grid as a pairwise model; warn if its coupling orders.

        Warns
        -----
        OrderingWarning
            If both chains run and the mean coupling exceeds the Bethe threshold |J| = 0.3466.
        """
        index = torch.arange(shape[0] * shape[1]).reshape(shape)
        field = torch.full(shape, self.field)
        pairs, couplings, strengths = [], [], []
        for transition, source, target in zip(self.transitions(), (index[:, :-1], index[:-1]), (index[:, 1:], index[1:]), strict=True):
            coupling, at_source, at_target = transition.terms()
            field.view(-1)[source.reshape(-1)] += at_source
            field.view(-1)[target.reshape(-1)] += at_target
            pairs.append(torch.stack([source.reshape(-1), target.reshape(-1)]))
            couplings.append(torch.full((source.numel(),), coupling))
            strengths.append(abs(coupling) / 4 if source.numel() else 0.0)
        _warn_if_ordering(strengths)
        rows, columns = torch.meshgrid(torch.arange(shape[0]), torch.arange(shape[1]), indexing="ij")
        return Ising(field.reshape(-1), torch.cat(pairs, dim=1), torch.cat(couplings), shape, ((rows + columns) % 2).reshape(-1))


def _warn_if_ordering(strengths: list[float]) -> None:
    # A chain never orders; on a grid it is the two couplings together that do.
    if min(strengths) == 0 or (mean := sum(strengths) / 2) <= BETHE_THRESHOLD:
        return
    beyond = "the grid itself is ordered" if mean > ONSAGER_THRESHOLD else "message passing is multistable"
    warnings.warn(
        f"MarkovGrid: coupling J = {mean:.3f} exceeds {BETHE_THRESHOLD:.3f} (stay probability 2/3): {beyond}, so whole layers "
        "tend to switch on or off together and inclusion probabilities are overconfident; try a stay probability of at most 0.65",
        OrderingWarning,
        stacklevel=3,
    )


def neighbour_share(mask: Tensor) -> float:
    """Return the share of 4-neighbours of active entries that are active, of an ``(M, N)`` mask; NaN if none is."""
    grid = mask.bool()
    both = (grid[1:] & grid[:-1]).sum() + (grid[:, 1:] & grid[:, :-1]).sum()
    ends = grid[1:].sum() + grid[:-1].sum() + grid[:, 1:].sum() + grid[:, :-1].sum()
    return float(2 * both / ends) if int(ends) else math.nan
