"""Couplings and fields of a Markov grid from what it should look like: calibration, and the M-step of EM.

A grid's density is not that of its chains, and has no closed form. Both tasks ask for the grid whose density and neighbour pairs have
given values (moment matching: for this exponential family that is maximum likelihood), found by Newton steps on exact sums over a patch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bayesfed.errors import ArgumentError, complain
from bayesfed.inference.sum_product.infer import infer
from bayesfed.inference.sum_product.result import Inferred
from bayesfed.models.random_fields.grid import Grid, Link
from bayesfed.models.random_fields.support_priors import MarkovGrid
from bayesfed.models.random_fields.transfer_matrix import Transfer

# Exact sums over a square patch with this side, read at its centre, stand for a large grid.
PATCH = 12
# |J| beyond which the density of a grid can hardly be steered any more, and message passing has been multistable for a while.
STRONGEST = 0.42
WIDE = 8


def even_grid(size: tuple[int, int], parameters: Tensor, arrangement: tuple[int, ...] | None = None) -> Grid:
    """Return the grid with parameters ``(3,)``: row and column coupling, and the log-odds of a variable whose neighbours balance."""
    row, column, pull = parameters.tolist()
    return Grid(size, Link(row, -row / 2, -row / 2), Link(column, -column / 2, -column / 2), pull, arrangement)


def parameters_of(grid: Grid) -> Tensor:
    """Return the parameters ``(3,)`` of a grid with even couplings and field, as `even_grid` takes them."""
    links = [[float(torch.as_tensor(value)) for value in link] for link in (grid.row, grid.column)]
    return torch.tensor([links[0][0], links[1][0], float(torch.as_tensor(grid.field)) + sum(map(sum, links))], dtype=torch.float64)


def moments(parameters: Tensor) -> Tensor:
    """Return P(s, right neighbour both 1), P(s, lower neighbour both 1) and P(s = 1) far from the border, ``(3,)``."""
    along, density = _middle_row(parameters)
    across = along if parameters[0] == parameters[1] else _middle_row(parameters[[1, 0, 2]])[0]
    return torch.stack([along, across, density])


def _middle_row(parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Return P(both 1) of neighbours and P(1) in the middle of an exact patch, which looks the same from above and from below."""
    size, middle = (PATCH + 1, PATCH), PATCH // 2
    whole = Transfer.of(even_grid(size, parameters), torch.zeros(1, *size), rows_down=True)
    transfer = Transfer(whole.unary[:, : middle + 1], whole.along, whole.across)
    above = transfer.forward[0]
    weights = above[-1] * transfer.step(above[-2], middle)
    row = (weights / weights.sum())[0]
    return row @ (transfer.bits[:, middle - 1] * transfer.bits[:, middle]), row @ transfer.bits[:, middle]


def newton(residual: Callable[[Tensor], Tensor], start: Tensor, steps: int, trust: float = 0.5) -> Tensor:
    """Solve ``residual(x) = 0`` from finite differences, no step longer than `trust` in any coordinate."""
    point = start
    for _ in range(steps):
        value = residual(point)
        if float(value.abs().max()) < 1e-9:
            break
        shifts = 1e-4 * torch.eye(len(point), dtype=point.dtype)
        slope = torch.stack([(residual(point + shift) - residual(point - shift)) / 2e-4 for shift in shifts], dim=1)
        move = -torch.linalg.lstsq(slope, value).solution
        point = point + move / max(1.0, float(move.abs().max()) / trust)
    return point


def calibrate(density: float, cluster_size: float) -> MarkovGrid:
    """Return the Markov grid with a wanted density and cluster size.

    Parameters
    ----------
    density
        Share of active weights under the prior, in (0, 1).
    cluster_size
        Mean number of active weights in a row, along a row or along a column, from one inactive weight to the next: ``1 / (1 - P(1 | neighbour is
        1))``. Independent weights have ``1 / (1 - density)``.

    Raises
    ------
    ArgumentError
        If no grid below the ordering threshold has that cluster size at that density; it says which are to be had.
    """
    if not (0 < density < 1 and math.isfinite(cluster_size) and cluster_size > 0):
        raise ArgumentError(
            complain("calibrate", expected="density in (0, 1) and a finite cluster_size", actual=(density, cluster_size), hint="calibrate(0.2, 1.6)")
        )
    lowest, highest = 1 / (1 - density), _run(_with_density(density, 4 * STRONGEST))
    if not lowest - 1e-9 <= cluster_size <= highest:
        raise ArgumentError(
            complain(
                f"calibrate(density={density:g})",
                expected=f"a cluster_size from {lowest:.3f} (independent) to {highest:.3f} (J = {STRONGEST})",
                actual=cluster_size,
                hint="a denser prior for larger clusters",
            )
        )
    low, high = 0.0, 4 * STRONGEST
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if _run(_with_density(density, middle)) < cluster_size else (low, middle)
    coupling, _, pull = _with_density(density, low).tolist()
    stay = 1 / (1 + math.exp(-coupling / 2))
    return MarkovGrid(stay, stay, pull)


def _with_density(density: float, coupling: float) -> Tensor:
    """Return the parameters of the grid with both couplings given and this density."""
    guess = math.log(density) - math.log1p(-density)

    def residual(pull: Tensor) -> Tensor:
        return moments(torch.tensor([coupling, coupling, float(pull)], dtype=torch.float64))[2:] - density

    low, high = (guess - 0.5, 0.0) if density < 0.5 else (0.0, guess + 0.5)
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if float(residual(torch.tensor(middle))) < 0 else (low, middle)
    return torch.tensor([coupling, coupling, (low + high) / 2], dtype=torch.float64)


def _run(parameters: Tensor) -> float:
    along, _, density = moments(parameters).tolist()
    return float(density / (density - along))


def maximise(grid: Grid, found: Inferred) -> Grid:
    """Do the M-step of EM: return the grid under whose prior density and pairs are expected to be what the posterior says they are.

    Parameters
    ----------
    grid
        The prior that `found` was inferred with; even couplings and field.
    found
        The E-step: marginals and pair marginals given the evidence.

    Notes
    -----
    Couplings are kept between 0 and 4 x 0.42: beyond that a grid's density cannot be controlled. Wide grids are matched away from their
    borders, where the prior's moments do not depend on the size; grids with a side below 8 as a whole.
    """
    small = min(grid.size) < WIDE

    def statistics(inferred: Inferred) -> Tensor:
        along, across = (table[..., 1, 1] for table in inferred.pair_marginals)
        ones = inferred.marginals.flatten().unflatten(0, (-1, *grid.size))
        keep = slice(None) if small else slice(2, -2)
        return torch.stack([values.double()[..., keep, keep].mean() for values in (along, across, ones)])

    wanted = statistics(found).cpu()

    def residual(parameters: Tensor) -> Tensor:
        kept = _kept(parameters)
        return (statistics(infer(even_grid(grid.size, kept), method="exact")) if small else moments(kept)) - wanted

    solved = _kept(newton(residual, parameters_of(grid), steps=4))
    return even_grid(grid.size, solved, grid.arrangement)


def _kept(parameters: Tensor) -> Tensor:
    return torch.cat([parameters[:2].clamp(0.0, 4 * STRONGEST), parameters[2:]])
