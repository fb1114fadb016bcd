"""Natural-gradient steps for independent Gaussians, in precisions and means: the learning rate need
not fit their size.

With the loss's gradients g_mu, g_sd of a Gaussian ``mu``, ``sd = P^-1/2`` and ``G = g_sd / sd``, a
step of rate r is

    P <- P + r G + (r G)^2 / (2 P),    mu <- mu - r g_mu / P

(Khan and Lin, 2017, "Conjugate-computation variational inference"; the last term keeps P above
zero: Lin, Schmidt and Khan, 2020, "Handling the positive-definite constraint in the Bayesian
learning rule"). The gradient enters linearly, so averaging removes its noise without bias; Adam,
which divides by the size of a skewed gradient, leaves sds some percent too wide.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesfed.inference.variational.families import NormalFamily
from bayesfed.inference.variational.layout import Block, Layout
from bayesfed.inference.variational.program import Pair
from bayesfed.trees import Tree


class NaturalSteps:
    """Steps on the blocks of independent Gaussians, and the average of their natural parameters.

    Parameters
    ----------
    pair, layout
        The model and guide, and what the guide's parameters mean.
    leaves
        Parameters by name; those in such blocks are changed in place.
    """

    def __init__(self, pair: Pair, layout: Layout, leaves: Mapping[str, Tensor]) -> None:
        self.pair, self.leaves, self.count = pair, leaves, 0
        self.blocks = [block for block in layout.blocks if isinstance(block.family, NormalFamily)]
        self.totals: Tree = {}

    @property
    def names(self) -> set[str]:
        """Names of the leaves that are changed here."""
        return set().union(*(block.names for block in self.blocks))

    def step(self, rate: float, average: bool) -> None:
        """Take one step on every block from the gradients of the leaves.

        Parameters
        ----------
        rate
            The learning rate r.
        average
            Whether the result counts in the average.
        """
        for block in self.blocks:
            natural = self._stepped(block, rate)
            for name, leaf in block.guide_parameters(self.pair, natural).items():
                self.leaves[name].data.copy_(leaf)
            if average:
                for name, leaf in natural.items():
                    self.totals[name] = self.totals.get(name, torch.zeros_like(leaf)) + leaf
        self.count += average

    def averaged(self) -> Tree:
        """Return the guide's parameters for the average natural parameters."""
        mean = {name: leaf / self.count for name, leaf in self.totals.items()}
        return {
            name: leaf
            for block in self.blocks
            for name, leaf in block.guide_parameters(self.pair, mean).items()
        }

    def _stepped(self, block: Block, rate: float) -> Tree:
        (mean_name,), (sd_name,) = block.parameters["loc"], block.parameters["scale"]
        free = self.leaves[sd_name].detach().requires_grad_()
        sd = self.pair.constrained(sd_name, free)
        (slope,) = torch.autograd.grad(sd.sum(), free)
        sd, mean = sd.detach(), self.pair.constrained(mean_name, self.leaves[mean_name].detach())
        precision = sd.square().reciprocal()
        change = rate * _gradient(self.leaves[sd_name]) / (slope * sd)
        after = precision + change + change.square() / (2 * precision)
        h = after * mean - rate * _gradient(self.leaves[mean_name])
        return {f"h/{block.name}": h, f"precision/{block.name}": after}


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
