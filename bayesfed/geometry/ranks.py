"""How large a rank: for one layer, and for the layers of a network that share a budget.

A matrix ``M x N`` of rank R is stored as two factors, ``R (M + N)`` numbers, and has ``(M + N - R) R`` degrees of freedom, what a gauge-fixed
tangent sends. Both are counted; the ratio is numbers kept over numbers dense, in (0, 1]. Energies are squares of singular values: what a
truncation loses of the squared Frobenius norm. No rule returns 0 or more than min(M, N), so a ratio too small for rank 1 is exceeded.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, complain
from bayesfed.geometry.thin import check_rank

Count = Literal["factors", "freedom"]


def numbers(shape: tuple[int, int], rank: int, count: Count = "factors") -> int:
    """Count the numbers of a matrix of some rank.

    Parameters
    ----------
    shape
        M and N.
    count
        "factors": ``R (M + N)``, stored; "freedom": ``(M + N - R) R``, the manifold's dimension.

    Raises
    ------
    ArgumentError
        If the rank is outside 1 to min(M, N), or the count is neither.
    """
    check_rank("numbers", rank, min(shape))
    if count not in ("factors", "freedom"):
        raise ArgumentError(complain("numbers", expected="'factors' or 'freedom'", actual=repr(count), hint="'factors'"))
    return rank * (sum(shape) - (rank if count == "freedom" else 0))


def largest_rank(shape: tuple[int, int], ratio: float, count: Count = "factors") -> int:
    """Return the largest rank whose numbers are at most `ratio` of M N, and 1 at least.

    Raises
    ------
    ArgumentError
        If the ratio is outside (0, 1], the shape has no entry, or the count is neither.
    """
    _check_ratio("largest_rank", ratio)
    check_rank("largest_rank", 1, min(shape))
    low, high = 1, min(shape)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if numbers(shape, middle, count) <= ratio * shape[0] * shape[1] else (low, middle - 1)
    return low


def uniform_ranks(shapes: Mapping[str, tuple[int, int]], ratio: float, count: Count = "factors") -> dict[str, int]:
    """Give every layer the largest rank that keeps it within the ratio: the same compression everywhere.

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
        Share of the sum of squares, in [0, 1); 0 keeps every value that is not zero. Sums run from the smallest value up, so that
        a loss below the rounding of the sum still counts.

    Raises
    ------
    ArgumentError
        If the loss is outside [0, 1), or the values are not k finite numbers, 0 or more.
    """
    if not 0 <= loss < 1:
        raise ArgumentError(complain("energy_rank", expected="a loss in [0, 1)", actual=loss, hint="0.01"))
    energies = _energies("energy_rank", values)
    lost = energies.flip(0).cumsum(0)
    return max(1, len(energies) - int((lost <= loss * lost[-1]).sum()))


def energy_ranks(spectra: Mapping[str, Tensor], loss: float) -> dict[str, int]:
    """Give every layer the smallest rank that loses at most the share `loss` of its own energy, whatever that costs.

    Raises
    ------
    ArgumentError
        As `energy_rank`.
    """
    return {name: energy_rank(values, loss) for name, values in spectra.items()}


def greedy_ranks(shapes: Mapping[str, tuple[int, int]], spectra: Mapping[str, Tensor], ratio: float, count: Count = "factors") -> dict[str, int]:
    """Spend one budget for all layers where it buys most: from rank 1 everywhere, add the direction of the most energy per number.

    Within a layer energies descend and, for "factors", each direction costs the same: until one does not fit, no other choice of as many numbers
    keeps more energy. A direction that does not fit closes its layer, and the others go on.
    Layers are compared by their energies as given: scale a layer's singular values to make it count for more or less.

    Parameters
    ----------
    shapes
        M and N by layer.
    spectra
        Singular values ``(k,)`` by layer, in any order; what is beyond k counts as 0 and is never added.
    ratio
        Numbers of all layers together over their dense numbers, in (0, 1].

    Raises
    ------
    ArgumentError
        If the names differ, a spectrum has more values than min(M, N), or as `largest_rank` and `energy_rank`.
    """
    _check_ratio("greedy_ranks", ratio)
    if shapes.keys() != spectra.keys():
        raise ArgumentError(complain("greedy_ranks", expected=f"spectra of {sorted(shapes)}", actual=sorted(spectra), hint="one for each layer"))
    energies = {name: _energies(f"greedy_ranks, {name!r}", values).tolist() for name, values in spectra.items()}
    for name, shape in shapes.items():
        check_rank(f"greedy_ranks, singular values of {name!r}", len(energies[name]), min(shape))
    ranks = dict.fromkeys(shapes, 1)
    left = ratio * sum(rows * columns for rows, columns in shapes.values()) - sum(numbers(shape, 1, count) for shape in shapes.values())

    def price(name: str) -> int:
        return numbers(shapes[name], ranks[name] + 1, count) - numbers(shapes[name], ranks[name], count)

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
        raise ArgumentError(complain(where, expected="a ratio in (0, 1]", actual=ratio, hint="1 / 16"))


def _energies(where: str, values: Tensor) -> Tensor:
    """Return the squares, descending, in 64 bits."""
    if values.ndim != 1 or not values.numel() or not bool((torch.isfinite(values) & (values >= 0)).all()):
        raise ArgumentError(complain(where, expected="finite singular values (k,), 0 or more", actual=tuple(values.shape), hint="svdvals"))
    return values.double().sort(descending=True).values.square()
