"""What a posterior must have to predict, and what it may have to predict at less cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.errors import PosteriorError
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


def distributions(
    posterior: Observing, inputs: Tensor, key: Key, count: int, batch_size: int
) -> list[list[Any]]:
    """Return the distribution of the targets by draw and batch of rows, of as many draws and rows
    at a time.

    Raises
    ------
    PosteriorError
        If these are not distributions of one target a row.
    """
    parts = inputs.split(batch_size)
    # One after another, since all draws of a large network may not fit into memory.
    drawn: Iterable[Tree] = (
        posterior.members
        if isinstance(posterior, Enumerated)
        else (posterior.draw(key.child("draw", number)) for number in range(count))
    )
    if isinstance(posterior, ObservingDraws):
        together = list(drawn)
        by_part = [posterior.observe_draws(together, part) for part in parts]
        found = [list(given) for given in zip(*by_part, strict=True)]
    else:
        keys = key.child("observe")
        found = [
            [
                posterior.observe(draw, part, keys.child(number, place * batch_size))
                for place, part in enumerate(parts)
            ]
            for number, draw in enumerate(drawn)
        ]
    for given, part in (pair for row in found for pair in zip(row, parts, strict=True)):
        batch, rows = tuple(given.batch_shape), (len(part),)
        if batch != rows:
            raise PosteriorError(
                "Predictive", f"one target a row, batch {rows}", batch, "a plate over rows"
            )
    return found
