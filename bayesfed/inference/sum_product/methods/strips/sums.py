"""Exact sums over strips and rows on tensors, for the sweep without numba, pair tables and
Kikuchi's log Z.
"""

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


def row_marginals(forward: Tensor, backward: Tensor, rows: int) -> Tensor:
    """Return the odds ``(..., w, M)`` that each variable of a strip is on."""
    both, on = forward * backward, states(rows, forward)
    return torch.einsum("m...s,sw->...wm", both, on) / torch.einsum("m...s,sw->...wm", both, 1 - on)


def row_tables(joint: Tensor, rows: int) -> Tensor:
    """Return the pair tables ``(..., w, M - 1, 2, 2)`` of every row of a strip, up to scale."""
    on = states(rows, joint)
    ends = torch.stack([1 - on, on], dim=-1)
    return torch.einsum("m...st,swx,twy->...wmxy", joint, ends, ends)


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
