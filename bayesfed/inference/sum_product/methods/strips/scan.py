"""Exact sums along many chains at once: prefix products of small positive matrices in log2(M)
steps.

A sequential recursion would launch a kernel at every step. Products of positive numbers have no
cancellation, so both agree up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor


def prefix_products(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return inclusive products from the left along dimension 0, each scaled to maximum 1, and the
    log of the scales.

    Parameters
    ----------
    matrices
        ``(M, ..., S, S)``, non-negative, none of them zero.

    Returns
    -------
    ``(M, ..., S, S)`` and ``(M, ...)``.
    """
    product, scale = _unit(matrices)
    step = 1
    while step < len(product):
        joined, more = _unit(product[:-step] @ product[step:])
        scale = torch.cat([scale[:step], scale[:-step] + scale[step:] + more])
        product = torch.cat([product[:step], joined])
        step *= 2
    return product, scale


def _unit(matrices: Tensor) -> tuple[Tensor, Tensor]:
    top = matrices.amax((-2, -1), keepdim=True)
    return matrices / top, top[..., 0, 0].log()


def chain_sums(weights: Tensor, tables: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum chains of M variables with S states forwards and backwards.

    Parameters
    ----------
    weights
        ``(M, ..., S)``, weight of each state alone.
    tables
        ``(M - 1, ..., S, S)``, weight of each pair of neighbouring states.

    Returns
    -------
    Forward weights, which include a variable's own, and backward weights, which do not,
    ``(M, ..., S)`` up to scale, and log Z ``(...)``.
    """
    if len(weights) == 1:
        return weights, torch.ones_like(weights), weights[0].sum(-1).log()
    moves = tables * weights[1:, ..., None, :]
    products, scales = prefix_products(moves)
    after = (weights[:1, ..., :, None] * products).sum(-2)
    forward = torch.cat([weights[:1], after])
    # Transposed and reversed, suffix products are prefix products.
    suffix, _ = prefix_products(moves.flip(0).mT)
    backward = torch.cat([suffix.sum(-2).flip(0), torch.ones_like(weights[:1])])
    return forward, backward, after[-1].sum(-1).log() + scales[-1]
