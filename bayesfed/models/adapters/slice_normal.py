"""`SliceNormal`: a Gaussian guide of adapters that can be cut into slices.

Slice j is column j of B with row j of A. A layer sees the sum of its slices only, and the guide draws them apart: prior, entropy and what travels are
then sums over slices, and any k of r slices have a posterior of their own. Covariance is within a slice, where B and A multiply each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors import ArgumentError, complain
from bayesfed.models.priors.bayesian import BayesianNet
from bayesfed.trees import leaf_of

# Ends the name of the draw of all slices of a layer, before they are B and A.
JOINT = "lora"


@dataclass(frozen=True)
class SliceNormal:
    """A Gaussian guide that begins at the network's own values; parameters ``NAME.loc``, ``NAME.scale`` and ``NAME.factor``.

    Parameters
    ----------
    model
        From `bayesian`, with priors of one site each (`Gaussian`, `Laplace`, `SpikeAndSlab`).
    rank
        q. 0: all entries are independent, and every fusion rule serves them. Above: the ``m + n`` entries of a slice, and those of any other
        parameter, have the covariance ``D (I + F F^T) D`` with D diagonal and F of q columns, as in `AutoLowRankMultivariateNormal`; of the
        rules only `SummedGradients` serves it.
    init_scale
        The standard deviation of every entry at first, in units of the weights.

    Raises
    ------
    ArgumentError
        If the rank is below 0 or the scale not positive.
    """

    model: BayesianNet
    rank: int = 0
    init_scale: float = 0.01

    def __post_init__(self) -> None:
        if self.rank < 0 or not 0 < self.init_scale < math.inf:
            found = (self.rank, self.init_scale)
            raise ArgumentError(
                complain("SliceNormal", expected="a rank >= 0 and a positive init_scale", actual=found, hint="rank=0, init_scale=0.01")
            )

    def __call__(self, inputs: Tensor, targets: Tensor | None = None) -> None:
        """Run as a Pyro guide: draw every parameter that has a prior."""
        for joint, group in groupby(self.model.priors, _joint):
            names = list(group)
            locs = [pyro.param(f"{name}.loc", self.model.values[name].clone) for name in names]
            scales = [self._scale(name, loc) for name, loc in zip(names, locs, strict=True)]
            if self.rank:
                self._draw(joint, names, locs, scales)
            else:
                for name, loc, scale in zip(names, locs, scales, strict=True):
                    pyro.sample(name, dist.Normal(loc, scale).to_event(loc.ndim))

    def _scale(self, name: str, loc: Tensor) -> Tensor:
        begin = self.init_scale * (0.5 if self.rank else 1.0) ** 0.5
        found: Tensor = pyro.param(f"{name}.scale", torch.full_like(loc, begin), constraint=constraints.positive)
        return found

    def _draw(self, joint: str, names: list[str], locs: list[Tensor], scales: list[Tensor]) -> None:
        """Draw the slices of a layer, or one other parameter, and take them apart."""
        rows = [_rows(name, loc, loc) for name, loc in zip(names, locs, strict=True)]
        flat, factors = [], []
        for name, loc, scale in zip(names, locs, scales, strict=True):
            # Not of zeros, where no gradient leads away from independence.
            factor = pyro.param(f"{name}.factor", partial(_scattered, loc.detach(), self.rank))
            flat.append(_rows(name, scale, loc))
            factors.append(_rows(name, factor, loc))
        sd = torch.cat(flat, 1)
        whole = dist.LowRankMultivariateNormal(torch.cat(rows, 1), sd[..., None] * torch.cat(factors, 1), sd.square())
        drawn = pyro.sample(joint, whole.to_event(1), infer={"is_auxiliary": True})
        for name, loc, part in zip(names, locs, drawn.split([row.shape[1] for row in rows], 1), strict=True):
            value = part.mT if _is_b(name) else part
            pyro.sample(name, dist.Delta(value.reshape(loc.shape), event_dim=loc.ndim))


def _joint(name: str) -> str:
    """Return the name of the draw that a parameter is part of: its adapter's, or its own."""
    owner, _, leaf = name.rpartition(".")
    return leaf_of(owner, JOINT) if leaf in ("lora_b", "lora_a") else f"{name}.{JOINT}"


def _scattered(like: Tensor, rank: int) -> Tensor:
    found: Tensor = torch.randn(*like.shape, rank).to(like) / rank**0.5
    return found


def _is_b(name: str) -> bool:
    return name.rpartition(".")[2] == "lora_b"


def _rows(name: str, value: Tensor, like: Tensor) -> Tensor:
    """Return ``(slices, entries)`` of an adapter's leaf, ``(1, entries)`` of another; with the factor's columns where it has any."""
    if _joint(name) != f"{name}.{JOINT}":
        return value.transpose(0, 1) if _is_b(name) else value
    return value.reshape(1, like.numel(), *value.shape[like.ndim :])
