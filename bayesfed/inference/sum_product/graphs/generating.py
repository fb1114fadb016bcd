"""Graphs of bits made from a rule: grids, which are a few numbers at any size, and forests, which
are edge lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.inference.sum_product.graphs.lowering import edge_list
from bayesfed.inference.sum_product.graphs.networks import refuse
from bayesfed.models.random_fields.grid import Grid, Link, Number
from bayesfed.models.random_fields.ising import Ising
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


def forest(parents: Sequence[int], transition: Rule) -> tuple[Ising, float]:
    """Return the forest of `FactorGraph.tree`, whose arguments it takes, and the log constant that
    the forest leaves out.

    Raises
    ------
    ArgumentError
        If the parents or the transition are not as documented there.
    """
    above: NDArray[Any] = np.asarray(parents)
    if (
        above.ndim != 1
        or not above.size
        or above.dtype.kind not in "iu"
        or not -1 <= above.min() <= above.max() < len(above)
    ):
        refuse(
            "tree.parents",
            expected="for each of n variables -1 or a number below n",
            actual=parents,
            hint="[-1, 0, 0, 1]",
        )
    # Node n is the parent of the roots. Every round doubles how far up a variable points.
    reach = np.append(np.where(above < 0, len(above), above), len(above))
    for _ in range(len(above).bit_length()):
        reach = reach[reach]
    if (reach < len(above)).any():
        circle = int(np.flatnonzero(reach[:-1] < len(above))[0])
        refuse(
            "tree.parents",
            expected="a root above every variable",
            actual=f"a circle above {circle}",
            hint="-1 for roots",
        )
    link, constant = _link(transition)
    if any(
        (isinstance(value, Tensor) and value.ndim) or not math.isfinite(value) for value in link
    ):
        refuse(
            "tree.transition",
            expected="one finite table for all",
            actual=link,
            hint="FactorGraph.pairwise for couplings that differ",
        )
    child = np.flatnonzero(above >= 0)
    parent: NDArray[np.int64] = above[child].astype(np.int64)
    coupling, source, target = (np.full(len(child), float(value)) for value in link)
    field = np.zeros(len(above))
    for ends, value in ((parent, source), (child, target)):
        field += np.bincount(ends, value, len(above))
    return edge_list(field, np.stack([parent, child], axis=1), coupling), len(child) * constant


def _link(rule: Rule) -> tuple[Link, float]:
    """Return the link of a rule, and the log weight of two zeros, which links leave out."""
    if isinstance(rule, Link):
        return rule, 0.0
    chain = rule if isinstance(rule, Transition) else Transition(rule, rule)
    return Link(*chain.terms()), math.log(chain.off)
