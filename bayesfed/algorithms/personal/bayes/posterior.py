"""`WeightPosterior`: independent normals over the parameters of a network."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesfed.inference.ensembles.networks import Networks, figures
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True, eq=False)
class WeightPosterior(Networks):
    """Independent normals over the parameters of a network: a `Posterior`, whose prior is what all
    clients share.

    Parameters
    ----------
    mean, sd
        Mean and standard deviation of every entry, by the names of the parameters.
    """

    mean: Tree
    sd: Tree

    @property
    def constants(self) -> Tree:
        """Mean and sd of every parameter, as ``NAME.mean`` and ``NAME.sd``."""
        return figures(self.mean, self.sd)

    def draw(self, key: Key) -> Tree:
        """Return one draw of every parameter."""
        noise = key.generator()
        return {
            name: leaf + self.sd[name] * torch.randn(leaf.shape, generator=noise, dtype=leaf.dtype)
            for name, leaf in self.mean.items()
        }
