"""Exact sums over binary grids, row by row, by a transfer matrix that is never formed.

A row of L variables has 2^L states. The step to the next row is a Kronecker product of L tables of
2 x 2. It is applied as one table for each half of the row, two products of small matrices: 2
2^(3L/2) operations in place of 4^L.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from bayesfed.models.random_fields.grid import Grid

# The longest row that is summed exactly: 4096 states.
WIDEST = 12


def states(width: int, device: torch.device | str = "cpu") -> Tensor:
    """Return the states ``(2^L, L)`` of a row in float64, the first variable varying slowest."""
    return torch.tensor(
        list(itertools.product((0.0, 1.0), repeat=width)), dtype=torch.float64, device=device
    )


def fits(grid: Grid, batch: int = 1, limit: int = 2**30) -> bool:
    """Return whether the shorter side is at most `WIDEST` and the forward sums of a batch need at
    most `limit` bytes.
    """
    short, long = sorted(grid.size)
    return short <= WIDEST and batch * long * 2**short * 8 <= limit


@dataclass(frozen=True)
class Transfer:
    """Exact sums over a grid of K rows with L variables each, in float64.

    Parameters
    ----------
    unary
        ``(B, K, L)`` log-odds, in nats: fields plus evidence.
    along, across
        Couplings within a row ``(K, L - 1)`` and to the next row ``(K - 1, L)``, in nats.
    """

    unary: Tensor
    along: Tensor
    across: Tensor

    @staticmethod
    def of(grid: Grid, evidence: Tensor, *, rows_down: bool | None = None) -> Transfer:
        """Prepare a grid with evidence ``(B, K, M)``. By default the shorter side becomes the row
        that is summed over.

        Parameters
        ----------
        rows_down
            True: go down the grid's own rows; False: across its columns. Default: whichever has the
            shorter rows.
        """
        unary = evidence.double() + grid.fields(torch.float64, evidence.device)
        along, across = grid.couplings(torch.float64, evidence.device)
        if not (grid.size[0] >= grid.size[1] if rows_down is None else rows_down):
            unary, along, across = unary.mT, across.T, along.T
        return Transfer(unary, along, across)

    @cached_property
    def bits(self) -> Tensor:
        """States of a row, ``(2^L, L)``."""
        return states(self.unary.shape[-1], self.unary.device)

    @cached_property
    def neighbours(self) -> Tensor:
        """Whether each two neighbours in a row are both on, in each state of the row,
        ``(L - 1, 2^L)``.
        """
        return (self.bits[:, :-1] * self.bits[:, 1:]).T

    def potential(self, row: int) -> Tensor:
        """Return the log weight of each state of a row by itself, ``(B, 2^L)``."""
        return self.unary[:, row] @ self.bits.T + self.along[row] @ self.neighbours

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor] | None:
        """Tables ``(K - 1, 2^l, 2^l)`` of the step to the next row, for the two halves of a row;
        None if they would overflow.
        """
        middle = self.across.shape[1] // 2
        parts = self.across.clamp(max=600.0).split([middle, self.across.shape[1] - middle], dim=1)
        if any(part.clamp(min=0.0).sum(1).amax() > 600.0 for part in parts if part.numel()):
            return None
        bits = [states(part.shape[1], part.device) for part in parts]
        first, second = (
            ((own * part[:, None]) @ own.T).exp() for own, part in zip(bits, parts, strict=True)
        )
        return first, second

    def step(self, weights: Tensor, row: int) -> Tensor:
        """Carry weights ``(B, 2^L)`` of a row's states to the next row. The table is symmetric, so
        this also goes from the next row back.
        """
        if self.halves is None:
            for number, factor in enumerate(self.across[row].clamp(max=600.0).exp().tolist()):
                weights = contract(weights, factor, number)
            return weights
        first, second = self.halves[0][row], self.halves[1][row]
        carried: Tensor = first @ weights.unflatten(-1, (len(first), len(second))) @ second
        return carried.flatten(-2)

    @cached_property
    def forward(self) -> tuple[list[Tensor], Tensor]:
        """Weights ``(B, 2^L)`` of each row's states with everything above, scaled to a largest of
        1, and the log ``(B,)`` of all scales.
        """
        sums, scale = list[Tensor](), self.unary.new_zeros(len(self.unary))
        for row in range(self.unary.shape[1]):
            logs = self.potential(row)
            if sums:
                logs = logs + self.step(sums[-1], row - 1).log()
            top = logs.amax(-1, keepdim=True)
            sums.append((logs - top).exp())
            scale = scale + top[:, 0]
        return sums, scale

    @cached_property
    def backward(self) -> list[Tensor]:
        """Weights ``(B, 2^L)`` of everything below given each row's state, scaled to a largest
        of 1.
        """
        sums = [torch.ones_like(self.forward[0][-1])]
        for row in range(self.unary.shape[1] - 2, -1, -1):
            logs = self.potential(row + 1)
            weights = self.step((logs - logs.amax(-1, keepdim=True)).exp() * sums[-1], row)
            sums.append(weights / weights.amax(-1, keepdim=True))
        return sums[::-1]

    def log_z(self) -> Tensor:
        """Return log Z, ``(B,)``."""
        sums, scale = self.forward
        return sums[-1].sum(-1).log() + scale

    def sample(self, count: int) -> Tensor:
        """Draw grids ``(count, K, L)`` for a batch of one, from the last row upwards. Uses torch's
        global generator.
        """
        sums, _ = self.forward
        rows = [self.bits[torch.multinomial(sums[-1][0], count, replacement=True)]]
        for row in range(len(sums) - 2, -1, -1):
            logs = sums[row].log() + (rows[-1] * self.across[row]) @ self.bits.T
            rows.append(self.bits[torch.multinomial(torch.softmax(logs, -1), 1)[:, 0]])
        return torch.stack(rows[::-1], dim=1)


def contract(weights: Tensor, factor: float, axis: int) -> Tensor:
    """Apply the table [[1, 1], [1, factor]] to one variable (`axis`) of weights ``(B, 2^L)`` of row
    states.
    """
    off, on = weights.unflatten(-1, (2**axis, 2, -1)).unbind(-2)
    return torch.stack([off + on, off + factor * on], dim=-2).flatten(-3)
