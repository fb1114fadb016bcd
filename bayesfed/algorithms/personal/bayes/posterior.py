"""`WeightPosterior`: independent normals over the parameters of a network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from bayesfed.federated import Model
from bayesfed.keys import Key
from bayesfed.models import Likelihood
from bayesfed.trees import Tree


@dataclass(frozen=True)
class WeightPosterior:
    """Independent normals over the parameters of a network: a `Posterior`.

    Parameters
    ----------
    net
        The network.
    likelihood
        Distribution of targets given the network's outputs.
    mean, sd
        Mean and standard deviation of every entry, by the names of the parameters.
    """

    net: nn.Module
    likelihood: Likelihood
    mean: Tree
    sd: Tree

    @property
    def constants(self) -> Tree:
        """Mean and sd of every parameter, as ``NAME.mean`` and ``NAME.sd``."""
        return {f"{name}.mean": leaf for name, leaf in self.mean.items()} | {
            f"{name}.sd": leaf for name, leaf in self.sd.items()
        }

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Empty: axes have numbers, not names."""
        return {}

    def draw(self, key: Key) -> Tree:
        """Return one draw of every parameter."""
        noise = key.generator()
        return {
            name: leaf + self.sd[name] * torch.randn(leaf.shape, generator=noise, dtype=leaf.dtype)
            for name, leaf in self.mean.items()
        }

    def draw_prior(self, key: Key) -> Tree:
        """Return nothing: the prior of one client is what all clients share."""
        return {}

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets given one draw, of batch shape ``(B,)``."""
        return self.likelihood.distribution(Model(self.net, draw)(inputs))
