"""Slow twins of the kernels of message passing, in torch: the same operations, array by array."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesfed.inference.sum_product.methods.strips.propagation import Problem
from bayesfed.inference.sum_product.methods.strips.sums import row_tables, states, strip_sums


def sweeper(
    g: Tensor, messages: Tensor, columns: int, a: list[float], cap: float, damping: float
) -> Callable[[int], float]:
    """Return the step for `settle`, which changes `messages` in place.

    Parameters
    ----------
    g
        Packed unary odds ``(2, B, K + 2, W + 2)``.
    messages
        Packed odds ``(2, 4, B, K + 2, W + 2)``.
    columns
        M.
    a
        exp(coupling / 2) of rows and of columns.
    cap
        Largest cavity odds.
    damping
        Share of the old message that is kept.
    """
    # Allocated once: allocating in every sweep costs as much as the arithmetic.
    work = [g.new_empty(number, *g[0, :, 1:-1, 1:-1].shape) for number in (1, 1, 4, 4, 2)]
    strength = torch.tensor([a[0], a[0], a[1], a[1]], dtype=g.dtype, device=g.device).reshape(
        4, 1, 1, 1
    )

    def step(count: int) -> float:
        for number in range(count):
            changes = [
                half_sweep(
                    g, messages, columns, strength, cap, damping, sender, work, number == count - 1
                )
                for sender in (0, 1)
            ]
        return math.log1p(max(changes))

    return step


def half_sweep(
    g: Tensor,
    messages: Tensor,
    columns: int,
    a: Tensor,
    cap: float,
    damping: float,
    sender: int,
    work: list[Tensor],
    look: bool,
) -> float:
    """Send every message of one parity; if `look`, return the largest ratio of new to old message,
    larger to smaller, less 1.
    """
    own, other = messages[sender], messages[1 - sender]
    partner, far, up, down = (own[direction, :, 1:-1, 1:-1] for direction in range(4))
    field, (across, along), (sent, below, inverse) = (
        g[sender, :, 1:-1, 1:-1],
        (work[0][0], work[1][0]),
        work[2:],
    )
    torch.mul(up, down, out=across).mul_(field)
    torch.mul(partner, far, out=along).mul_(field)
    for cavity, heard, result in zip(
        (across, across, along, along), (far, partner, down, up), sent, strict=True
    ):
        torch.mul(cavity, heard, out=result)
    # (a x + 1) / (x + a) for two cavities, with one division.
    torch.add(sent.clamp_(max=cap), a, out=below)
    torch.mul(below[::2], below[1::2], out=inverse).reciprocal_()
    sent.mul_(a).add_(1.0)
    sent[::2].mul_(below[1::2].mul_(inverse))
    sent[1::2].mul_(below[::2].mul_(inverse))
    if columns % 2:
        # The last cell of every second row is padding, which sends neutral messages.
        sent[:, :, 1 - sender :: 2, -1] = 1.0
    inside, every, width = slice(1, -1), slice(None), field.shape[-1]
    # Number of the message, its rows, direction at the receiver, rows there, first cell there.
    places = [
        (0, every, 0, inside, 1),
        (2, every, 3, slice(0, -2), 1),
        (3, every, 2, slice(2, None), 1),
    ]
    for start in (0, 1):
        # The other row neighbour is one cell to the left or to the right, alternating by row.
        places.append(
            (1, slice(start, None, 2), 1, slice(1 + start, -1, 2), 2 * ((start + sender) % 2))
        )
    changes = [0.0]
    for number, some, direction, rows, first in places:
        target = other[direction, :, rows, first : first + width]
        message, *spare = sent[number, :, some], below[0, :, some], below[1, :, some]
        if damping:
            message.add_(torch.sub(target, message, out=spare[0]).mul_(damping))
        if look and message.numel():
            torch.sub(message, target, out=spare[0]).abs_()
            changes.append(float(spare[0].div_(torch.minimum(message, target, out=spare[1])).max()))
        target.copy_(message)
    return max(changes)


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
    own, own_pair, across = problem.own, problem.pair, problem.across
    inbox, rows, size = problem.cut.inbox(messages, down), problem.cut.rows, problem.cut.size
    blocks, step, change = inbox.shape[2], rows - 1, 0.0
    for r in range(size):
        strip = torch.arange(blocks, device=own.device) * size + (r if down else size - 1 - r)
        place = strip[:, None] * step + torch.arange(rows, device=own.device)
        unary, pair = own[:, place], own_pair[place].expand(len(own), -1, -1, -1).clone()
        for kind, values in ((0, unary), (1, pair)):
            values[:, :, 0] *= inbox[kind] if down and r == 0 else messages[0, kind][:, strip]
            values[:, :, -1] *= (
                inbox[kind] if not down and r == 0 else messages[1, kind][:, strip + 1]
            )
        forward, backward, joint, _ = strip_sums(unary, pair[..., :-1], across[place[:, :-1]][None])
        odds[:, place] = marginals = row_marginals(forward, backward, rows)
        kept, way, to = (rows - 1, 0, strip + 1) if down else (0, 1, strip)
        chain = chain_of(row_tables(joint, rows)[:, :, kept], marginals[:, :, kept])
        for kind, fresh, sent in (
            (0, chain[0], unary[:, :, kept]),
            (1, chain[1], pair[:, :, kept, :-1]),
        ):
            target = messages[way, kind][:, to, : fresh.shape[-1]]
            new = fresh / sent
            new = new + damping * (target - new)
            if new.numel():
                change = max(
                    change, float(((new - target).abs() / torch.minimum(new, target)).max())
                )
            messages[way, kind][:, to, : fresh.shape[-1]] = new
    return change


def row_marginals(forward: Tensor, backward: Tensor, rows: int) -> Tensor:
    """Return the odds ``(..., w, M)`` that each variable of a strip is on."""
    both, on = forward * backward, states(rows, forward)
    return torch.einsum("m...s,sw->...wm", both, on) / torch.einsum("m...s,sw->...wm", both, 1 - on)


def chain_of(tables: Tensor, odds: Tensor) -> tuple[Tensor, Tensor]:
    """Return unary odds, and a of the agreement tables, of the chain with pair tables
    ``(..., M - 1, 2, 2)`` and marginal odds ``(..., M)``.
    """
    if odds.shape[-1] == 1:
        return odds, odds[..., :0]
    t00, t01, t10, t11 = (tables[..., i, j] for i in (0, 1) for j in (0, 1))
    one = torch.ones_like(odds[..., :1])
    to_right, to_left = ((t10 / t00) * (t11 / t01)).sqrt(), ((t01 / t00) * (t11 / t10)).sqrt()
    unary = torch.cat([to_right, one], -1) * torch.cat([one, to_left], -1)
    unary[..., 1:-1] /= odds[..., 1:-1]
    return unary, ((t11 / t10) * (t00 / t01)).sqrt()
