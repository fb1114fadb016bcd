"""`SliceNormal`: a Gaussian guide of adapters that can be cut into slices.

Slice j is column j of B with row j of A. A layer uses only the sum of its slices, and the guide
draws slices independently. Prior, entropy and messages are then sums over slices, and any k of r
slices have a posterior of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors.checks import POSITIVE, checked_class
from bayesfed.models.priors.bayesian import BayesianNet


@checked_class(init_scale=POSITIVE)
@dataclass(frozen=True)
class SliceNormal:
    """A Gaussian guide of independent entries that starts at the network's own values, with
    parameters ``NAME.loc`` and ``NAME.scale``.

    Parameters
    ----------
    model
        Result of `bayesian`, with priors of one site each (`Gaussian`, `Laplace`, `SpikeAndSlab`).
    init_scale
        Initial standard deviation of every entry, in units of the weights.

    Raises
    ------
    ArgumentError
        If the scale is not positive.
    """

    model: BayesianNet
    init_scale: float = 0.01

    def __call__(self, inputs: Tensor, targets: Tensor | None = None) -> None:
        """Run as a Pyro guide: draw every parameter that has a prior."""
        for name in self.model.priors:
            loc = pyro.param(f"{name}.loc", self.model.values[name].clone)
            begun = torch.full_like(loc, self.init_scale)
            scale = pyro.param(f"{name}.scale", begun, constraint=constraints.positive)
            pyro.sample(name, dist.Normal(loc, scale).to_event(loc.ndim))
