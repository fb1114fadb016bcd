"""`SliceNormal`: a Gaussian guide of adapters that can be cut into slices.

Slice j is column j of B with row j of A. A layer uses only the sum of its slices, and the guide
draws slices independently. Prior, entropy and messages are then sums over slices, and any k of r
slices have a posterior of their own. Covariance is within a slice, where B and A are multiplied.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import groupby

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors.checks import POSITIVE, checked_class, whole
from bayesfed.models.priors.bayesian import BayesianNet
from bayesfed.trees import leaf_of

# Last part of the name of the joint draw of all slices of a layer, before it is split into B and A.
JOINT = "lora"


@checked_class(rank=whole(0, "0"), init_scale=POSITIVE)
@dataclass(frozen=True)
class SliceNormal:
    """A Gaussian guide that starts at the network's own values, with parameters ``NAME.loc``,
    ``NAME.scale`` and ``NAME.factor``.

    Parameters
    ----------
    model
        Result of `bayesian`, with priors of one site each (`Gaussian`, `Laplace`, `SpikeAndSlab`).
    rank
        q. With 0, all entries are independent and every fusion rule can be used. Above 0, the
        ``m + n`` entries of a slice, and the entries of any other parameter, have the covariance
        ``D (I + F F^T) D`` with D diagonal and F of q columns, as in
        `AutoLowRankMultivariateNormal`; then `SummedGradients` is the only fusion rule that can be
        used.
    init_scale
        Initial standard deviation of every entry, in units of the weights.

    Raises
    ------
    ArgumentError
        If the rank is below 0 or the scale not positive.
    """

    model: BayesianNet
    rank: int = 0
    init_scale: float = 0.01

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
        initial = self.init_scale * (0.5 if self.rank else 1.0) ** 0.5
        scale: Tensor = pyro.param(
            f"{name}.scale", torch.full_like(loc, initial), constraint=constraints.positive
        )
        return scale

    def _draw(self, joint: str, names: list[str], locs: list[Tensor], scales: list[Tensor]) -> None:
        """Draw the slices of a layer, or another parameter, jointly, and split the draw into
        parameters.
        """
        rows = [_rows(name, loc, loc) for name, loc in zip(names, locs, strict=True)]
        flat, factors = [], []
        for name, loc, scale in zip(names, locs, scales, strict=True):
            # Not zeros: there the gradient is zero, and the entries would stay independent.
            factor = pyro.param(f"{name}.factor", partial(_scattered, loc.detach(), self.rank))
            flat.append(_rows(name, scale, loc))
            factors.append(_rows(name, factor, loc))
        sd = torch.cat(flat, 1)
        whole = dist.LowRankMultivariateNormal(
            torch.cat(rows, 1), sd[..., None] * torch.cat(factors, 1), sd.square()
        )
        drawn = pyro.sample(joint, whole.to_event(1), infer={"is_auxiliary": True})
        for name, loc, part in zip(
            names, locs, drawn.split([row.shape[1] for row in rows], 1), strict=True
        ):
            value = part.mT if _is_b(name) else part
            pyro.sample(name, dist.Delta(value.reshape(loc.shape), event_dim=loc.ndim))


def _joint(name: str) -> str:
    """Return the name of the joint draw that a parameter is part of: that of its adapter, or its
    own.
    """
    owner, _, leaf = name.rpartition(".")
    return leaf_of(owner, JOINT) if leaf in ("lora_b", "lora_a") else f"{name}.{JOINT}"


def _scattered(like: Tensor, rank: int) -> Tensor:
    columns: Tensor = torch.randn(*like.shape, rank).to(like) / rank**0.5
    return columns


def _is_b(name: str) -> bool:
    return name.rpartition(".")[2] == "lora_b"


def _rows(name: str, value: Tensor, like: Tensor) -> Tensor:
    """Return an adapter's leaf as ``(slices, entries)``, another one as ``(1, entries)``; a
    factor's columns stay the last dimension.
    """
    if _joint(name) != f"{name}.{JOINT}":
        return value.transpose(0, 1) if _is_b(name) else value
    return value.reshape(1, like.numel(), *value.shape[like.ndim :])
