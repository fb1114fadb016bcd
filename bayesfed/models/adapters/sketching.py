"""Random diagonal sketches: which slices of an adapter a client trains, and what multiplies each so that the mean over draws is the whole adapter.

``S = sum_j c_j e_j e_j^T`` over k of r slices, with ``c_j = 1 / P(j is drawn)``: then ``E[S] = I``, and ``B S A`` is an unbiased estimate of ``B A``.
Uniform draws (FSLoRA, definition 3.1) have ``c = r / k`` throughout, ``E[S^2] = (r / k) I`` and ``||X S||^2 <= (r / k)^2 ||X||^2`` (lemma D.3).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, complain
from bayesfed.geometry.thin import check_rank
from bayesfed.keys import Key


class Drawn(NamedTuple):
    """One draw of a sketch.

    Parameters
    ----------
    indices
        Of the slices, ``(k,)``, rising.
    multipliers
        c, ``(k,)``, float64.
    """

    indices: Tensor
    multipliers: Tensor

    def matrix(self, rank: int) -> Tensor:
        """Return S, ``(r, r)``, float64."""
        return torch.zeros(rank, dtype=torch.float64).index_copy(0, self.indices, self.multipliers).diag()


def random_sketch(rank: int, k: int, key: Key) -> Drawn:
    """Draw k of r slices, all sets of k alike (FSLoRA, definition 3.1).

    Raises
    ------
    ArgumentError
        If k is outside of 1 to r.
    """
    check_rank("random_sketch, k", k, rank)
    indices = torch.randperm(rank, generator=key.generator())[:k].sort().values
    return Drawn(indices, torch.full((k,), rank / k, dtype=torch.float64))


def importance_sketch(weights: Tensor, k: int, key: Key, *, floor: float = 0.5) -> Drawn:
    """Draw k of r slices, the heavier ones more often: systematic sampling in random order, which meets every chance exactly (Madow, 1949).

    Parameters
    ----------
    weights
        ``(r,)``, not negative: `slice_norms`. All zero is uniform.
    floor
        Share of the chances that all slices have alike, so that no multiplier is above ``r / (floor k)``.

    Raises
    ------
    ArgumentError
        If k is outside of 1 to r, a weight is negative or not finite, or `floor` outside (0, 1].
    """
    rank = len(weights)
    check_rank("importance_sketch, k", k, rank)
    weights = weights.detach().double().cpu()
    if not (bool(torch.isfinite(weights).all()) and bool((weights >= 0).all()) and 0 < floor <= 1):
        hint = "slice_norms(b, a)"
        raise ArgumentError(complain("importance_sketch", expected="weights >= 0 and a floor in (0, 1]", actual=(weights.tolist(), floor), hint=hint))
    chances = inclusion(weights, k, floor)
    generator = key.generator()
    order = torch.randperm(rank, generator=generator)
    ends = chances[order].cumsum(0)
    # Chances add up to k but for rounding; the points u, u + 1, ... then fall into k different slices, none being longer than 1.
    ends[-1] = k
    points = torch.rand((), generator=generator, dtype=torch.float64) + torch.arange(k)
    indices = order[torch.searchsorted(ends, points, right=True)].sort().values
    return Drawn(indices, 1 / chances[indices])


def inclusion(weights: Tensor, k: int, floor: float) -> Tensor:
    """Return the chances of being among k, ``(r,)``: in proportion to the weights above the floor, at most 1, adding up to k."""
    rank, total = len(weights), float(weights.sum())
    shares = (1 - floor) * weights / total + floor / rank if total else torch.full_like(weights, 1 / rank)
    certain = torch.zeros(rank, dtype=torch.bool)
    while True:
        left = k - int(certain.sum())
        rest = shares.masked_fill(certain, 0.0)
        chances = torch.where(certain, 1.0, left * rest / rest.sum() if left else rest)
        if not bool(((chances >= 1) & ~certain).any()):
            return chances
        certain |= chances >= 1


def slice_norms(b: Tensor, a: Tensor) -> Tensor:
    """Return the Frobenius norm of every slice ``B e_j e_j^T A``, ``(r,)``: what leaving it out would change."""
    norms: Tensor = b.norm(dim=0) * a.norm(dim=1)
    return norms
