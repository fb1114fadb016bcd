"""Rules for ranks: of one layer, and of the layers of a network that share a budget.

A matrix ``M x N`` of rank R is stored as two factors, ``R (M + N)`` numbers. It has
``(M + N - R) R`` degrees of freedom, the length of a gauge-fixed tangent. Either can be counted. A
ratio is the count over the M N numbers of the dense matrix, in (0, 1]. Energies are squares of
singular values: a truncation loses their sum from the squared Frobenius norm. Ranks are from 1 to
min(M, N), so a ratio too small for rank 1 is exceeded.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.geometry.thin import check_rank

Count = Literal["factors", "freedom"]


def numbers(shape: tuple[int, int], rank: int, count: Count = "factors") -> int:
    """Return how many numbers describe a matrix of rank R.

    Parameters
    ----------
    shape
        M and N.
    rank
        R.
    count
        "factors": ``R (M + N)``, the numbers stored; "freedom": ``(M + N - R) R``, the dimension of
        the manifold.

    Raises
    ------
    ArgumentError
        If the rank is not from 1 to min(M, N), or the count is unknown.
    """
    check_rank("numbers", rank, min(shape))
    if count not in ("factors", "freedom"):
        raise ArgumentError("numbers", "'factors' or 'freedom'", repr(count), "'factors'")
    return rank * (sum(shape) - (rank if count == "freedom" else 0))


def largest_rank(shape: tuple[int, int], ratio: float, count: Count = "factors") -> int:
    """Return the largest rank whose `numbers` are at most `ratio` times M N, but at least 1.

    Parameters
    ----------
    shape
        M and N.
    ratio
        In (0, 1].
    count
        As in `numbers`.

    Raises
    ------
    ArgumentError
        If the ratio is not in (0, 1], the shape is empty, or the count is unknown.
    """
    _check_ratio("largest_rank", ratio)
    check_rank("largest_rank", 1, min(shape))
    low, high = 1, min(shape)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high)
            if numbers(shape, middle, count) <= ratio * shape[0] * shape[1]
            else (low, middle - 1)
        )
    return low


def uniform_ranks(
    shapes: Mapping[str, tuple[int, int]], ratio: float, count: Count = "factors"
) -> dict[str, int]:
    """Return for every layer the largest rank that keeps it within the ratio: the same compression
    everywhere.

    Parameters
    ----------
    shapes
        M and N by layer.
    ratio, count
        As in `largest_rank`.

    Raises
    ------
    ArgumentError
        As `largest_rank`.
    """
    return {name: largest_rank(shape, ratio, count) for name, shape in shapes.items()}


def energy_rank(values: Tensor, loss: float) -> int:
    """Return the smallest rank, at least 1, that loses at most the share `loss` of the energy.

    Parameters
    ----------
    values
        Singular values ``(k,)``, in any order.
    loss
        Share of the sum of squares, in [0, 1); 0 keeps every value that is not zero. Sums start at
        the smallest value, so that a loss below the rounding of the whole sum still counts.

    Raises
    ------
    ArgumentError
        If the loss is not in [0, 1), or the values are not k finite numbers, 0 or more.
    """
    if not 0 <= loss < 1:
        raise ArgumentError("energy_rank", "a loss in [0, 1)", loss, "0.01")
    energies = _energies("energy_rank", values)
    lost = energies.flip(0).cumsum(0)
    return max(1, len(energies) - int((lost <= loss * lost[-1]).sum()))


def energy_ranks(spectra: Mapping[str, Tensor], loss: float) -> dict[str, int]:
    """Return for every layer the smallest rank that loses at most the share `loss` of its own
    energy, without a limit on numbers.

    Parameters
    ----------
    spectra
        Singular values ``(k,)`` by layer.
    loss
        As in `energy_rank`.

    Raises
    ------
    ArgumentError
        As `energy_rank`.
    """
    return {name: energy_rank(values, loss) for name, values in spectra.items()}


def greedy_ranks(
    shapes: Mapping[str, tuple[int, int]],
    spectra: Mapping[str, Tensor],
    ratio: float,
    count: Count = "factors",
) -> dict[str, int]:
    """Return ranks that spend one budget for all layers: from rank 1 everywhere, repeatedly add the
    direction with the most energy per number.

    Within a layer energies descend and, for "factors", each direction costs the same. Until a
    direction does not fit, no other choice of as many numbers therefore keeps more energy. A
    direction that does not fit closes its layer, and the other layers go on. Energies of different
    layers are compared as given: scale a layer's singular values to give it more or less weight.

    Parameters
    ----------
    shapes
        M and N by layer.
    spectra
        Singular values ``(k,)`` by layer, in any order; further values count as 0, and their
        directions are never added.
    ratio
        Numbers of all layers together over their dense numbers, in (0, 1].
    count
        As in `numbers`.

    Raises
    ------
    ArgumentError
        If the names differ, a spectrum has more values than min(M, N), or as `largest_rank` and
        `energy_rank`.
    """
    _check_ratio("greedy_ranks", ratio)
    if shapes.keys() != spectra.keys():
        raise ArgumentError(
            "greedy_ranks", f"spectra of {sorted(shapes)}", sorted(spectra), "one for each layer"
        )
    energies = {
        name: _energies(f"greedy_ranks, {name!r}", values).tolist()
        for name, values in spectra.items()
    }
    for name, shape in shapes.items():
        check_rank(f"greedy_ranks, singular values of {name!r}", len(energies[name]), min(shape))
    ranks = dict.fromkeys(shapes, 1)
    left = ratio * sum(rows * columns for rows, columns in shapes.values()) - sum(
        numbers(shape, 1, count) for shape in shapes.values()
    )

    def price(name: str) -> int:
        return numbers(shapes[name], ranks[name] + 1, count) - numbers(
            shapes[name], ranks[name], count
        )

    def offer(name: str) -> list[tuple[float, str]]:
        gain = energies[name][ranks[name]] if ranks[name] < len(energies[name]) else 0.0
        return [(-gain / price(name), name)] if gain > 0 else []

    heap = [entry for name in shapes for entry in offer(name)]
    heapq.heapify(heap)
    while heap:
        _, name = heapq.heappop(heap)
        if price(name) <= left:
            left -= price(name)
            ranks[name] += 1
            for entry in offer(name):
                heapq.heappush(heap, entry)
    return ranks


def _check_ratio(where: str, ratio: float) -> None:
    if not 0 < ratio <= 1:
        raise ArgumentError(where, "a ratio in (0, 1]", ratio, "1 / 16")


def _energies(where: str, values: Tensor) -> Tensor:
    """Return the squares of singular values, descending, in 64 bits."""
    if (
        values.ndim != 1
        or not values.numel()
        or not bool((torch.isfinite(values) & (values >= 0)).all())
    ):
        raise ArgumentError(
            where, "finite singular values (k,), 0 or more", tuple(values.shape), "svdvals"
        )
    return values.double().sort(descending=True).values.square()
