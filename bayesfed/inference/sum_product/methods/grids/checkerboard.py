"""Checkerboard belief propagation on binary grids, in the odds domain.

With unary odds g, a = exp(coupling / 2) and r the product of g and the other incoming messages, a
message is ``(a r + 1) / (r + a)``: no exponential, no logarithm. The parities are stored separately
(`parity`), so every load is contiguous. Only one parity sends at a time: flooding, which updates
both at once, oscillates where there are several fixed points.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayesfed.inference.sum_product.methods.grids import parity
from bayesfed.inference.sum_product.methods.outcome import Outcome, Settings, resumed
from bayesfed.inference.sum_product.methods.pairwise import bethe, pair_tables
from bayesfed.inference.sum_product.methods.settle import settle
from bayesfed.models.random_fields.grid import Grid

# Limits of unary log-odds, of a and of cavity odds, by dtype: within them nothing overflows.
LIMITS = {torch.float32: (40.0, 1e6, 1e18), torch.float64: (300.0, 1e40, 1e150)}
Edge = tuple[Tensor, Tensor, Tensor]


def pass_checkerboard(
    grid: Grid, evidence: Tensor, settings: Settings, state: Tensor | None = None
) -> Outcome:
    """Run belief propagation on a grid with one coupling in each direction.

    Parameters
    ----------
    grid
        The grid.
    evidence
        Log-odds ``(B, K, M)``, float32 or float64. Unary log-odds are clipped at 40 (float64: 300),
        half a coupling at log 1e6 (log 1e40); `holds` says whether that changes anything.
    settings
        When to stop and how to start.
    state
        Messages of an earlier run on this grid; not changed.
    """
    from bayesfed.inference.sum_product.methods.grids.checkerboard_jit import sweeper

    limit, _, cap = LIMITS[evidence.dtype]
    g = parity.pack((evidence + symmetric_field(grid, evidence)).clamp_(-limit, limit).exp_(), 1.0)
    messages = start(grid, evidence, settings, state)
    step = sweeper(g, messages, grid.size[1], odds(grid, evidence.dtype), cap, settings.damping)
    sweeps, residual = settle(step, settings)
    # Their memory is free before the result is made.
    del g, step
    return outcome(grid, evidence, messages, sweeps, residual)


def holds(grid: Grid, evidence: Tensor) -> bool:
    """Whether couplings and unary log-odds lie within the limits of the evidence's dtype, so that
    nothing is clipped.
    """
    limit, most, _ = LIMITS[evidence.dtype]
    strong = 2 * grid.strength() > math.log(most)
    return not strong and bool(evidence.add(symmetric_field(grid, evidence)).abs_().amax() <= limit)


def odds(grid: Grid, dtype: torch.dtype) -> list[float]:
    """Return a = exp(coupling / 2) of rows and columns, clipped at the limits of a dtype."""
    most = LIMITS[dtype][1]
    return [
        min(max(math.exp(min(float(link.coupling) / 2, 700.0)), 1 / most), most)
        for link in (grid.row, grid.column)
    ]


def start(grid: Grid, evidence: Tensor, settings: Settings, state: Tensor | None) -> Tensor:
    """Return the first messages: a copy of `state`, neutral ones, or the largest or smallest
    possible.
    """
    rows, columns = grid.size
    shape = (2, 4, len(evidence), rows + 2, (columns + 1) // 2 + 2)
    if state is not None:
        most = LIMITS[evidence.dtype][1]
        return parity.cleared(resumed(state, shape, evidence).clamp_(1 / most, most), grid.size)
    if settings.init == "zero":
        return evidence.new_ones(shape)
    largest = [max(a, 1 / a) for a in odds(grid, evidence.dtype)]
    sent = largest if settings.init == "hi" else [1 / a for a in largest]
    return parity.extreme(len(evidence), grid.size, evidence, *sent)


def outcome(
    grid: Grid, evidence: Tensor, messages: Tensor, sweeps: int, residual: float
) -> Outcome:
    """Return the beliefs, pair tables and log Z of packed messages."""
    # Two logarithms: the product of four strong messages could overflow.
    incoming = (
        (messages[:, 0] * messages[:, 1]).log_().add_((messages[:, 2] * messages[:, 3]).log_())
    )
    extrinsic = parity.unpack(incoming, grid.size[1]).add_(symmetric_field(grid, evidence))
    belief = evidence + extrinsic

    def log_z() -> Tensor:
        degree = belief.new_full(grid.size, 4)
        for side in (degree[0], degree[-1], degree[:, 0], degree[:, -1]):
            side.sub_(1)
        return bethe(belief, degree, edges(grid, belief, messages))

    def pairs() -> tuple[Tensor, ...]:
        return tuple(pair_tables(*edge) for edge in edges(grid, belief, messages))

    return Outcome(belief, extrinsic, messages, sweeps, residual, pairs, log_z)


def symmetric_field(grid: Grid, like: Tensor) -> Tensor:
    """Return the field ``(K, M)`` of the model with agreement tables: each end of a link gets half
    its coupling.
    """
    if grid.is_even():
        # The same everywhere except at the borders, where a neighbour is missing.
        ends = [
            (
                float(link.source) + float(link.coupling) / 2,
                float(link.target) + float(link.coupling) / 2,
            )
            for link in (grid.row, grid.column)
        ]
        field = torch.as_tensor(grid.field, dtype=like.dtype, device=like.device) + like.new_full(
            grid.size, sum(map(sum, ends))
        )
        for side, value in zip(
            (field[:, -1], field[:, 0], field[-1], field[0]), (*ends[0], *ends[1]), strict=True
        ):
            side.sub_(value)
        return field
    row, column = (value / 2 for value in grid.couplings(torch.float64, like.device))
    field = (
        grid.fields(torch.float64, like.device)
        + pad(row, (0, 1))
        + pad(row, (1, 0))
        + pad(column, (0, 0, 0, 1))
        + pad(column, (0, 0, 1, 0))
    )
    return field.to(like.dtype)


def edges(grid: Grid, belief: Tensor, messages: Tensor) -> list[Edge]:
    """Return cavity log-odds of both ends and half the coupling, for row links and for column
    links.
    """
    left, right, up, down = (
        values.log() for values in parity.unpack_messages(messages, grid.size[1])
    )
    row, column = (value / 2 for value in grid.couplings(belief.dtype, belief.device))
    along = ((belief - right)[..., :-1], (belief - left)[..., 1:], row)
    across = ((belief - down)[..., :-1, :], (belief - up)[..., 1:, :], column)
    return [along, across]
