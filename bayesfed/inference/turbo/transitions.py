"""Couplings and fields of a Markov grid from its moments: calibration, and the M-step of EM.

The density of a grid is not that of its chains, and has no closed form. Both tasks ask for the grid
whose density and probabilities of neighbour pairs have given values: moment matching, which is
maximum likelihood in this exponential family. They use Newton steps on exact sums over a patch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked, number
from bayesfed.inference.sum_product.infer import infer
from bayesfed.inference.sum_product.result import Inferred
from bayesfed.models import Grid, Link, MarkovGrid
from bayesfed.models.random_fields.transfer_matrix import Transfer

# Side of the square patch whose centre stands for a large grid.
PATCH = 12
# Above this |J|, the field hardly controls the density of a grid; message passing is multistable
# well before.
STRONGEST = 0.42
# Grids with a smaller side are matched as a whole, without the patch.
WIDE = 8
# Longest step of a parameter.
TRUST = 0.5


def even_grid(
    size: tuple[int, int], parameters: Tensor, arrangement: tuple[int, ...] | None = None
) -> Grid:
    """Return the grid with the same couplings and fields everywhere.

    Parameters
    ----------
    size
        (K, M).
    parameters
        ``(3,)``: row coupling, column coupling, and the log-odds of a variable with as many
        neighbours on as off.
    arrangement
        How the evidence is arranged, as in `Grid`.
    """
    row, column, pull = parameters.tolist()
    return Grid(
        size,
        Link(row, -row / 2, -row / 2),
        Link(column, -column / 2, -column / 2),
        pull,
        arrangement,
    )


def parameters_of(grid: Grid) -> Tensor:
    """Return the parameters ``(3,)`` of a grid with even couplings, and with an even field behind
    the first row and column, where chains start, as `even_grid` takes them.
    """
    links = [[float(torch.as_tensor(value)) for value in link] for link in (grid.row, grid.column)]
    return torch.tensor(
        [
            links[0][0],
            links[1][0],
            grid.inner_field() + sum(map(sum, links)),
        ],
        dtype=torch.float64,
    )


def moments(parameters: Tensor) -> Tensor:
    """Return P(s and its right neighbour are 1), P(s and its lower neighbour are 1) and P(s = 1)
    far from the border, ``(3,)``.
    """
    along, density = _middle_row(parameters)
    across = along if parameters[0] == parameters[1] else _middle_row(parameters[[1, 0, 2]])[0]
    return torch.stack([along, across, density])


def _middle_row(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Return P(both 1) of row neighbours and P(1) in the middle of an exact patch, which is
    symmetric in up and down.
    """
    size, middle = (PATCH + 1, PATCH), PATCH // 2
    whole = Transfer.of(even_grid(size, parameters), torch.zeros(1, *size), rows_down=True)
    transfer = Transfer(whole.unary[:, : middle + 1], whole.along, whole.across)
    above = transfer.forward[0]
    weights = above[-1] * transfer.step(above[-2], middle)
    row = (weights / weights.sum())[0]
    return row @ (transfer.bits[:, middle - 1] * transfer.bits[:, middle]), row @ transfer.bits[
        :, middle
    ]


