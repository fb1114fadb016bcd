"""Curves of accuracy against what was spent: what was reached within a budget, and what an accuracy
cost.
"""

from __future__ import annotations

from collections.abc import Sequence

Curve = Sequence[tuple[float, float]]


def within(curve: Curve, budget: float) -> float:
    """Return the best accuracy reached with at most this budget; 0 before the first round."""
    return max((accuracy for spent, accuracy in curve if spent <= budget), default=0.0)


def reached(curve: Curve, goal: float) -> float | None:
    """Return what had been spent when an accuracy was first reached, None if it never was."""
    return next((spent for spent, accuracy in curve if accuracy >= goal), None)


def above(ours: Curve, theirs: Curve, start: float) -> float:
    """Return the smallest lead over the budgets from `start` to the last of ours, at every point
    where either curve moves.
    """
    end = ours[-1][0]
    budgets = [start, *(spent for spent, _ in (*ours, *theirs) if start <= spent <= end)]
    return min(within(ours, budget) - within(theirs, budget) for budget in budgets)
