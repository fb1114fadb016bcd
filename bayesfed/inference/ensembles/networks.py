"""`Networks`, posteriors of which a draw is all parameters of a network, and `Members`, which has a
few given ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from bayesfed.errors.checks import checked
from bayesfed.keys import Key
from bayesfed.models.likelihoods.rows import Likelihood
from bayesfed.models.modules import outputs
from bayesfed.trees import Tree


@dataclass(frozen=True, eq=False)
class Networks(ABC):
    """A posterior of which a draw is all trained parameters of a network. It has no prior to draw
    from.

    Parameters
    ----------
    net
        The network; never changed.
    likelihood
        Distribution of the targets given its outputs.
    """

    net: nn.Module
    likelihood: Likelihood

    @property
    def constants(self) -> Tree:
        """Empty."""
        return {}

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Empty: axes have numbers, not names."""
        return {}

    @abstractmethod
    @checked()
    def draw(self, key: Key) -> Tree:
        """Return one draw of the parameters."""

    @checked()
    def draw_prior(self, key: Key) -> Tree:
        """Return nothing."""
        return {}

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets given one draw, of batch shape ``(B,)``."""
        return self.likelihood.distribution(outputs(self.net, draw, inputs))


class Few(Networks):
    """A few networks of equal weight. A `Predictive` takes each of them once, whatever the number
    of draws.
    """

    @property
    @abstractmethod
    def members(self) -> tuple[Tree, ...]:
        """The parameters of every member."""

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return the parameters of a member."""
        return self.members[int(torch.randint(len(self.members), (), generator=key.generator()))]


@dataclass(frozen=True, eq=False)
class Members(Few):
    """A few given networks.

    Parameters
    ----------
    stacked
        By parameter: ``(M, ...)``, those of all members.
    """

    stacked: Tree

    @property
    def members(self) -> tuple[Tree, ...]:
        """The parameters of every member."""
        return apart(self.stacked)


def figures(mean: Tree, sd: Tree) -> Tree:
    """Return mean and sd of every parameter, as ``NAME.mean`` and ``NAME.sd``."""
    return {f"{name}.mean": leaf for name, leaf in mean.items()} | {
        f"{name}.sd": leaf for name, leaf in sd.items()
    }


def apart(stacked: Tree) -> tuple[Tree, ...]:
    """Return the trees that were stacked along the first axis of every leaf."""
    count = len(next(iter(stacked.values())))
    return tuple({name: leaf[number] for name, leaf in stacked.items()} for number in range(count))


def together(trees: list[Tree]) -> Tree:
    """Return trees stacked along a new first axis of every leaf."""
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}
