"""Exact marginals of narrow grids, by the transfer matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.inference.sum_product.methods.grids.checkerboard import symmetric_field
from bayesfed.inference.sum_product.methods.outcome import Outcome
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.transfer_matrix import Transfer, contract

# Largest unary log-odds, in nats.
LIMIT = 300.0


def sum_grid(grid: Grid, evidence: Tensor) -> Outcome:
    """Sum a grid with evidence ``(B, K, M)`` exactly, in float64."""
    # Beyond e^+-300 a state underflows. The belief of a variable that certain is linear in its
    # evidence.
    field = symmetric_field(grid, evidence.double())
    held = (evidence.double() + field).clamp_(-LIMIT, LIMIT) - field
    transfer = Transfer.of(grid, held)
    turned = grid.size[0] < grid.size[1]
    rows = torch.stack(
        [a * b for a, b in zip(transfer.forward[0], transfer.backward, strict=True)], dim=1
    )
    rows = rows / rows.sum(-1, keepdim=True)
    belief = (rows @ transfer.bits).log() - (rows @ (1 - transfer.bits)).log()
    extrinsic = (belief.mT if turned else belief) - held
    belief = evidence.double() + extrinsic

    def pairs() -> tuple[Tensor, ...]:
        along, across = _along(transfer, rows), _across(transfer)
        return (across.transpose(1, 2), along.transpose(1, 2)) if turned else (along, across)

    def log_z() -> Tensor:
        return transfer.log_z() + ((evidence.double() - held) * belief.sigmoid()).flatten(1).sum(1)

    return Outcome(belief, extrinsic, evidence.new_zeros(0), 1, 0.0, pairs, log_z)


def _along(transfer: Transfer, rows: Tensor) -> Tensor:
    """Return tables ``(B, K, L - 1, 2, 2)`` of neighbours in a row."""
    states = torch.stack([1 - transfer.bits, transfer.bits], dim=-1)
    both = states[:, :-1, :, None] * states[:, 1:, None, :]
    return torch.einsum("bks,slij->bklij", rows, both)


def _across(transfer: Transfer) -> Tensor:
    """Return tables ``(B, K - 1, L, 2, 2)`` of neighbours in a column: the sums of one step over
    all other variables.
    """
    batch, count, width = transfer.unary.shape
    tables = transfer.unary.new_zeros(batch, count - 1, width, 2, 2)
    for row in range(count - 1):
        logs = transfer.potential(row + 1)
        below = (logs - logs.amax(-1, keepdim=True)).exp() * transfer.backward[row + 1]
        above = transfer.forward[0][row]
        factors = transfer.across[row].clamp(max=600.0).exp().tolist()
        lower = [below]
        for axis in range(width - 1, 0, -1):
            lower.append(contract(lower[-1], factors[axis], axis))
        for axis, part in enumerate(reversed(lower)):
            shape = (batch, 2**axis, 2, -1)
            table = torch.einsum("bxsy,bxty->bst", above.reshape(shape), part.reshape(shape))
            table[:, 1, 1] *= factors[axis]
            tables[:, row, axis] = table / table.sum((-2, -1), keepdim=True)
            above = contract(above, factors[axis], axis)
    return tables
