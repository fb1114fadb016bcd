"""What a client minimises: per-observation negative ELBOs of declared models.

Every objective is a value with three verbs: `start` turns the message received into what is
trained and what stays fixed, `loss` scores a batch, `finish` says what is sent back. All of them
divide the negative ELBO by the number of observations it speaks for, so learning rates keep their
meaning whatever the likelihood's scale.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call

from bayesfed.data.dataset import Dataset
from bayesfed.models.nets.norms import batch_norms
from bayesfed.models.priors.likelihoods import Likelihood
from bayesfed.trees import Tree, placed


class Terms(NamedTuple):
    """A batch's score: the loss to minimise, and its data term (mean negative log likelihood) alone."""

    loss: Tensor
    nll: Tensor


class Objective(Protocol):
    """The seam between a message and a local optimiser."""

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Return (trained, fixed) leaves; the trained ones are fresh copies."""
        ...

    def loss(self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator) -> Terms:
        """Return the negative ELBO per observation, estimated on a batch.

        Parameters
        ----------
        observations
            Rows the likelihood speaks for: N_t times the likelihood scale.
        noise
            Where posterior draws come from.
        """
        ...

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Set up whatever `loss` needs for the length of a fit; the same leaves are trained inside the block."""
        ...

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Return the leaves that travel back."""
        ...

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Raise `DataError` if the data cannot be scored by the network."""
        ...


@dataclass(frozen=True)
class MaximumLikelihood:
    """Flat priors and point posteriors: the mean negative log likelihood."""

    net: nn.Module
    likelihood: Likelihood

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Train every parameter."""
        return {name: leaf.clone() for name, leaf in message.items()}, {}

    def loss(self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator) -> Terms:
        """Return the mean loss of the batch, of the leaves that are held."""
        nll = self.likelihood.loss(self.net(batch.inputs), batch.targets)
        return Terms(nll, nll)

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Place the leaves in the network once: cheaper than a functional call a step."""
        return placed(self.net, trained)

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Send every parameter."""
        return trained

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Run one row through the network and check all targets against its output."""
        check_data(self.net, self.likelihood, trained, data)


@dataclass(frozen=True)
class Proximal:
    """FedProx's local objective (Li et al., 2020, (2)): a Gaussian prior centred on the broadcast model.

    ``strength / 2 * ||w - w_broadcast||^2`` is the negative log density of N(w_broadcast, 1 / (N_t strength)) per
    observation. Strength 0 is `MaximumLikelihood`, bit for bit.
    """

    likelihood_part: MaximumLikelihood
    strength: float

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Train every parameter and remember where it started."""
        return self.likelihood_part.start(message)[0], message

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Hold as the likelihood does."""
        return self.likelihood_part.held(trained)

    def loss(self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator) -> Terms:
        """Return the mean loss plus the proximal term."""
        terms = self.likelihood_part.loss(trained, {}, batch, observations, noise)
        if self.strength == 0:
            return terms
        distance = torch.stack([(leaf - fixed[name]).square().sum() for name, leaf in trained.items()]).sum()
        return Terms(terms.nll + self.strength / 2 * distance, terms.nll)

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Send every parameter."""
        return trained

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Check as the likelihood does."""
        self.likelihood_part.check(trained, {}, data)


def check_data(net: nn.Module, likelihood: Likelihood, parameters: Tree, data: Dataset) -> None:
    """Raise `DataError` unless the network takes the inputs and its output fits every target."""
    if not len(data):
        return
    # Copied, since a forward pass may count in place. Batch norm in training takes no single row where channels are single values: two alike.
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    row = data.inputs[:1].expand(1 + bool(batch_norms(net)), *data.inputs.shape[1:])
    with torch.no_grad():
        output = functional_call(net, {**buffers, **parameters}, (row,))[:1]
    likelihood.check(output.expand(len(data), *output.shape[1:]), data.targets)
