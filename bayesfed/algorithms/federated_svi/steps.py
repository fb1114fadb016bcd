"""`Steps`: what a client does with the gradients of a round. It moves parameters and averages them,
or only averages the gradients.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from bayesfed.federated import NaturalGradient, Optimiser
from bayesfed.inference.variational import Layout, NaturalSteps, Pair
from bayesfed.trees import Tree


class Steps:
    """The steps of one round.

    Parameters
    ----------
    pair, layout
        The model and guide, and what the guide's parameters mean.
    leaves
        All parameters of guide and model, by name.
    held
        Names of leaves that do not move: their gradients are averaged.
    optimiser
        How the others move.
    rate
        Factor on the optimiser's learning rate.
    count
        Steps of the round.
    averaging
        Share of the steps, the last ones, whose parameters are averaged.
    """

    def __init__(
        self,
        pair: Pair,
        layout: Layout,
        leaves: Mapping[str, nn.Parameter],
        held: Collection[str],
        optimiser: Optimiser,
        rate: float,
        count: int,
        averaging: float,
    ) -> None:
        self.leaves, self.done = leaves, 0
        self.rate, self.count, self.first = (
            rate * optimiser.learning_rate,
            count,
            min(count - 1, round((1 - averaging) * count)),
        )
        self.natural = (
            NaturalSteps(pair, layout, leaves)
            if isinstance(optimiser, NaturalGradient) and not held
            else None
        )
        apart = {*held, *(self.natural.names if self.natural else ())}
        moved: list[Tensor] = [leaf for name, leaf in leaves.items() if name not in apart]
        self.optimiser = optimiser.build(moved, self.rate) if moved else None
        self.held = {name: torch.zeros_like(leaf) for name, leaf in leaves.items() if name in held}
        # Averages of a noisy optimiser's last parameters are nearer the optimum than any of them
        # (Dhaka et al., 2020).
        self.means = {
            name: torch.zeros_like(leaf) for name, leaf in leaves.items() if name not in apart
        }

    def step(self) -> None:
        """Take one step from the gradients of the leaves, and clear them."""
        for name, total in self.held.items():
            if (gradient := self.leaves[name].grad) is not None:
                total.add_(gradient)
        if self.natural:
            self.natural.step(self.rate, average=self.done >= self.first)
        if self.optimiser:
            self.optimiser.step()
        for leaf in self.leaves.values():
            leaf.grad = None
        self.done += 1
        if self.done > self.first:
            for name, mean in self.means.items():
                mean.lerp_(self.leaves[name].detach(), 1 / (self.done - self.first))

    def result(self) -> Tree:
        """Return averaged parameters, and the mean gradients of held ones."""
        natural = self.natural.averaged() if self.natural else {}
        return {
            **self.means,
            **natural,
            **{name: total / self.count for name, total in self.held.items()},
        }
