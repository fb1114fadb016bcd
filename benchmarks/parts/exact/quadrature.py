"""Quadrature over the scales of a hierarchy, and what its models are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor

from bayesfed.data import Dataset

# Mean and sd of every entry of a site's values, in order; own ones of all clients together.
Moments = dict[str, tuple[Tensor, Tensor]]
# Least and largest log sd of the first grid.
WIDE = (-7.0, 4.0)
# Least density of a log sd, of its largest, that a grid reaches; sds by which moments of every
# other step may be off, those of all steps being off by far less.
KEPT, COARSE = 1e-6, 0.02


class Hierarchy(NamedTuple):
    """A model, the rows of every site, and what is known."""

    model: Callable[..., Any]
    clients: dict[str, Dataset]
    shared: Moments
    own: Moments


class Linear(NamedTuple):
    """A Gaussian model given log sds: rows ``y = columns @ w + noise``, w with means zero.

    Parameters
    ----------
    columns, y
        ``(n, p)``, ``(n,)``; both divided by known sds of rows, where they are known.
    names
        Each w's site and number, in the order of columns.
    fixed
        Sds of w that are known by site; others are a log sd of the grid of that name.
    noise
        Name of the log sd of rows; empty for 1.
    sds
        By name of each sd: its log prior density at a sd.
    """

    columns: Tensor
    y: Tensor
    names: list[str]
    fixed: dict[str, float]
    noise: str
    sds: dict[str, Callable[[Tensor], Tensor]]

    def moments(self, scale_of: Mapping[str, str], steps: int) -> Moments:
        """Return means and sds of all w by site and of the sds, by a grid of so many steps each,
        after two of half as many that find where the mass is.

        Raises
        ------
        ValueError
            If every other step of the grid gives other moments: it is too coarse.
        """
        low, high = ([bound] * len(self.sds) for bound in WIDE)
        for number in (steps // 2, steps // 2, steps):
            axes = [
                torch.linspace(a, b, number, dtype=torch.float64)
                for a, b in zip(low, high, strict=True)
            ]
            grid = torch.cartesian_prod(*axes).reshape(-1, len(axes))
            found = [self._at(part, scale_of) for part in grid.split(200)]
            logs, means, variances = (torch.cat(leaves) for leaves in zip(*found, strict=True))
            share = torch.softmax(logs, 0).reshape([number] * len(axes))
            for k, axis in enumerate(axes):
                along = share.movedim(k, 0).reshape(number, -1).sum(1)
                kept, step = axis[along > KEPT * along.max()], float(axis[1] - axis[0])
                low[k], high[k] = float(kept[0]) - step, float(kept[-1]) + step
        every = torch.zeros_like(share)
        every[(slice(None, None, 2),) * len(axes)] = 1.0
        each = grid.exp(), torch.zeros_like(grid)
        both = [torch.cat(pair, 1) for pair in zip((means, variances), each, strict=True)]
        (mean, sd), coarse = (
            weighted(part.reshape(-1) / part.sum(), *both) for part in (share, share * every)
        )
        off = torch.stack([mean - coarse[0], sd - coarse[1]]).abs() / sd
        if not bool((off < COARSE).all()):
            raise ValueError(f"a grid of {steps} steps is too coarse")
        sites = [*self.names, *self.sds]
        made = Moments()
        for name in dict.fromkeys(sites):
            places = [k for k, other in enumerate(sites) if other == name]
            made[name] = mean[places], sd[places]
        return made

    def _at(self, logs: Tensor, scale_of: Mapping[str, str]) -> tuple[Tensor, Tensor, Tensor]:
        sds = dict(zip(self.sds, logs.exp().T, strict=True))
        one = torch.ones(len(logs), dtype=torch.float64)
        noise = sds[self.noise] if self.noise else one
        scale = torch.stack(
            [
                self.fixed[name] * one if name in self.fixed else sds[scale_of[name]]
                for name in self.names
            ],
            1,
        )
        precision = (self.columns.T @ self.columns) / noise[:, None, None].square()
        precision = precision + torch.diag_embed(scale**-2)
        root = torch.linalg.cholesky(precision)
        right = (self.columns.T @ self.y) / noise[:, None].square()
        mean = torch.cholesky_solve(right[..., None], root)[..., 0]
        fit = self.y.square().sum() / noise.square() - (mean * right).sum(1)
        total = -len(self.y) * noise.log() - scale.log().sum(1) - fit / 2
        total = total - root.diagonal(dim1=1, dim2=2).log().sum(1)
        for name, prior in self.sds.items():
            total = total + prior(sds[name]) + sds[name].log()
        return total, mean, torch.cholesky_inverse(root).diagonal(dim1=1, dim2=2)


def log_scale(scale: float) -> Callable[[Tensor], Tensor]:
    """Return a log prior of sds."""
    found: Callable[[Tensor], Tensor] = dist.HalfCauchy(
        torch.tensor(scale, dtype=torch.float64)
    ).log_prob
    return found


def normal(name: str, sd: float) -> Tensor:
    found: Tensor = pyro.sample(name, dist.Normal(torch.tensor(0.0), sd))
    return found


def half_cauchy(name: str, scale: float) -> Tensor:
    found: Tensor = pyro.sample(name, dist.HalfCauchy(torch.tensor(scale)))
    return found


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def grouped(member: Tensor, inputs: Tensor, targets: Tensor) -> dict[str, Dataset]:
    """Return rows by site; names sort as numbers do."""
    return {
        f"s{k:02}": Dataset(inputs[member == k], targets[member == k])
        for k in range(int(member.max()) + 1)
    }


def weighted(
    share: Tensor, means: Tensor, variances: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    mean = share @ means
    return mean, (share @ (variances + (means - mean).square())).sqrt()
