"""`PartPosterior`: a normal over some parameters of a network, the others fixed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.errors.checks import checked
from bayesfed.inference.ensembles.networks import Networks, figures
from bayesfed.keys import Key
from bayesfed.trees import Tree, flat, unflat, zip_map


def in_widths(own: Tree, centre: Tensor, sd: Tensor) -> Tensor:
    """Return u with ``own = centre + sd u`` as a vector; 0 where the population has no width."""
    return torch.where(sd > 0, (flat(own).double() - centre) / sd.clamp_min(1e-30), 0.0)


@dataclass(frozen=True, eq=False)
class PartPosterior(Networks):
    """A normal over some parameters of a network, the others fixed: a `Posterior`.

    Parameters
    ----------
    fixed
        Parameters without a distribution.
    mean
        Means, by the names of the parameters.
    root
        R with covariance ``R R'`` over all entries in the order of `mean`: ``(P, P)``, or ``(P,)``
        for independent entries, their sds.
    """

    fixed: Tree
    mean: Tree
    root: Tensor

    @property
    def sd(self) -> Tree:
        """Standard deviation of every entry."""
        root = self.root
        return unflat(root if root.ndim == 1 else root.double().square().sum(1).sqrt(), self.mean)

    @property
    def constants(self) -> Tree:
        """Mean and sd of every parameter, as ``NAME.mean`` and ``NAME.sd``."""
        return figures(self.mean, self.sd)

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return one draw of the parameters."""
        noise = torch.randn(len(self.root), generator=key.generator(), dtype=torch.float64).to(
            self.root
        )
        shift = unflat(self.root * noise if self.root.ndim == 1 else self.root @ noise, self.mean)
        return zip_map(torch.add, self.mean, shift)

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets given one draw, of batch shape ``(B,)``."""
        return super().observe(self.fixed | draw, inputs, key)
