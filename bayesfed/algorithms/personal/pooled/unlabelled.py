"""Shares of classes of a client that has no labels: what its inputs alone say about them.

The network gives p(y | x) where classes have the shares b, so that p(x | y) is proportional to
p(y | x) / b_y. With shares from Dirichlet(c) the labels of N inputs have a joint posterior. Its
marginals r_n are those of collapsed variational Bayes of order zero (CVB0; Asuncion et al., 2009),
in which a row counts w: ``r_ny ~ p(y | x_n) / b_y (c_y + w sum_{m != n} r_my)``. Saerens et al.
(2002) have no prior, and the sum over all rows.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from torch import Tensor, nn

from bayesfed.errors import ConvergenceWarning
from bayesfed.errors.checks import checked, number
from bayesfed.federated import Model
from bayesfed.trees import Tree

STEPS, TOLERANCE = 1000, 1e-6


@dataclass(frozen=True)
class SharesModel:
    """A network where classes have the shares of one client: a `Predictor`.

    Parameters
    ----------
    net, parameters
        Network and its parameters.
    base
        ``(C,)``: shares of the classes among all rows.
    concentration
        ``(C,)``: parameters of the Dirichlet posterior of the client's shares.
    """

    net: nn.Module
    parameters: Tree
    base: Tensor
    concentration: Tensor

    @property
    def shares(self) -> Tensor:
        """Posterior mean of the client's shares, ``(C,)``."""
        return self.concentration / self.concentration.sum()

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logits, ``(B, C)``."""
        outputs = Model(self.net, self.parameters)(inputs)
        return outputs + (self.shares.log() - self.base.log()).to(outputs)


@dataclass(frozen=True)
class UnseenModel(Model):
    """The network, which a client that was never seen predicts with until it shows some inputs: a
    `Predictor`.

    Parameters
    ----------
    base
        ``(C,)``: shares of the classes among all rows.
    concentration
        ``(C,)``: parameters of the Dirichlet population of the clients' shares.
    """

    base: Tensor
    concentration: Tensor

    @checked(weight=number("(0, 1]", "0.1"))
    def adapted(self, inputs: Tensor, weight: float = 0.1) -> SharesModel:
        """Return a model for further rows of the client whose inputs these are.

        Parameters
        ----------
        inputs
            Inputs of one client without labels, ``(N, ...)``.
        weight
            How much an input without a label counts beside a row with one, in (0, 1]. At 1 the
            network is believed and its errors on the inputs are taken to be independent. The
            default was best on held-out rows of images that each client sees through one
            corruption.

        Raises
        ------
        ArgumentError
            If the weight is not in (0, 1].

        Warns
        -----
        ConvergenceWarning
            If the expected classes have not settled after 1000 steps.
        """
        counts = expected_counts(self(inputs).softmax(1), self.base, self.concentration, weight)
        return SharesModel(
            self.net, self.parameters, self.base, self.concentration + counts.to(self.concentration)
        )


def expected_counts(
    probabilities: Tensor, base: Tensor, concentration: Tensor, weight: float = 1.0
) -> Tensor:
    """Return `weight` times the expected numbers of rows of each class ``(C,)``, in double
    precision.

    Parameters
    ----------
    probabilities
        ``(N, C)``: those of the network, where classes have the shares `base`.
    base, concentration
        ``(C,)``, as in `UnseenModel`.
    weight
        w.
    """
    labels, prior = probabilities.double(), concentration.double().to(probabilities.device)
    likely = labels / base.double().to(labels.device)
    moved = 0.0
    for _ in range(STEPS):
        before, labels = labels, likely * (prior + weight * (labels.sum(0) - labels))
        labels = labels / labels.sum(1, keepdim=True)
        moved = float((labels - before).abs().max()) if len(labels) else 0.0
        if moved < TOLERANCE:
            return weight * labels.sum(0)
    warnings.warn(
        f"adapted: expected classes still move by {moved:.1e}; try a smaller weight, or "
        "other inputs",
        ConvergenceWarning,
        stacklevel=3,
    )
    return weight * labels.sum(0)
