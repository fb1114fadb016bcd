"""What a client minimises: the negative ELBO per observation.

An objective is a value: `start` splits the received message into trained and fixed leaves, `loss`
scores a batch, `finish` returns what is sent back. Losses are divided by the number of observations
that the likelihood stands for, so a learning rate means the same at every scale of the likelihood.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from bayesfed.data import Dataset
from bayesfed.errors import DataError
from bayesfed.models import Likelihood
from bayesfed.models.calling import called, functional_call
from bayesfed.models.nets.norms import batch_norms
from bayesfed.trees import Tree, placed


class Terms(NamedTuple):
    """The loss of a batch, and its data term alone: the mean negative log likelihood."""

    loss: Tensor
    nll: Tensor


class Objective(Protocol):
    """The seam between a message and a local optimiser."""

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Split a message into (trained, fixed) leaves; the trained ones are new copies."""

    def loss(
        self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator
    ) -> Terms:
        """Return the negative ELBO per observation, estimated on a batch.

        Parameters
        ----------
        trained, fixed
            Leaves as `start` returned them, the trained ones after some steps.
        batch
            Rows of the step.
        observations
            Rows that the likelihood stands for: N_t times the likelihood scale.
        noise
            Generator of posterior draws.
        """

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Set up what `loss` needs for the length of a fit; inside the block the same leaves are
        trained.
        """

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Return the leaves that are sent back."""

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Raise `DataError` if the network cannot score the data."""


@runtime_checkable
class OwnSteps(Protocol):
    """An objective that moves some of the trained leaves itself, by their gradients, in place of
    the optimiser.
    """

    def moved_apart(self, trained: Tree) -> frozenset[str]:
        """Return the names of these leaves; the optimiser has the others."""

    def move(self, trained: Tree, fixed: Tree, observations: float) -> None:
        """Move these leaves in place after a step, and clear their gradients; arguments as for
        `Objective.loss`.
        """


@dataclass(frozen=True)
class MaximumLikelihood:
    """The mean negative log likelihood: flat priors and point posteriors.

    Parameters
    ----------
    net
        The network, whose parameters are trained.
    likelihood
        Distribution of targets given the network's outputs.
    """

    net: nn.Module
    likelihood: Likelihood

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Train every parameter."""
        return {name: leaf.clone() for name, leaf in message.items()}, {}

    def loss(
        self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator
    ) -> Terms:
        """Return the mean loss of the batch with the leaves that `held` placed in the network."""
        nll = self.likelihood.loss(functional_call(self.net, {}, (batch.inputs,)), batch.targets)
        return Terms(nll, nll)

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Place the leaves in the network once, which is cheaper than a functional call
        every step.
        """
        return placed(self.net, trained)

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Send every parameter."""
        return trained

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Run one row through the network and check all targets against its output."""
        check_data(self.net, self.likelihood, trained, data)


@dataclass(frozen=True)
class AroundObjective:
    """An objective around that of a point estimate, of which it changes the loss alone."""

    inner: Objective

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Start as the inner objective does."""
        return self.inner.start(message)

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Hold the leaves as the inner objective does."""
        return self.inner.held(trained)

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Send every parameter."""
        return trained

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Check as the inner objective does."""
        self.inner.check(trained, fixed, data)


@dataclass(frozen=True)
class Proximal(AroundObjective):
    """FedProx's local objective (Li et al., 2020, (2)): a Gaussian prior centred on the broadcast
    model.

    ``strength / 2 * ||w - w_broadcast||^2`` is the negative log density of N(w_broadcast, 1 / (N_t
    strength)) per observation. Strength 0 is `MaximumLikelihood`, bit for bit.

    Parameters
    ----------
    inner
        The data term.
    strength
        mu of the paper.
    """

    inner: MaximumLikelihood
    strength: float

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Train every parameter; the message stays fixed as the centre."""
        return self.inner.start(message)[0], message

    def loss(
        self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator
    ) -> Terms:
        """Return the mean loss plus the proximal term."""
        terms = self.inner.loss(trained, {}, batch, observations, noise)
        if self.strength == 0:
            return terms
        distance = torch.stack(
            [(leaf - fixed[name]).square().sum() for name, leaf in trained.items()]
        ).sum()
        return Terms(terms.nll + self.strength / 2 * distance, terms.nll)


def check_data(net: nn.Module, likelihood: Likelihood, parameters: Tree, data: Dataset) -> None:
    """Raise `DataError` unless the network takes the inputs, does not write into them, and its
    output fits every target.

    Parameters
    ----------
    net, likelihood
        Those of the objective.
    parameters
        The network's parameters, by name.
    data
        Rows, of which one goes through the network; none is legal.
    """
    if not len(data):
        return
    # Buffers are copied, since a forward pass may change them. Batch norm in training mode refuses
    # a single row of vectors: it gets the row twice.
    buffers = {name: value.clone() for name, value in net.named_buffers()}
    row = data.inputs[:1].expand(1 + bool(batch_norms(net)), *data.inputs.shape[1:]).clone()
    with torch.no_grad():
        output = called(net, {**buffers, **parameters}, row)[:1].clone()
    if row._version:
        hint = "x = x - 1 in place of x -= 1, and no inplace=True in the first layer"
        raise DataError("network", "a forward that leaves its inputs as they are", "another", hint)
    likelihood.check(output.expand(len(data), *output.shape[1:]), data.targets)
