"""The checkerboard sweep in torch, on any device.

The same operations in the same order as the numba kernel, so that both give the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


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
