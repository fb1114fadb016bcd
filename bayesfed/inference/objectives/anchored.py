"""`Anchored`: a loss plus a quadratic around an anchor and a linear term, for methods whose clients minimise more than their own loss.

The message of such a step holds three trees: the leaves to begin with, under their own names; the point that they are drawn to, under ``anchor/``; and
the slope of the linear term, under ``slope/``, which may be missing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Generator

from bayesfed.data.dataset import Dataset
from bayesfed.inference.objectives.likelihood import MaximumLikelihood, Terms
from bayesfed.trees import Tree, under, without

ANCHOR, SLOPE = "anchor/", "slope/"


@dataclass(frozen=True)
class Anchored:
    """``loss(w) + strength / 2 ||w - anchor||^2 - <slope, w>``. With strength 0 and no slope it is the loss, bit for bit.

    Parameters
    ----------
    likelihood_part
        The loss.
    strength
        Strength of the quadratic, beside a mean loss.
    """

    likelihood_part: MaximumLikelihood
    strength: float

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Train the leaves to begin with; anchor and slope stay fixed."""
        begin = without(without(message, ANCHOR), SLOPE)
        return self.likelihood_part.start(begin)[0], {name: leaf for name, leaf in message.items() if name not in begin}

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Hold the leaves as the loss does."""
        return self.likelihood_part.held(trained)

    def loss(self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator) -> Terms:
        """Return the mean loss of the batch plus both terms."""
        terms, total = self.likelihood_part.loss(trained, {}, batch, observations, noise), None
        if self.strength:
            anchor = under(fixed, ANCHOR)
            total = self.strength / 2 * torch.stack([(leaf - anchor[name]).square().sum() for name, leaf in trained.items()]).sum()
        if slope := under(fixed, SLOPE):
            along = torch.stack([(leaf * slope[name]).sum() for name, leaf in trained.items()]).sum()
            total = -along if total is None else total - along
        return terms if total is None else Terms(terms.nll + total, terms.nll)

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Return the trained leaves."""
        return trained

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Check as the loss does."""
        self.likelihood_part.check(trained, {}, data)
