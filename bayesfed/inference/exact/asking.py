"""What every party answers of its own log density: values, gradients and Hessians in coordinates
that the server chose, in which the posterior is about a standard Gaussian.

A question has, for each of B starts or components, a `centre` u and a `basis` S, and J candidates
with `shift` and `scale`: a point z stands for ``u + S (shift + scale z)``. Answers add up over
parties.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import torch
from torch import Tensor
from torch.func import grad, jacrev, vmap

from bayesfed.inference.exact import points
from bayesfed.trees import Tree

Density = Callable[[Tensor], Tensor]
# What torch raises of a matrix that cannot be factored.
SINGULAR: type[RuntimeError] = vars(torch.linalg)["LinAlgError"]
# What stands for minus infinity in a sum; and rows times values that are worked on at once.
LOWEST, AT_ONCE = -1e12, 4_000_000


def many(density: Density, rows: int) -> Density:
    """Return the log density of a batch of points, ``(n, d) -> (n,)``.

    It is the vectorised one where that agrees with a single point, at the largest value.
    """
    whole = vmap(density, chunk_size=max(1, AT_ONCE // max(rows, 1)))

    def values(batch: Tensor) -> Tensor:
        with suppress(RuntimeError, ValueError):
            found = whole(batch)
            best = int(sound(found).argmax())
            alone = density(batch[best])
            if torch.allclose(found[best], alone, rtol=1e-9, atol=1e-9, equal_nan=True):
                return found
        return torch.stack([_tried(density, point) for point in batch])

    return values


def _tried(density: Density, point: Tensor) -> Tensor:
    """Return a log density, minus infinity where a matrix cannot be factored."""
    try:
        return density(point)
    except SINGULAR:
        return torch.tensor(-torch.inf, dtype=torch.float64)


def derivatives(density: Density, batch: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return gradients ``(n, d)`` and Hessians ``(n, d, d)`` at points. Reverse over reverse:
    forward mode through `linalg.solve` under `vmap` is wrong without a word.
    """
    first = grad(density)
    size = max(1, AT_ONCE // max(rows * batch.shape[1], 1))
    both = vmap(jacrev(lambda point: (first(point),) * 2, has_aux=True), chunk_size=size)
    try:
        hessians, slopes = both(batch)
    except (RuntimeError, ValueError):
        slopes, hessians = map(
            torch.stack, zip(*(_alone(density, at) for at in batch), strict=True)
        )
    return slopes, hessians


def _alone(density: Density, point: Tensor) -> tuple[Tensor, Tensor]:
    try:
        hessian = torch.autograd.functional.hessian(density, point)
        leaf = point.clone().requires_grad_(True)
        (slope,) = torch.autograd.grad(density(leaf), leaf)
    except SINGULAR:
        slope, hessian = torch.zeros_like(point), torch.zeros(len(point), len(point)).to(point)
    return slope, hessian


def places(question: Tree, batch: Tensor) -> Tensor:
    """Return where points ``(n, d)`` are for all candidates of all starts, ``(B, J, n, d)``."""
    inner = question["shift"][:, :, None] + question["scale"][:, :, None] * batch
    return question["centre"][:, None, None] + inner @ question["basis"][:, None].mT


def reply(density: Density, question: Tree, smooth: bool, rows: int) -> Tree:
    """Return, for each start, the log density at the centre, ``level`` (B, 2), in two parts of 32
    bits; what candidates' mean log density is more than that, ``value`` (B, J); and the derivatives
    at the first candidate: ``slope`` (B, R, d), of each replicate, and the triangle of ``curve``,
    (B, d (d + 1) / 2).

    Parameters
    ----------
    density
        The party's log density at one point.
    question
        See above.
    smooth
        Whether means are over the Gaussian's points; if not, the points are the candidates
        themselves.
    rows
        Number of rows, for the size of what is worked on at once.
    """
    starts, _, size = question["shift"].shape
    batch = points.replicates(size) if smooth else torch.zeros(1, size, dtype=torch.float64)
    low, high = torch.tril_indices(size, size)
    where, basis = places(question, batch), question["basis"]
    found = many(density, rows)(torch.cat([question["centre"], where.reshape(-1, size)]))
    base, level = split(found[:starts])
    rises = sound(found[starts:].reshape(starts, -1) - base[:, None])
    slopes, curves = derivatives(density, where[:, 0].reshape(-1, size), rows)
    curve = basis.mT @ curves.reshape(starts, -1, size, size).mean(1) @ basis
    replicates = points.REPLICATES if smooth else 1
    return {
        "level": level,
        "value": rises.reshape(starts, -1, len(batch)).mean(2),
        "slope": finite((slopes.reshape(starts, replicates, -1, size).mean(2)) @ basis),
        "curve": finite(curve[:, low, high]),
    }


def importance(density: Density, question: Tree, counts: list[int], seed: int, rows: int) -> Tree:
    """Return the log density at the points of all components, less that at the first centre,
    ``value`` (n,), and that one in two parts of 32 bits, ``level`` (2,).
    """
    where = proposed(question, counts, seed)
    found = many(density, rows)(torch.cat([question["centre"][:1], where]))
    base, level = split(found[0] if found[0].isfinite() else sound(found).max())
    return {"value": sound(found[1:] - base), "level": level}


def proposed(question: Tree, counts: list[int], seed: int) -> Tensor:
    """Return the points of an importance round, component after component."""
    size = question["centre"].shape[1]
    each = [points.student(count, size, seed + number) for number, count in enumerate(counts)]
    inner = [
        batch * basis if basis.ndim == 1 else batch @ basis.T
        for batch, basis in zip(each, question["basis"], strict=True)
    ]
    return torch.cat([c + part for c, part in zip(question["centre"], inner, strict=True)])


def split(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return log densities, never below the lowest, and each in two parts of 32 bits, (..., 2)."""
    base = sound(value)
    coarse = base.float().double()
    return base, torch.stack([coarse, base - coarse], -1)


def sound(values: Tensor) -> Tensor:
    """Return differences of log densities, with a very low number for those that are not finite."""
    return values.nan_to_num(LOWEST, LOWEST, LOWEST).clamp(LOWEST, -LOWEST)


def finite(leaf: Tensor) -> Tensor:
    """Return derivatives without what is not finite or too large to be sent."""
    return leaf.nan_to_num(0.0, 0.0, 0.0).clamp(LOWEST, -LOWEST)