def newton(residual: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """Return x with ``residual(x) = 0``, by Newton steps with finite differences.

    Parameters
    ----------
    residual
        Function from ``(n,)`` to ``(m,)``.
    start
        ``(n,)``.
    steps
        Largest number of steps.
    """
    point = start
    for _ in range(steps):
        value = residual(point)
        if float(value.abs().max()) < 1e-9:
            break
        shifts = 1e-4 * torch.eye(len(point), dtype=point.dtype)
        slope = torch.stack(
            [(residual(point + shift) - residual(point - shift)) / 2e-4 for shift in shifts], dim=1
        )
        move = -torch.linalg.lstsq(slope, value).solution
        point = point + move / max(1.0, float(move.abs().max()) / TRUST)
    return point


@checked(density=number("(0, 1)", "0.2"), cluster_size=number("(0, inf)", "1.6"))
def calibrate(density: float, cluster_size: float) -> MarkovGrid:
    """Return the Markov grid with a wanted density and cluster size.

    Parameters
    ----------
    density
        Share of active weights under the prior, in (0, 1).
    cluster_size
        Mean length of a run of active weights along a row or a column:
        ``1 / (1 - P(1 | neighbour is 1))``. Independent weights have ``1 / (1 - density)``.

    Raises
    ------
    ArgumentError
        If no grid below the ordering threshold has that cluster size at that density; the message
        says which are possible.
    """
    lowest, highest = 1 / (1 - density), _run(_with_density(density, 4 * STRONGEST))
    if not lowest - 1e-9 <= cluster_size <= highest:
        raise ArgumentError(
            f"calibrate(density={density:g})",
            f"a cluster_size from {lowest:.3f} (independent) to {highest:.3f} (J = {STRONGEST})",
            cluster_size,
            f"cluster_size={(lowest + highest) / 2:.3f}",
        )
    low, _ = _bracket(
        lambda coupling: _run(_with_density(density, coupling)) < cluster_size, 0.0, 4 * STRONGEST
    )
    coupling, _, pull = _with_density(density, low).tolist()
    stay = 1 / (1 + math.exp(-coupling / 2))
    return MarkovGrid(stay, stay, pull)


def _with_density(density: float, coupling: float) -> Tensor:
    """Return the parameters of the grid with `coupling` in both directions and this density."""
    guess = math.log(density) - math.log1p(-density)

    def residual(pull: Tensor) -> Tensor:
        return (
            moments(torch.tensor([coupling, coupling, float(pull)], dtype=torch.float64))[2:]
            - density
        )

    ends = (guess - 0.5, 0.0) if density < 0.5 else (0.0, guess + 0.5)
    low, high = _bracket(lambda pull: float(residual(torch.tensor(pull))) < 0, *ends)
    return torch.tensor([coupling, coupling, (low + high) / 2], dtype=torch.float64)


def _bracket(below: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Halve an interval until it is no wider than 1e-6; `below` holds at its lower end."""
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return low, high


def _run(parameters: Tensor) -> float:
    along, _, density = moments(parameters).tolist()
    return float(density / (density - along))


def maximise(grid: Grid, inferred: Inferred) -> Grid:
    """Do the M-step of EM: return the grid whose prior has the posterior's density and
    probabilities of neighbour pairs.

    Parameters
    ----------
    grid
        The prior of the E-step; couplings and field are the same everywhere.
    inferred
        The result of the E-step: marginals and pair marginals given the evidence.

    Notes
    -----
    Couplings are kept between 0 and 4 x 0.42: above that, a grid's density cannot be controlled.
    Wide grids are matched away from their borders, where the prior's moments do not depend on the
    size; grids with a side below 8 as a whole.
    """
    small = min(grid.size) < WIDE

    def statistics(result: Inferred) -> Tensor:
        along, across = (table[..., 1, 1] for table in result.pair_marginals)
        ones = result.marginals.flatten().unflatten(0, (-1, *grid.size))
        keep = slice(None) if small else slice(2, -2)
        return torch.stack(
            [values.double()[..., keep, keep].mean() for values in (along, across, ones)]
        )

    wanted = statistics(inferred).cpu()

    def residual(parameters: Tensor) -> Tensor:
        kept = _kept(parameters)
        return (
            statistics(infer(even_grid(grid.size, kept), method="exact"))
            if small
            else moments(kept)
        ) - wanted

    solved = _kept(newton(residual, parameters_of(grid), steps=4))
    return even_grid(grid.size, solved, grid.arrangement)


def _kept(parameters: Tensor) -> Tensor:
    return torch.cat([parameters[:2].clamp(0.0, 4 * STRONGEST), parameters[2:]])
