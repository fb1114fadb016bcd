"""Exact sums over one strip or row, on tensors: the slow twin of the strip kernel, pair tables and Kikuchi's log Z."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.inference.passing.scan import chain_sums

Chain = tuple[Tensor, Tensor]


def link_table(odds: Tensor) -> Tensor:
    """Return tables [[1, 1], [1, odds]] of shape ``(..., 2, 2)``."""
    table = odds.new_ones(*odds.shape, 2, 2)
    table[..., 1, 1] = odds
    return table


def strip_sums(upper: Chain, lower: Chain, across: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum a strip of two chains, each (odds ``(M, ...)``, pair odds ``(M - 1, ...)``), joined by `across` ``(M, ...)``.

    Returns
    -------
    Forward and backward weights ``(M, ..., 4)`` of states 00, 01, 10, 11 as in `chain_sums`, pair tables ``(M - 1, ..., 4, 4)``, log Z ``(...)``.
    """
    (a, p), (b, q) = upper, lower
    weights = torch.stack([torch.ones_like(a), b, a, a * b * across], dim=-1)
    tables = (link_table(p)[..., :, None, :, None] * link_table(q)[..., None, :, None, :]).flatten(-2).flatten(-3, -2)
    forward, backward, log_z = chain_sums(weights, tables)
    return forward, backward, tables * (weights * backward)[1:, ..., None, :] * forward[:-1, ..., :, None], log_z


def keep_chain(other: Chain, kept: Chain, across: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the message from a strip to its kept row: odds ``(M, ...)``, pair odds ``(M - 1, ...)``; and its marginal odds ``(M, ...)``."""
    forward, backward, joint, _ = strip_sums(other, kept, across)
    marginal = (forward * backward).unflatten(-1, (2, 2)).sum(-2)
    odds = marginal[..., 1] / marginal[..., 0]
    if len(odds) == 1:
        return odds / kept[0], kept[1], odds
    tables = joint.unflatten(-1, (2, 2)).unflatten(-3, (2, 2)).sum((-4, -2))
    t00, t01, t10, t11 = (tables[..., i, j] for i in (0, 1) for j in (0, 1))
    unary = torch.cat([t10 / t00, torch.ones_like(odds[:1])]) * torch.cat([torch.ones_like(odds[:1]), t01 / t00])
    unary[1:-1] /= odds[1:-1]
    return unary / kept[0], (t11 / t10) * (t00 / t01) / kept[1], odds


@dataclass(frozen=True)
class Rows:
    """A grid after strip message passing, row by row: everything ``(B, K, M)`` in odds, `across` ``(B, K - 1, M)``."""

    own: Tensor
    own_pair: Tensor
    down: Tensor
    down_pair: Tensor
    up: Tensor
    up_pair: Tensor
    across: Tensor

    def _strips(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        upper = self.own * self.down, (self.own_pair * self.down_pair)[..., :-1]
        lower = self.own * self.up, (self.own_pair * self.up_pair)[..., :-1]
        (a, p), (b, q) = (tuple(x[:, :-1].movedim(-1, 0) for x in upper), tuple(x[:, 1:].movedim(-1, 0) for x in lower))
        return strip_sums((a, p), (b, q), self.across.movedim(-1, 0))

    def _rows(self) -> tuple[Tensor, Tensor]:
        odds, pair = self.own * self.down * self.up, (self.own_pair * self.down_pair * self.up_pair)[..., :-1]
        weights = torch.stack([torch.ones_like(odds), odds], dim=-1).movedim(2, 0)
        tables = link_table(pair.movedim(-1, 0))
        forward, backward, log_z = chain_sums(weights, tables)
        return tables * forward[:-1, ..., :, None] * (weights * backward)[1:, ..., None, :], log_z

    def pairs(self) -> tuple[Tensor, Tensor]:
        """Return pair tables of row links ``(B, K, M - 1, 2, 2)`` and of column links ``(B, K - 1, M, 2, 2)``."""
        along, _ = self._rows()
        forward, backward, _, _ = self._strips()
        both = (along.movedim(0, 2), (forward * backward).unflatten(-1, (2, 2)).movedim(0, 2))
        return both[0] / both[0].sum((-2, -1), keepdim=True), both[1] / both[1].sum((-2, -1), keepdim=True)

    def log_z(self) -> Tensor:
        """Return Kikuchi's log Z, ``(B,)``: strips less the rows they share; exact for two rows."""
        _, shared = self._rows()
        return self._strips()[3].sum(-1) - shared[:, 1:-1].sum(-1)
