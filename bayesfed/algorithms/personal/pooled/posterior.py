"""`PartPosterior`: a normal over some parameters of a network, the others fixed."""

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


def flat(tree: Tree) -> Tensor:
    """Return all entries of a tree as one vector in double precision."""
    return torch.cat([leaf.flatten() for leaf in tree.values()]).double()


def in_widths(own: Tree, centre: Tensor, sd: Tensor) -> Tensor:
    """Return u with ``own = centre + sd u`` as a vector; 0 where the population has no width."""
    return torch.where(sd > 0, (flat(own) - centre) / sd.clamp_min(1e-30), 0.0)


def unflat(vector: Tensor, like: Tree) -> Tree:
    """Return a vector's parts in the shapes and types of `like`."""
    parts = vector.split([leaf.numel() for leaf in like.values()])
    return {
        name: part.view(leaf.shape).to(leaf)
        for (name, leaf), part in zip(like.items(), parts, strict=True)
    }


@dataclass(frozen=True)
class PartPosterior:
    """A normal over some parameters of a network, the others fixed: a `Posterior`.

    Parameters
    ----------
    net
        The network.
    likelihood
        Distribution of targets given the network's outputs.
    fixed
        Parameters without a distribution.
    mean
        Means, by the names of the parameters.
    root
        R with covariance ``R R'`` over all entries in the order of `mean`: ``(P, P)``, or ``(P,)``
        for independent entries, their sds.
    """

    net: nn.Module
    likelihood: Likelihood
    fixed: Tree
    mean: Tree
    root: Tensor

    @property
    def sd(self) -> Tree:
        """Standard deviation of every entry."""
        return unflat(
            self.root if self.root.ndim == 1 else self.root.double().square().sum(1).sqrt(),
            self.mean,
        )

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
        """Return one draw of the parameters."""
        noise = torch.randn(len(self.root), generator=key.generator(), dtype=torch.float64).to(
            self.root
        )
        shift = unflat(self.root * noise if self.root.ndim == 1 else self.root @ noise, self.mean)
        return {name: leaf + shift[name] for name, leaf in self.mean.items()}

    def draw_prior(self, key: Key) -> Tree:
        """Return nothing: the prior of one client is what all clients share."""
        return {}

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets given one draw, of batch shape ``(B,)``."""
        return self.likelihood.distribution(Model(self.net, self.fixed | draw)(inputs))
