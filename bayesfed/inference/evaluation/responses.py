"""Scores of numbers, counts and times by draws of them from a predictive distribution, and of
several labels a row. S draws, B rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked
from bayesfed.inference.evaluation.scoring import coverage
from bayesfed.keys import Key

LEVELS = (0.5, 0.8, 0.95)
# Least number of draws of targets for scores of numbers other than their intervals.
LEAST = 100
# Scores of some of the rows, by name.
OfRows = Callable[[slice], dict[str, float]]


@checked()
def crps(draws: Tensor, targets: Tensor) -> Tensor:
    """Return the continuous ranked probability score of each row, ``(B,)``, in the units of the
    targets: ``E |y' - y| - 1/2 E |y' - y''|``, without bias at any number of draws (the fair score;
    Ferro, 2014).

    Parameters
    ----------
    draws
        ``(S, B)`` with S >= 2, drawn independently from p(y | x, D).
    targets
        ``(B,)``.

    Raises
    ------
    ArgumentError
        If shapes do not fit, a number is not finite, or there is one draw.
    """
    _drawn("crps", draws, targets)
    count = len(draws)
    ranks = 2 * torch.arange(count, device=draws.device) + 1 - count
    spread = (ranks[:, None] * draws.sort(dim=0).values).sum(0) / (count * (count - 1))
    return (draws - targets).abs().mean(0) - spread


@checked()
def randomised_pit(draws: Tensor, targets: Tensor, key: Key, seen: Tensor | None = None) -> Tensor:
    """Return the randomised probability integral transform of each row, ``(B,)``: uniform on (0, 1)
    if targets and draws have one distribution, also of counts (Czado, Gneiting and Held, 2009) and
    of censored times.

    Parameters
    ----------
    draws
        ``(S, B)`` with S >= 2, drawn independently from p(y | x, D).
    targets
        ``(B,)``.
    key
        Names the uniform numbers.
    seen
        ``(B,)``, whether a target is itself, or a number that it is larger than (censored).
        Default: all are.

    Raises
    ------
    ArgumentError
        If shapes do not fit, a number is not finite, or there is one draw.
    """
    _drawn("randomised_pit", draws, targets)
    below, ties = (draws < targets).sum(0), (draws == targets).sum(0)
    if seen is not None:
        below = torch.where(seen, below, below + ties)
        ties = torch.where(seen, ties, len(draws) - below)
    uniform = torch.rand(targets.shape, generator=key.generator(), dtype=torch.float64)
    return (below + uniform.to(below.device) * (ties + 1)) / (len(draws) + 1)


def _drawn(where: str, draws: Tensor, targets: Tensor) -> None:
    if (
        draws.ndim != 2
        or len(draws) < 2
        or targets.shape != draws.shape[1:]
        or not (draws.isfinite().all() and targets.isfinite().all())
    ):
        expected = "finite draws (S, B), two or more, and targets (B,)"
        actual = f"{tuple(draws.shape)} and {tuple(targets.shape)}"
        raise ArgumentError(where, expected, actual, "Predictive.draws(key, 100), if finite")


def of_labels(shares: Tensor, targets: Tensor) -> OfRows:
    """Return what scores labels that rows have or not, means over rows and labels, of probabilities
    ``(B, K)``.
    """
    squares, right = (shares - targets).square(), (shares > 0.5) == (targets > 0.5)
    return lambda rows: {
        "brier": float(squares[rows].mean()),
        "accuracy": float(right[rows].double().mean()),
    }


def of_times(draws: Tensor, targets: Tensor, key: Key) -> OfRows:
    """Return what gives the coverage of times that may be censored, of draws ``(S, B)`` and targets
    ``(B, 2)``.
    """
    pit = randomised_pit(draws, targets[:, 0], key, targets[:, 1] > 0)
    return lambda rows: _covered(pit[rows], len(draws))


def of_numbers(drawn: Tensor, many: Tensor, mean: Tensor, targets: Tensor, key: Key) -> OfRows:
    """Return what scores numbers.

    Parameters
    ----------
    drawn, many
        Draws of the targets, ``(S, B, ...)``: one for each draw of the parameters, for intervals;
        and at least `LEAST`.
    mean, targets
        ``(B, ...)``.
    key
        Names uniform numbers.
    """
    flat, values = many.reshape(len(many), -1), targets.flatten()
    by_row, squares = crps(flat, values).reshape(targets.shape), (mean - targets).square()
    pit = randomised_pit(flat, values, key).reshape(targets.shape)
    counts = bool((many == many.round()).all())

    def of_rows(rows: slice) -> dict[str, float]:
        found = {"rmse": math.sqrt(float(squares[rows].mean()))}
        if counts:
            found |= _covered(pit[rows], len(many))
        elif levels := _levels(len(drawn)):
            shares = coverage(drawn[:, rows].flatten(1), targets[rows].flatten(), levels)
            found |= {
                _named(level): float(share) for level, share in zip(levels, shares, strict=True)
            }
        return found | {"crps": float(by_row[rows].mean())}

    return of_rows


def _covered(pit: Tensor, draws: int) -> dict[str, float]:
    """Return the coverage of central intervals: shares of values of the transform in the middle."""
    away = (pit - 0.5).abs()
    return {_named(level): float((away <= level / 2).double().mean()) for level in _levels(draws)}


def _named(level: float) -> str:
    return f"coverage_{round(100 * level)}"


def _levels(draws: int) -> list[float]:
    """Return the levels for which there are enough draws."""
    return [level for level in LEVELS if level <= (draws - 1) / (draws + 1) + 1e-9]
