"""Strips of two rows solved exactly, rows exchanged as Markov chains: Kikuchi accuracy on grids.

A message between strips is a chain along the row they share: odds of each variable and of each pair of neighbours, chosen so that
the strip's pair marginals are kept. Its fixed points are those of generalised belief propagation on 2 x 2 plaquettes (Yedidia,
Freeman and Weiss, 2005). Two rows are exact.

Rows are cut into blocks, stored in the last dimension (lanes) and swept side by side; neighbours hear of each other between
passes. Storage: ``(R + 1, M, lanes)`` for R strips a block; the last row of a block is the first of the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayesfed.errors import ArgumentError, complain
from bayesfed.inference.passing.outcome import Outcome, Settings, resumed
from bayesfed.inference.passing.settle import settle
from bayesfed.inference.passing.strip_sums import Rows, keep_chain
from bayesfed.models.grid import Grid

Pass = Callable[[], float]
BLOCKS = 16
LIMIT = 100.0


@dataclass(frozen=True)
class Lanes:
    """How K rows are cut: `blocks` of `strips` strips each, the last one padded with rows that hear nothing."""

    rows: int
    blocks: int
    strips: int

    @staticmethod
    def of(rows: int) -> Lanes:
        """Cut so that a block has at least eight strips."""
        blocks = max(1, min(BLOCKS, (rows - 1) // 8))
        strips = max(1, -(-(rows - 1) // blocks))
        return Lanes(rows, -(-max(1, rows - 1) // strips), strips)

    def cut(self, values: Tensor, fill: float, shared: bool = True) -> Tensor:
        """Turn ``(B, K, M)`` into ``(R + 1, M, B blocks)``; without `shared`, ``(B, K - 1, M)`` between rows into ``(R, M, B blocks)``."""
        count = self.blocks * self.strips + shared
        padded = pad(values, (0, 0, 0, count - values.shape[1]), value=fill)
        return padded.unfold(1, self.strips + shared, self.strips).permute(3, 2, 0, 1).flatten(2).contiguous()

    def join(self, values: Tensor, batch: int) -> Tensor:
        """Turn ``(R + 1, M, B blocks)`` into ``(B, K, M)``; a shared row is taken from the block below."""
        parts = values.unflatten(2, (batch, self.blocks)).permute(2, 3, 0, 1)
        rows = torch.cat([parts[:, :, :-1].flatten(1, 2), parts[:, -1, -1:]], dim=1)
        return rows[:, : self.rows]


def pass_strips(grid: Grid, evidence: Tensor, settings: Settings, state: Tensor | None = None) -> Outcome:
    """Run strip message passing, in float64.

    Parameters
    ----------
    evidence
        Log-odds ``(B, K, M)``; unary log-odds enter clipped at 100.
    state
        Messages of an earlier run on this grid, ``(2, 2, R + 1, M, lanes)``: from above and below; of variables and of pairs.
    """
    batch, (rows, columns) = len(evidence), grid.size
    if rows < 2:
        raise ArgumentError(complain("method 'strip'", expected="a grid of two rows or more", actual=grid.size, hint="method='exact'"))
    field = grid.fields(torch.float64, evidence.device)
    row, column = (value.clamp(-LIMIT, LIMIT).exp() for value in grid.couplings(torch.float64, evidence.device))
    lanes = Lanes.of(rows)
    own = lanes.cut((evidence.double() + field).clamp(-LIMIT, LIMIT).exp_(), 1.0)
    own_pair = lanes.cut(pad(row, (0, 1), value=1.0).expand(batch, rows, columns), 1.0)
    across = lanes.cut(column.expand(batch, rows - 1, columns), 1.0, shared=False)
    messages = _initial(across, batch, settings.init) if state is None else resumed(state, (2, 2, *own.shape), own)
    odds = torch.ones_like(own)
    if settings.backend == "numba":
        from bayesfed.inference.passing.strip_jit import passes

        go_down, go_up = passes(own, own_pair, across, messages, odds, settings.damping)
    else:
        go_down, go_up = _passes(own, own_pair, across, messages, odds, settings.damping)

    def step(count: int) -> float:
        change = 0.0
        for _ in range(count):
            change = go_down()
            _hand_on(messages, batch, 0)
            change = max(change, go_up())
            _hand_on(messages, batch, 1)
        return math.log1p(change)

    sweeps, residual = settle(step, settings, every=1)
    extrinsic = (lanes.join(odds.log() - own.log(), batch) + field).to(evidence.dtype)
    down, down_pair, up, up_pair = (lanes.join(values, batch) for pair in messages for values in pair)
    rows_of = Rows(lanes.join(own, batch), lanes.join(own_pair, batch), down, down_pair, up, up_pair, column.expand(batch, rows - 1, columns))
    return Outcome(evidence + extrinsic, extrinsic, messages, sweeps, residual, residual <= settings.tol, rows_of.pairs, rows_of.log_z)


def _initial(across: Tensor, batch: int, init: str) -> Tensor:
    """Return messages that say nothing, or the largest or smallest odds a row can send."""
    sent = {"zero": across.sqrt(), "hi": across.clamp(min=1.0), "lo": across.clamp(max=1.0)}[init]
    messages = across.new_ones(2, 2, len(across) + 1, *across.shape[1:])
    messages[0, 0, 1:], messages[1, 0, :-1] = sent, sent
    _hand_on(messages, batch, 0)
    _hand_on(messages, batch, 1)
    return messages


def _hand_on(messages: Tensor, batch: int, direction: int) -> None:
    """Give the messages that leave a block to the next one: downwards (0) or upwards (1)."""
    blocks = messages[direction].unflatten(-1, (batch, -1))
    if direction == 0:
        blocks[:, 0, :, :, 1:] = blocks[:, -1, :, :, :-1]
    else:
        blocks[:, -1, :, :, :-1] = blocks[:, 0, :, :, 1:]


def _passes(own: Tensor, own_pair: Tensor, across: Tensor, messages: Tensor, odds: Tensor, damping: float) -> tuple[Pass, Pass]:
    """Return the pass down and the pass up in torch: what `strip_jit.passes` returns."""
    down, up = messages

    def solve(r: int, direction: int) -> float:
        upper = own[r] * down[0, r], own_pair[r, :-1] * down[1, r, :-1]
        lower = own[r + 1] * up[0, r + 1], own_pair[r + 1, :-1] * up[1, r + 1, :-1]
        other, kept, target, row = (upper, lower, down, r + 1) if direction == 0 else (lower, upper, up, r)
        unary, pair, odds[row] = keep_chain(other, kept, across[r])
        changes = [_write(target[0, row], unary, damping), _write(target[1, row, :-1], pair, damping)]
        return max(changes)

    def go(direction: int) -> float:
        rows = range(len(across)) if direction == 0 else range(len(across) - 1, -1, -1)
        return max(solve(r, direction) for r in rows)

    return lambda: go(0), lambda: go(1)


def _write(target: Tensor, message: Tensor, damping: float) -> float:
    mixed = message + damping * (target - message)
    change = float(((mixed - target).abs() / torch.minimum(mixed, target)).max()) if mixed.numel() else 0.0
    target.copy_(mixed)
    return change
