"""Two ways in which a grid differs from its chains, and the warnings about them: it may order as a
whole, and it may have another density.
"""

from __future__ import annotations

import math
import warnings

from bayesfed.errors import DensityWarning, OrderingWarning
from bayesfed.models.random_fields.grid import Grid

# tanh(J) = 1/3: from here on, loopy belief propagation on a 4-neighbour grid has a second fixed
# point.
BETHE_THRESHOLD = math.atanh(1 / 3)
# sinh(2 J) = 1: from here on, the infinite grid itself is ordered (Onsager).
ONSAGER_THRESHOLD = math.asinh(1.0) / 2


def warn_if_ordering(strengths: tuple[float, float]) -> None:
    """Warn if the couplings of rows and columns, in spin units, are too strong for a single
    phase.
    """
    # A chain never orders, so both directions need a coupling; on a grid their mean decides.
    if min(strengths) == 0 or (mean := sum(strengths) / 2) <= BETHE_THRESHOLD:
        return
    beyond = (
        "the grid itself is ordered"
        if mean > ONSAGER_THRESHOLD
        else "message passing is multistable"
    )
    warnings.warn(
        f"MarkovGrid: coupling J = {mean:.3f} exceeds {BETHE_THRESHOLD:.3f} (stay "
        f"probability 2/3): {beyond}, so whole layers "
        "tend to switch on or off together and inclusion probabilities are overconfident; "
        "try a stay probability of at most 0.65",
        OrderingWarning,
        stacklevel=3,
    )


def warn_if_density_differs(grid: Grid, chains: float) -> None:
    """Warn if a grid's density is further than 0.1 from that of its chains."""
    if min(grid.size) == 1 or abs((density := bulk_density(grid)) - chains) <= 0.1:
        return
    warnings.warn(
        f"MarkovGrid: the chains are active {chains:.3g} of the time, but the grid they "
        f"make has density {density:.3g}: each weight hears four "
        "neighbours; try calibrate(density, cluster_size), which chooses field and "
        "coupling of the grid itself",
        DensityWarning,
        stacklevel=3,
    )


def bulk_density(grid: Grid) -> float:
    """Return the prior density far from the borders of a grid with even couplings and field, as
    belief propagation estimates it.
    """
    (row, row_field), (column, column_field) = (
        (min(300.0, float(link.coupling) / 2), float(sum(link))) for link in (grid.row, grid.column)
    )
    pull, along, across = grid.inner_field() + row_field + column_field, 0.0, 0.0

    def agree(x: float, half: float) -> float:
        x = min(max(x, -300.0), 300.0)
        return math.log((math.exp(x + half) + 1) / (math.exp(x) + math.exp(half)))

    for _ in range(500):
        along, across = (
            agree(pull + along + 2 * across, row),
            agree(pull + 2 * along + across, column),
        )
    return 1 / (1 + math.exp(min(300.0, -(pull + 2 * along + 2 * across))))
