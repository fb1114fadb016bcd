"""Checkerboard belief propagation on binary grids, in the odds domain.

With unary odds g, a = exp(coupling / 2) and r the product of g and the other incoming messages, a message is
``(a r + 1) / (r + a)``: no exponential, no logarithm. The parities are stored apart (`parity`), so every load is contiguous.
Messages leave one parity at a time: flooding, which updates both at once, oscillates for ever where there are several fixed points.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from bayesfed.inference.passing import parity
from bayesfed.inference.passing.outcome import Outcome, Settings, resumed
from bayesfed.inference.passing.pairwise import bethe, pair_tables
from bayesfed.inference.passing.settle import settle
from bayesfed.models.grid import Grid

# Unary log-odds, a and cavity odds are kept within these, so that float32 (float64) never overflows.
LIMITS = {torch.float32: (40.0, 1e6, 1e18), torch.float64: (300.0, 1e40, 1e150)}
Edge = tuple[Tensor, Tensor, Tensor]


def pass_checkerboard(grid: Grid, evidence: Tensor, settings: Settings, state: Tensor | None = None) -> Outcome:
    """Run belief propagation on a grid with one coupling in each direction.

    Parameters
    ----------
    evidence
        Log-odds ``(B, K, M)``, float32 or float64. Unary log-odds enter clipped at 40 (float64: 300), half a coupling at
        log 1e6 (log 1e40): ask `holds` first.
    state
        Messages of an earlier run on this grid; left as they are.
    """
    limit, _, cap = LIMITS[evidence.dtype]
    g = parity.pack((evidence + symmetric_field(grid, evidence)).clamp_(-limit, limit).exp_(), 1.0)
    messages = start(grid, evidence, settings, state)
    sweeps, residual = _run(g, messages, grid.size[1], odds(grid, evidence.dtype), cap, settings)
    # Not needed any more, and the result is about to be made.
    del g
    return outcome(grid, evidence, messages, sweeps, residual, residual <= settings.tol)


def holds(grid: Grid, evidence: Tensor) -> bool:
    """Whether couplings and unary log-odds lie within the limits of the evidence's dtype, so that nothing is clipped."""
    limit, most, _ = LIMITS[evidence.dtype]
    strong = 2 * grid.strength() > math.log(most)
    return not strong and not bool(((evidence + symmetric_field(grid, evidence)).abs() > limit).any())


def odds(grid: Grid, dtype: torch.dtype) -> list[float]:
    """Return a = exp(coupling / 2) of rows and columns, kept within the limits of a dtype."""
    most = LIMITS[dtype][1]
    return [min(max(math.exp(min(float(link.coupling) / 2, 700.0)), 1 / most), most) for link in (grid.row, grid.column)]


