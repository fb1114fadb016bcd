"""Shared by the methods for pairwise binary models: agreement messages, pair tables, the Bethe free
energy.

A coupling k on s_i s_j equals half of k on each end and the agreement table [[a, 1], [1, a]] with
a = exp(k / 2), less k / 2. Messages through that table are symmetric in the two states and lie
within [1 / a, a].
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import softplus


def agree(x: Tensor, half: Tensor) -> Tensor:
    """Return the log-odds ``log((a r + 1) / (r + a))`` sent by cavity log-odds x, with
    ``half = log a``.
    """
    # With torch's default threshold of 20 the error is 2e-9, too much in float64.
    sent: Tensor = softplus(x + half, threshold=40.0) - softplus(x - half, threshold=40.0) - half
    return sent


def pair_tables(left: Tensor, right: Tensor, half: Tensor) -> Tensor:
    """Return marginal tables ``(..., 2, 2)`` of pairs with cavity log-odds `left`, `right` and
    agreement ``half = log a``.
    """
    logs = torch.stack([half.expand_as(left), right, left, left + right + half], dim=-1)
    tables: Tensor = torch.softmax(logs.double(), dim=-1).unflatten(-1, (2, 2))
    return tables


def bethe(belief: Tensor, degree: Tensor, edges: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return the Bethe estimate of log Z, ``(B,)``, in float64; exact on forests.

    Parameters
    ----------
    belief
        Log-odds ``(B, ...)``.
    degree
        Neighbours of each variable, of the shape of one belief.
    edges
        Cavity log-odds of both ends ``(B, ...)`` and half the coupling, for each kind of edge.
    """
    total = ((1 - degree) * softplus(belief.double(), threshold=40.0)).flatten(1).sum(1)
    for left, right, half in edges:
        x, y, h = left.double(), right.double(), half.double()
        logs = torch.logsumexp(torch.stack([h.expand_as(x), y, x, x + y + h]), dim=0)
        total = total + (logs - h).flatten(1).sum(1)
    return total
