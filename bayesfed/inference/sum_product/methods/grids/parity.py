"""Parity-compact storage of a K x M grid: the two colours of a checkerboard in contiguous arrays.

With W = ceil(M / 2), each parity is ``(K + 2, W + 2)`` with one cell of padding on every side. In
row i the compact cell c of parity p is column ``2 c + flag`` with ``flag = (i + p) % 2``. A cell's
*partner* is the cell of the other parity at the same c: its right neighbour where flag is 0, its
left one where flag is 1. The *other* row neighbour is at c - 1 or c + 1.

Messages are ``(2, 4, B, K + 2, W + 2)``: parity of the receiver; from the partner, from the other
row neighbour, from above, from below.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

Cells = tuple[slice, slice]


def quarters(columns: int) -> Iterator[tuple[int, int, Cells, Cells]]:
    """Yield (parity, flag, its cells in the compact array, the same cells in the grid)."""
    for parity in (0, 1):
        for start in (0, 1):
            flag = (start + parity) % 2
            cells = slice(1 + start, -1, 2), slice(1, 1 + (columns + 1 - flag) // 2)
            yield parity, flag, cells, (slice(start, None, 2), slice(flag, None, 2))


def pack(values: Tensor, fill: float) -> Tensor:
    """Return the parities ``(2, ..., K + 2, W + 2)`` of ``(..., K, M)``, padded with `fill`."""
    rows, columns = values.shape[-2:]
    result = values.new_full((2, *values.shape[:-2], rows + 2, (columns + 1) // 2 + 2), fill)
    for parity, _, (i, c), (row, column) in quarters(columns):
        result[parity, ..., i, c] = values[..., row, column]
    return result


def unpack(packed: Tensor, columns: int) -> Tensor:
    """Return the grid ``(..., K, M)`` of two parities ``(2, ..., K + 2, W + 2)``."""
    values = packed.new_empty((*packed.shape[1:-2], packed.shape[-2] - 2, columns))
    for parity, _, (i, c), (row, column) in quarters(columns):
        values[..., row, column] = packed[parity, ..., i, c]
    return values


def pack_messages(left: Tensor, right: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """Return the packed messages that variables receive from their four neighbours, ``(B, K, M)``
    each; 1 where there is no neighbour.
    """
    columns = left.shape[-1]
    messages = torch.stack([pack(values, 1.0) for values in (right, left, up, down)], dim=1)
    for parity, flag, (i, c), (row, column) in quarters(columns):
        if flag:
            messages[parity, 0, ..., i, c] = left[..., row, column]
            messages[parity, 1, ..., i, c] = right[..., row, column]
    return messages


def unpack_messages(messages: Tensor, columns: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the messages that variables receive from their left, right, upper and lower
    neighbours, ``(B, K, M)`` each.
    """
    partner, other, up, down = (unpack(messages[:, direction], columns) for direction in range(4))
    # A flag of 1 is an odd column.
    odd = torch.arange(columns, device=partner.device) % 2 == 1
    return torch.where(odd, partner, other), torch.where(odd, other, partner), up, down


def extreme(batch: int, size: tuple[int, int], like: Tensor, row: float, column: float) -> Tensor:
    """Return messages of odds `row` along rows and `column` along columns."""
    left, right, up, down = (like.new_ones(batch, *size) for _ in range(4))
    left[..., 1:], right[..., :-1], up[..., 1:, :], down[..., :-1, :] = row, row, column, column
    return pack_messages(left, right, up, down)


def cleared(messages: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a copy with neutral messages in the padding and from outside the borders, whatever
    grid of this storage it came from.
    """
    left, right, up, down = unpack_messages(messages, size[1])
    left[..., 0], right[..., -1], up[..., 0, :], down[..., -1, :] = 1.0, 1.0, 1.0, 1.0
    return pack_messages(left, right, up, down)
