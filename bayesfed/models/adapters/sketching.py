"""Random diagonal sketches: which slices of an adapter a client trains, and the multipliers with
which their mean is the whole adapter.

A sketch is ``S = sum_j c_j e_j e_j^T`` over k of r slices. With ``c_j = 1 / P(j is drawn)``,
``E[S] = I`` and ``B S A`` is unbiased for ``B A``. Uniform draws (FSLoRA, definition 3.1) have
``c = r / k`` throughout, ``E[S^2] = (r / k) I`` and ``||X S||^2 <= (r / k)^2 ||X||^2`` (lemma D.3).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import SHARE, check, checked
from bayesfed.geometry.thin import check_rank
from bayesfed.keys import Key


class Drawn(NamedTuple):
    """One draw of a sketch.

    Parameters
    ----------
    indices
        ``(k,)`` indices of the slices, ascending.
    multipliers
        ``(k,)`` multipliers c of the slices, float64.
    """

    indices: Tensor
    multipliers: Tensor


@checked()
def random_sketch(rank: int, k: int, key: Key) -> Drawn:
    """Draw k of r slices, all sets of k with the same probability (FSLoRA, definition 3.1).

    Parameters
    ----------
    rank
        r.
    k
        Number of slices to draw.
    key
        Random key of the draw.

    Raises
    ------
    ArgumentError
        If k is not from 1 to r.
    """
    check_rank("random_sketch, k", k, rank)
    indices = torch.randperm(rank, generator=key.generator())[:k].sort().values
    return Drawn(indices, torch.full((k,), rank / k, dtype=torch.float64))


@checked()
def importance_sketch(weights: Tensor, k: int, key: Key, *, floor: float = 0.5) -> Drawn:
    """Draw k of r slices, heavier ones more often, by systematic sampling in random order, which
    meets every probability exactly (Madow, 1949).

    Parameters
    ----------
    weights
        ``(r,)`` weights of the slices, not negative, such as `slice_norms`. If all are zero, the
        draw is uniform.
    k
        Number of slices to draw.
    key
        Random key of the draw.
    floor
        Share of the probability that is the same for all slices, so that no multiplier is above
        ``r / (floor k)``.

    Raises
    ------
    ArgumentError
        If k is not from 1 to r, a weight is negative or not finite, or `floor` is not in (0, 1].
    """
    rank = len(weights)
    check_rank("importance_sketch, k", k, rank)
    weights = weights.detach().double().cpu()
    check("importance_sketch, floor", floor, SHARE)
    if not ((weights >= 0) & weights.isfinite()).all():
        raise ArgumentError(
            "importance_sketch", "finite weights >= 0", weights.tolist(), "slice_norms(b, a)"
        )
    chances = inclusion(weights, k, floor)
    generator = key.generator()
    order = torch.randperm(rank, generator=generator)
    ends = chances[order].cumsum(0)
    # Probabilities add up to k but for rounding. None is above 1, so the points u, u + 1, ... then
    # fall into k different slices.
    ends[-1] = k
    points = torch.rand((), generator=generator, dtype=torch.float64) + torch.arange(k)
    indices = order[torch.searchsorted(ends, points, right=True)].sort().values
    return Drawn(indices, 1 / chances[indices])


def inclusion(weights: Tensor, k: int, floor: float) -> Tensor:
    """Return the probability ``(r,)`` of each slice to be among k: proportional to the weights
    above the floor, at most 1, adding up to k.
    """
    rank, total = len(weights), float(weights.sum())
    shares = (
        (1 - floor) * weights / total + floor / rank
        if total
        else torch.full_like(weights, 1 / rank)
    )
    certain = torch.zeros(rank, dtype=torch.bool)
    while True:
        left = k - int(certain.sum())
        rest = shares.masked_fill(certain, 0.0)
        chances = torch.where(certain, 1.0, left * rest / rest.sum() if left else rest)
        if not ((chances >= 1) & ~certain).any():
            return chances
        certain |= chances >= 1


@checked()
def slice_norms(b: Tensor, a: Tensor) -> Tensor:
    """Return the Frobenius norm ``(r,)`` of every slice ``B e_j e_j^T A``: how much it would change
    the adapter to leave it out.
    """
    norms: Tensor = b.norm(dim=0) * a.norm(dim=1)
    return norms
