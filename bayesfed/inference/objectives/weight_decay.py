"""Weight decay as a Gaussian prior on whole weights, and on the *product* of factored ones
(Frobenius decay, Khodak et al., 2021).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.inference.objectives.likelihood import (
    AroundObjective,
    MaximumLikelihood,
    Objective,
    Proximal,
    Terms,
)
from bayesfed.models import frobenius_decay
from bayesfed.trees import Tree, only


@dataclass(frozen=True)
class Decayed(AroundObjective):
    """Add ``coefficient / 2`` times the squared norm of every weight to a mean loss; for a factored
    weight U V^T, the norm of the product.

    This is the negative log density per observation of N(0, 1 / (N_t coefficient)) on each weight.
    Coefficient 0 is the inner objective, bit for bit.

    Parameters
    ----------
    inner
        The objective to which decay is added.
    coefficient
        Strength of the decay, >= 0.
    """

    inner: MaximumLikelihood | Proximal
    coefficient: float

    def loss(
        self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator
    ) -> Terms:
        """Return the mean loss and the decay."""
        terms = self.inner.loss(trained, fixed, batch, observations, noise)
        if self.coefficient == 0:
            return terms
        factors = {name for name in trained if name.rpartition(".")[2] in ("u", "v")}
        decay = frobenius_decay(only(trained, factors), self.coefficient)
        if whole := [leaf.square().sum() for name, leaf in trained.items() if name not in factors]:
            decay = decay + self.coefficient / 2 * torch.stack(whole).sum()
        return Terms(terms.loss + decay, terms.nll)


@dataclass(frozen=True)
class OpenPrior(AroundObjective):
    """A point objective under a prior whose precision is told with every round.

    Parameters
    ----------
    inner
        The objective to which decay is added.
    observations
        N, the number of rows of all clients.
    """

    inner: Decayed
    observations: int

    def at(self, precision: float) -> Decayed:
        """Return the objective at a precision.

        Raises
        ------
        ArgumentError
            If none was told, which is a number below 0.
        """
        if precision < 0:
            raise ArgumentError(
                "Training.prior_precision='auto'",
                "a method that chooses the precision",
                "one that does not",
                "a number, Training(prior_precision=0.3, observations=len(train))",
            )
        return with_prior(self.inner, precision, self.observations)

    def loss(
        self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator
    ) -> Terms:
        """Raise `ArgumentError`: the precision is open."""
        return self.at(-1.0).loss(trained, fixed, batch, observations, noise)


def with_open_prior(objective: Objective, observations: int) -> OpenPrior:
    """Return a point objective under a prior whose precision is open; parameters and errors as for
    `with_prior`.
    """
    return OpenPrior(with_prior(objective, 0.0, observations), observations)


def with_prior(objective: Objective, precision: float, observations: int) -> Decayed:
    """Return a point objective under the prior N(0, 1 / precision) on every weight: a MAP estimate,
    where maximum likelihood was.

    Losses are means over rows, so that the decay has the coefficient ``precision / observations``,
    for every client alike.

    Parameters
    ----------
    objective
        Objective of a point estimate; a decay that it has is added to.
    precision
        Precision of the prior.
    observations
        N, the number of rows of all clients.

    Raises
    ------
    ArgumentError
        If the objective has a prior of its own.
    """
    if isinstance(objective, Decayed):
        return replace(objective, coefficient=objective.coefficient + precision / observations)
    if not isinstance(objective, MaximumLikelihood | Proximal):
        raise ArgumentError(
            "Training.prior_precision",
            "a method with point estimates",
            type(objective).__name__,
            "prior_precision=None: this method declares its own prior",
        )
    return Decayed(objective, precision / observations)
