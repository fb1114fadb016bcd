"""Message passing between strips of rows: each strip is solved exactly, and messages are Markov
chains along shared rows.

A strip has w rows and shares its first and its last with its neighbours. A message between strips
is a chain along the shared row: odds of each variable and of each pair of neighbours, chosen to
keep the strip's pair marginals. With w = 2, the fixed points are those of Kikuchi's approximation
on 2 x 2 plaquettes (Yedidia, Freeman and Weiss, 2005); wider strips have smaller errors. A grid of
w rows is exact.

Strips are grouped in blocks, which are swept in parallel; blocks exchange messages between passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from bayesfed.inference.sum_product.methods.grids.checkerboard import symmetric_field
from bayesfed.inference.sum_product.methods.outcome import Outcome, Settings, resumed
from bayesfed.inference.sum_product.methods.settle import settle
from bayesfed.inference.sum_product.methods.strips.sums import row_tables, states, strip_sums
from bayesfed.models.random_fields.grid import Grid

# Most blocks of a grid, and most rows of a strip.
BLOCKS, WIDEST = 8, 8


@dataclass(frozen=True)
class Cut:
    """How K rows become strips of `rows` rows, with `size` strips in a block; the last strips may
    be padded with neutral rows.
    """

    rows: int
    blocks: int
    size: int

    @staticmethod
    def of(count: int, rows: int) -> Cut:
        """Return the cut of `count` rows with at least eight strips in a block and at most eight
        blocks.
        """
        strips = -(-(count - 1) // (rows - 1))
        blocks = max(1, min(BLOCKS, strips // 8))
        return Cut(rows, blocks, -(-strips // blocks))

    @property
    def strips(self) -> int:
        """Number of strips."""
        return self.blocks * self.size

    @property
    def height(self) -> int:
        """Number of rows, padding included."""
        return self.strips * (self.rows - 1) + 1

    def fill(self, values: Tensor, lacking: int = 0) -> Tensor:
        """Return ``(..., K - lacking, M)`` padded with ones to ``(..., height - lacking, M)``."""
        return pad(
            values, (0, 0, 0, self.height - lacking - values.shape[-2]), value=1.0
        ).contiguous()

    def strips_of(self, values: Tensor, lacking: int = 0) -> Tensor:
        """Return a view of rows ``(..., height - lacking, M)`` as strips
        ``(..., strips, rows - lacking, M)``.
        """
        return values.unfold(-2, self.rows - lacking, self.rows - 1).mT

    def inbox(self, messages: Tensor, down: bool) -> Tensor:
        """Return a copy of the messages to the first strip of each block of a pass,
        ``(2, B, blocks, M)``.
        """
        first = slice(0, -1, self.size) if down else slice(self.size, None, self.size)
        return messages[0 if down else 1, :, :, first].clone()


@dataclass(frozen=True)
class Problem:
    """A grid as odds and agreement tables, with H rows after padding with ones.

    Parameters
    ----------
    cut
        The cut into strips.
    own
        Odds ``(B, H, M)`` of the variables.
    pair, across
        a of row links ``(H, M)`` (last column 1) and of column links ``(H - 1, M)``.
    """

    cut: Cut
    own: Tensor
    pair: Tensor
    across: Tensor

    def absorbed(self, messages: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return strips times incoming messages: unary ``(B, n, w, M)``, row links
        ``(B, n, w, M - 1)``, column links ``(1, n, w - 1, M)``.
        """
        cut = self.cut
        unary, pair = (
            cut.strips_of(values).expand(len(self.own), -1, -1, -1).clone()
            for values in (self.own, self.pair)
        )
        for kind, values in ((0, unary), (1, pair)):
            values[:, :, 0] *= messages[0, kind, :, :-1]
            values[:, :, -1] *= messages[1, kind, :, 1:]
        return unary, pair[..., :-1], cut.strips_of(self.across, 1)[None]

    def shared(self, messages: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inner shared rows as chains: unary ``(B, n - 1, 1, M)`` and row links
        ``(B, n - 1, 1, M - 1)``.
        """
        step = self.cut.rows - 1
        rows = slice(step, -1, step)
        unary = self.own[:, rows] * messages[0, 0, :, 1:-1] * messages[1, 0, :, 1:-1]
        pair = self.pair[rows] * messages[0, 1, :, 1:-1] * messages[1, 1, :, 1:-1]
        return unary[:, :, None], pair[:, :, None, :-1]


def pass_strips(
    grid: Grid, evidence: Tensor, settings: Settings, state: Tensor | None = None
) -> Outcome:
    """Run strip message passing, in float64.

    Parameters
    ----------
    grid
        The grid.
    evidence
        Log-odds ``(B, K, M)``. With w rows, half a coupling is clipped at 690 / (6 w - 1) nats and
        unary log-odds at four times that: 30 and 120 for w = 4.
    settings
        When to stop and how to start; `settings.strip_rows` is w.
    state
        Messages of an earlier run on this grid, ``(2, 2, B, n + 1, M)``: from above and below; of
        variables and of pairs.
    """
    rows = grid.size[0]
    field = symmetric_field(grid, evidence.double())
    cut = Cut.of(rows, min(settings.strip_rows, rows))
    # So that the weights of a column's 2^w states stay below e^690.
    most = 690 / (6 * cut.rows - 1)
    row, column = (
        (value / 2).clamp(-most, most).exp()
        for value in grid.couplings(torch.float64, evidence.device)
    )
    unary = evidence.double() + field
    own = unary.clamp(-4 * most, 4 * most).exp_()
    problem = Problem(
        cut, cut.fill(own), cut.fill(pad(row, (0, 1), value=1.0)), cut.fill(column, 1)
    )
    messages = _initial(problem, settings.init)
    messages = messages if state is None else resumed(state, tuple(messages.shape), own)
    odds = torch.ones_like(problem.own)

    def step(count: int) -> float:
        change = 0.0
        for _ in range(count):
            change = max(
                sweep_strips(problem, messages, odds, down, settings.damping)
                for down in (True, False)
            )
        return math.log1p(change)

    sweeps, residual = settle(step, settings, every=1)
    whole = cut.strips == 1 and 2 * grid.strength() <= most
    extrinsic = ((odds[:, :rows] / own).log() + field).to(evidence.dtype)

    def pairs() -> tuple[Tensor, ...]:
        return _pairs(problem, messages, rows)

    def log_z() -> Tensor:
        # The log Z of a variable certain enough to be clipped is linear in its log-odds.
        clipped = (
            ((unary - own.log()) * (evidence + extrinsic).double().sigmoid()).flatten(1).sum(1)
        )
        halves = sum(float(value.sum()) / 2 for value in grid.couplings())
        return _log_z(problem, messages, rows) + clipped - halves

    return Outcome(
        evidence + extrinsic,
        extrinsic,
        messages,
        sweeps,
        residual,
        pairs,
        log_z,
        whole,
    )


def sweep_strips(
    problem: Problem, messages: Tensor, odds: Tensor, down: bool, damping: float
) -> float:
    """Send every strip's message downwards or upwards, all blocks in parallel.

    Parameters
    ----------
    problem
        The grid.
    messages
        ``(2, 2, B, n + 1, M)``, changed in place.
    odds
        ``(B, H, M)``; the marginal odds are written into it.
    down
        Whether messages go down.
    damping
        Share of the old message that is kept.

    Returns
    -------
    The largest ratio of a new message to the old one, less 1.
    """
    from bayesfed.inference.sum_product.methods.jit import chosen
    from bayesfed.inference.sum_product.methods.strips.propagation_jit import SWEEP

    inbox = problem.cut.inbox(messages, down)
    change = np.zeros(inbox.shape[1] * inbox.shape[2])
    arrays = (problem.own, problem.pair, problem.across, messages, inbox, odds)
    chosen(SWEEP, len(change), 2)(
        *(values.numpy() for values in arrays),
        down,
        (0,) * problem.cut.rows,
        problem.cut.size,
        damping,
        change,
    )
    return float(change.max())


def _initial(problem: Problem, init: str) -> Tensor:
    """Return the first messages: neutral ones, or the largest or smallest odds that a row
    can send.
    """
    step, across = problem.cut.rows - 1, problem.across
    extreme = torch.maximum(across, 1 / across)
    sent = {"zero": torch.ones_like(across), "hi": extreme, "lo": 1 / extreme}[init]
    messages = across.new_ones(2, 2, len(problem.own), problem.cut.strips + 1, across.shape[-1])
    messages[0, 0, :, 1:], messages[1, 0, :, :-1] = sent[step - 1 :: step], sent[::step]
    return messages


def _pairs(problem: Problem, messages: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return pair tables of row links ``(B, K, M - 1, 2, 2)`` and of column links
    ``(B, K - 1, M, 2, 2)``.
    """
    width = problem.cut.rows
    forward, backward, joint, _ = strip_sums(*problem.absorbed(messages))
    along = row_tables(joint, width)
    # A shared row is taken from the strip whose first row it is.
    along = torch.cat([along[:, :, :-1].flatten(1, 2), along[:, -1, -1:]], dim=1)[:, :rows]
    bits = states(width, forward)
    on = torch.stack([1 - bits, bits], dim=-1)
    across = torch.einsum(
        "mbns,swx,swy->bnwmxy", forward * backward, on[:, :-1], on[:, 1:]
    ).flatten(1, 2)[:, : rows - 1]
    return along / along.sum((-2, -1), keepdim=True), across / across.sum((-2, -1), keepdim=True)


def _log_z(problem: Problem, messages: Tensor, rows: int) -> Tensor:
    """Return the strips' log Z less that of the rows they share, ``(B,)``, and less log 2 for each
    padded variable.
    """
    total = strip_sums(*problem.absorbed(messages))[3].sum(-1)
    if problem.cut.strips > 1:
        unary, pair = problem.shared(messages)
        total = total - strip_sums(unary, pair, unary[:, :, :0])[3].sum(-1)
    return total - math.log(2) * (problem.cut.height - rows) * problem.own.shape[-1]