def start(grid: Grid, evidence: Tensor, settings: Settings, state: Tensor | None) -> Tensor:
    """Return the messages to start from: a copy of `state`, neutral ones, or the largest or smallest there can be."""
    if state is not None:
        most = LIMITS[evidence.dtype][1]
        rows, columns = grid.size
        shape = (2, 4, len(evidence), rows + 2, (columns + 1) // 2 + 2)
        return parity.cleared(resumed(state, shape, state).clamp_(1 / most, most).to(evidence), grid.size)
    if settings.init == "zero":
        return parity.neutral(len(evidence), grid.size, evidence)
    most, sign = math.log(LIMITS[evidence.dtype][1]), 1 if settings.init == "hi" else -1
    along, across = ((sign * value.abs() / 2).clamp(-most, most).exp() for value in grid.couplings(torch.float64, evidence.device))
    return parity.extreme(len(evidence), grid.size, evidence, along.to(evidence), across.to(evidence))


def outcome(grid: Grid, evidence: Tensor, messages: Tensor, sweeps: int, residual: float, converged: bool) -> Outcome:
    """Return the result that packed messages stand for."""
    # Two logarithms: the product of four strong messages could overflow.
    heard = (messages[:, 0] * messages[:, 1]).log_().add_((messages[:, 2] * messages[:, 3]).log_())
    extrinsic = parity.unpack(heard, grid.size[1]).add_(symmetric_field(grid, evidence))
    belief = evidence + extrinsic

    def log_z() -> Tensor:
        degree = 4 - torch.stack(border(*grid.size, belief.device)).sum(0)
        return bethe(belief, degree, edges(grid, belief, messages))

    def pairs() -> tuple[Tensor, ...]:
        return tuple(pair_tables(*edge) for edge in edges(grid, belief, messages))

    return Outcome(belief, extrinsic, messages, sweeps, residual, converged, pairs, log_z)


def border(rows: int, columns: int, device: torch.device) -> list[Tensor]:
    """Return for each of the four sides whether a variable ``(K, M)`` lies on it."""
    i, j = torch.arange(rows, device=device)[:, None], torch.arange(columns, device=device)[None]
    return [(side.expand(rows, columns)).long() for side in (i == 0, i == rows - 1, j == 0, j == columns - 1)]


def symmetric_field(grid: Grid, like: Tensor) -> Tensor:
    """Return the field ``(K, M)`` that goes with agreement tables: each end of a link takes half its coupling."""
    if grid.is_even():
        # The same everywhere but at the borders, where a neighbour is missing.
        ends = [(float(link.source) + float(link.coupling) / 2, float(link.target) + float(link.coupling) / 2) for link in (grid.row, grid.column)]
        field = torch.as_tensor(grid.field, dtype=like.dtype, device=like.device) + like.new_full(grid.size, sum(map(sum, ends)))
        for side, value in zip((field[:, -1], field[:, 0], field[-1], field[0]), (*ends[0], *ends[1]), strict=True):
            side.sub_(value)
        return field
    row, column = (value / 2 for value in grid.couplings(torch.float64, like.device))
    field = grid.fields(torch.float64, like.device) + pad(row, (0, 1)) + pad(row, (1, 0)) + pad(column, (0, 0, 0, 1)) + pad(column, (0, 0, 1, 0))
    return field.to(like.dtype)


def edges(grid: Grid, belief: Tensor, messages: Tensor) -> list[Edge]:
    """Return cavity log-odds of both ends and half the coupling, for row links and for column links."""
    left, right, up, down = (values.log() for values in parity.unpack_messages(messages, grid.size[1]))
    row, column = (value / 2 for value in grid.couplings(belief.dtype, belief.device))
    along = ((belief - right)[..., :-1], (belief - left)[..., 1:], row)
    across = ((belief - down)[..., :-1, :], (belief - up)[..., 1:, :], column)
    return [along, across]


def _run(g: Tensor, messages: Tensor, columns: int, a: list[float], cap: float, settings: Settings) -> tuple[int, float]:
    if settings.backend == "numba":
        from bayesfed.inference.passing.checkerboard_jit import sweeper

        return settle(sweeper(g, messages, columns, a, cap, settings.damping), settings)

    def step(count: int) -> float:
        for number in range(count):
            changes = [half_sweep(g, messages, columns, a, cap, p, settings.damping, number == count - 1) for p in (0, 1)]
        return math.log1p(max(changes))

    return settle(step, settings)


def half_sweep(g: Tensor, messages: Tensor, columns: int, a: list[float], cap: float, sender: int, damping: float, look: bool) -> float:
    """Send every message out of one parity; return the largest ratio of new to old, less 1, if asked to look.

    The order of operations is that of the numba kernel: both give the same bits.
    """
    own, other = messages[sender], messages[1 - sender]
    partner, far, up, down = (own[direction, :, 1:-1, 1:-1] for direction in range(4))
    field = g[sender, :, 1:-1, 1:-1]
    across, along = field * (up * down), field * (partner * far)
    sent = [*_send(across * far, across * partner, a[0], cap), *_send(along * down, along * up, a[1], cap)]
    if columns % 2:
        for message in sent:
            # The last cell of every second row is padding: it says nothing.
            message[:, 1 - sender :: 2, -1] = 1.0
    places = [(0, slice(1, -1), slice(1, -1)), (3, slice(0, -2), slice(1, -1)), (2, slice(2, None), slice(1, -1))]
    change = 0.0
    for (direction, rows, cells), message in zip(places, (sent[0], sent[2], sent[3]), strict=True):
        change = max(change, _write(other[direction, :, rows, cells], message, damping, look))
    for start in (0, 1):
        flag = (start + sender) % 2
        target = other[1, :, 1 + start : -1 : 2, 2 * flag : 2 * flag + field.shape[-1]]
        change = max(change, _write(target, sent[1][:, start::2], damping, look))
    return change


def _send(x: Tensor, y: Tensor, a: float, cap: float) -> tuple[Tensor, Tensor]:
    x.clamp_(max=cap)
    y.clamp_(max=cap)
    dx, dy = x + a, y + a
    inverse = (dx * dy).reciprocal_()
    return x.mul_(a).add_(1.0).mul_(dy.mul_(inverse)), y.mul_(a).add_(1.0).mul_(dx.mul_(inverse))


def _write(target: Tensor, message: Tensor, damping: float, look: bool) -> float:
    if damping:
        message = message + damping * (target - message)
    change = float(((message - target).abs_() / torch.minimum(message, target)).max()) if look and message.numel() else 0.0
    target.copy_(message)
    return change
