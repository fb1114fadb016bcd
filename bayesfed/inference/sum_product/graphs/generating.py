"""Grids of bits made from a rule: a few numbers at any size."""

from __future__ import annotations

import math

from bayesfed.models.random_fields.grid import Grid, Link, Number
from bayesfed.models.random_fields.support_priors import Transition

Rule = float | Transition | Link


def lattice(
    size: tuple[int, int],
    row: Rule,
    column: Rule,
    field: Number,
    arrangement: tuple[int, ...] | None,
) -> tuple[Grid, float]:
    """Return the grid of `FactorGraph.grid`, and the log constant that it leaves out.

    Parameters
    ----------
    size, row, column, field
        As in `FactorGraph.grid`.
    arrangement
        Shape of the evidence; None for `size`.
    """
    (along, first), (across, second) = _link(row), _link(column)
    grid = Grid(size, along, across, field, arrangement)
    rows, columns = size
    return grid, grid.copies * (rows * (columns - 1) * first + (rows - 1) * columns * second)


def _link(rule: Rule) -> tuple[Link, float]:
    """Return the link of a rule, and the log weight of two zeros, which links leave out."""
    if isinstance(rule, Link):
        return rule, 0.0
    chain = rule if isinstance(rule, Transition) else Transition(rule, rule)
    return Link(*chain.terms()), math.log(chain.off)
