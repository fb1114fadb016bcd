"""Exact sums over strips and rows on tensors, for pair tables and Kikuchi's log Z."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesfed.inference.sum_product.methods.strips.scan import chain_sums


def states(rows: int, like: Tensor) -> Tensor:
    """Return the states ``(2^w, w)`` of one column of a strip; row i is bit i."""
    return (
        (
            torch.arange(2**rows, device=like.device)[:, None]
            >> torch.arange(rows, device=like.device)
        )
        & 1
    ).to(like)


def strip_sums(
    unary: Tensor, pair: Tensor, across: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum strips of w rows exactly.

    Parameters
    ----------
    unary
        Odds ``(..., w, M)`` of variables.
    pair, across
        a of the agreement tables [[a, 1], [1, a]]: ``(..., w, M - 1)`` for row links,
        ``(..., w - 1, M)`` for column links.

    Returns
    -------
    Forward and backward weights ``(M, ..., S)`` as in `chain_sums`, joint tables
    ``(M - 1, ..., S, S)`` up to scale, log Z ``(...)``.
    """
    on = states(unary.shape[-2], unary)
    alike = (on[:, 1:] == on[:, :-1]).to(unary)
    alone = torch.einsum("...wm,sw->m...s", unary.log(), on) + torch.einsum(
        "...wm,sw->m...s", across.log(), alike
    )
    tables = torch.einsum(
        "...wm,stw->m...st", pair.log(), (on[:, None] == on[None]).to(unary)
    ).exp()
    top = alone.amax(-1, keepdim=True)
    weights = (alone - top).exp()
    forward, backward, log_z = chain_sums(weights, tables)
    joint = tables * forward[:-1, ..., :, None] * (weights * backward)[1:, ..., None, :]
    return forward, backward, joint, log_z + top[..., 0].sum(0)


def row_tables(joint: Tensor, rows: int) -> Tensor:
    """Return the pair tables ``(..., w, M - 1, 2, 2)`` of every row of a strip, up to scale."""
    on = states(rows, joint)
    ends = torch.stack([1 - on, on], dim=-1)
    return torch.einsum("m...st,swx,twy->...wmxy", joint, ends, ends)
