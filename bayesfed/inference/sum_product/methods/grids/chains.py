"""Belief propagation on grids by whole rows, then whole columns, each a chain that is solved
exactly.

Rows and columns take turns as in turbo decoding. Only the schedule differs from the checkerboard:
the fixed points and the form of the state are the same. It saves sweeps (10 to 40 %) where messages
travel far, and may cycle above the ordering threshold.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesfed.inference.sum_product.methods.grids import parity
from bayesfed.inference.sum_product.methods.grids.checkerboard import (
    LIMITS,
    outcome,
    start,
    symmetric_field,
)
from bayesfed.inference.sum_product.methods.outcome import Outcome, Settings
from bayesfed.inference.sum_product.methods.settle import settle
from bayesfed.models.random_fields.grid import Grid


def pass_chains(
    grid: Grid, evidence: Tensor, settings: Settings, state: Tensor | None = None
) -> Outcome:
    """Run belief propagation by rows and columns.

    Parameters
    ----------
    grid
        The grid.
    evidence
        Log-odds ``(B, K, M)``, float32 or float64.
    settings
        When to stop and how to start.
    state
        Messages of an earlier run on this grid, as in `pass_checkerboard`; not changed.
    """
    from bayesfed.inference.sum_product.methods.grids.chains_jit import solve_chains

    unary = evidence + symmetric_field(grid, evidence)
    messages = start(grid, evidence, settings, state)
    incoming = [values.log() for values in parity.unpack_messages(messages, grid.size[1])]
    row, column = (
        value.to(evidence) / 2 for value in grid.couplings(torch.float64, evidence.device)
    )

    def replace(number: int, fresh: Tensor) -> float:
        fresh = fresh + settings.damping * (incoming[number] - fresh)
        change = float((fresh - incoming[number]).abs().max())
        incoming[number] = fresh
        return change

    def step(count: int) -> float:
        change = 0.0
        for _ in range(count):
            along = solve_chains(unary + incoming[2] + incoming[3], row)
            change = max(replace(number, fresh) for number, fresh in enumerate(along))
            across = solve_chains((unary + incoming[0] + incoming[1]).mT, column.T)
            change = max(
                change, *(replace(2 + number, fresh.mT) for number, fresh in enumerate(across))
            )
        return change

    sweeps, residual = settle(step, settings, every=1)
    most = math.log(LIMITS[evidence.dtype][1])
    settled = parity.pack_messages(*(values.clamp(-most, most).exp() for values in incoming))
    return outcome(grid, evidence, settled, sweeps, residual, residual <= settings.tol)
