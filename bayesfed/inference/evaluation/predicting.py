"""What a posterior must have to predict, and what it may have to predict at less cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.keys import Key
from bayesfed.trees import Tree


class Observing(Protocol):
    """The part of a posterior that predicts."""

    def draw(self, key: Key) -> Tree:
        """Return one draw of every site."""

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets at one draw, batch ``(B,)``."""


@runtime_checkable
class Enumerated(Protocol):
    """A posterior of a few points of equal weight, which are taken once each in place of draws."""

    @property
    def members(self) -> Sequence[Tree]:
        """The points."""


@runtime_checkable
class ObservingDraws(Protocol):
    """A posterior that predicts at many draws together, at less cost than at one after another."""

    def observe_draws(self, draws: Sequence[Tree], inputs: Tensor) -> Sequence[TorchDistribution]:
        """Return the distribution of the targets at every draw, batch ``(B,)``."""
