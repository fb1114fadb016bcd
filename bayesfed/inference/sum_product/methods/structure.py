"""A flat model as lists: cardinalities, scopes, log tables, unary weights."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising


def as_flat(model: Grid | Ising | Tables) -> Ising | Tables:
    """Return the model as an edge list or as tables."""
    return model if isinstance(model, Tables) else model.ising()


def structure(model: Ising | Tables) -> tuple[list[int], list[tuple[int, ...]]]:
    """Return the cardinalities, and the scopes of all factors of two or more variables, group by
    group.
    """
    if isinstance(model, Ising):
        return [2] * model.field.numel(), list(zip(*model.edges.tolist(), strict=True))
    return model.cards.tolist(), [
        tuple(scope) for group in model.groups for scope in group.scope.tolist()
    ]


def learned(model: Grid | Ising | Tables) -> bool:
    """Return whether a weight of the model requires a gradient."""
    if isinstance(model, Tables):
        leaves = [model.unary, *(group.tables for group in model.groups)]
    elif isinstance(model, Grid):
        leaves = [torch.as_tensor(value) for value in (*model.row, *model.column, model.field)]
    else:
        leaves = [model.field, model.coupling]
    return any(leaf.requires_grad for leaf in leaves)


def log_tables(model: Ising | Tables, device: torch.device) -> list[Tensor]:
    """Return the log tables ``(*cards)`` of these factors, in float64."""
    if isinstance(model, Ising):
        return list(
            torch.nn.functional.pad(
                model.coupling.double().to(device)[:, None, None], (1, 0, 1, 0)
            ).unbind(0)
        )
    return [
        table
        for group in model.groups
        for table in group.tables.double().to(device)[group.which.to(device)].unbind(0)
    ]


def by_group(model: Ising | Tables, tables: list[Tensor], like: Tensor) -> tuple[Tensor, ...]:
    """Return tables ``(B, *cards)`` of all factors as ``(B, F, *cards)`` for each group; of a
    pairwise model as one group. `like` ``(B, ...)`` has the batch if there are no factors.
    """
    if isinstance(model, Ising):
        empty = like.new_zeros(len(like), 0, 2, 2, dtype=torch.float64)
        return (torch.stack(tables, dim=1) if tables else empty,)
    rest = iter(tables)
    return tuple(torch.stack([next(rest) for _ in group.which], dim=1) for group in model.groups)


def unary_weights(model: Ising | Tables, evidence: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Return the log weights ``(B, card)`` of each variable with its evidence, and the model's own
    ``(1, card)``.

    Parameters
    ----------
    model
        The model.
    evidence
        Log-odds ``(B, n)``, infinite where a state was observed, or for tables log weights
        ``(B, n, C)``.
    """
    if isinstance(model, Ising):
        field = model.field.double().to(evidence.device)
        both = torch.stack(
            [torch.zeros_like(evidence, dtype=torch.float64), evidence.double() + field], dim=2
        )
        if bool(evidence.isinf().any()):
            # A state that was observed weighs what the model gives it, and the other nothing.
            both[..., 0].masked_fill_(evidence == torch.inf, -torch.inf)
            both[..., 1] = torch.where(evidence == torch.inf, field, both[..., 1])
        return list(both.unbind(1)), list(
            torch.stack([torch.zeros_like(field), field], dim=1)[:, None].unbind(0)
        )
    own = [
        weights[None, :card]
        for weights, card in zip(
            model.unary.double().to(evidence.device), model.cards.tolist(), strict=True
        )
    ]
    return [
        weights + evidence[:, number, : weights.shape[1]].double()
        for number, weights in enumerate(own)
    ], own
