"""`PersonalElbo`: what a client of pFedBayes minimises, over its own posterior and over its copy of
the shared distribution.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import get_args

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from bayesfed.data import Dataset
from bayesfed.federated.core import owned
from bayesfed.federated.core.owners import owner_of
from bayesfed.inference.objectives.likelihood import Terms, check_data
from bayesfed.inference.objectives.sampled_outputs import VarianceOf, sampled_outputs, through
from bayesfed.models import Likelihood
from bayesfed.models.calling import functional_call
from bayesfed.models.modules import Dense
from bayesfed.trees import Tree, besides, flat, has_ties, leaf_of, unflat

# Owners of the two parameters of an entry's normal distribution: its mean, and rho with sd =
# log(1 + exp(rho)).
MEAN, RHO = "mean", "rho"
# Owner of the client's own posterior.
OWN = "own"


def sds(tree: Tree) -> Tree:
    """Return the standard deviations of a tree of means and rhos, by the names of the
    parameters.
    """
    return {name: functional.softplus(leaf) for name, leaf in owned(tree, RHO).items()}


def divergence(mean: Tensor, sd: Tensor, theirs: Tensor, wide: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence, in nats, of independent normals with the first means
    and sds from those with the second.
    """
    return (wide / sd).log().sum() + (
        (sd.square() + (mean - theirs).square()) / (2 * wide.square()) - 0.5
    ).sum()


def vectors(tree: Tree, names: Iterable[str]) -> tuple[Tensor, Tensor]:
    """Return the means and the standard deviations of all entries of some parameters as two
    vectors.
    """
    mean, rho = (flat({name: tree[f"{part}/{name}"] for name in names}) for part in (MEAN, RHO))
    return mean, functional.softplus(rho)


@dataclass(frozen=True)
class PersonalElbo:
    """``E_q[-log p(D | theta)] + strength KL(q || w)`` per row, over q and, unless it is held, over
    the client's copy of w.

    The likelihood does not depend on w: only the divergence moves it.

    Parameters
    ----------
    net
        The network. The noise of q is drawn at the outputs of linear and convolution layers, and at
        the parameters of others.
    likelihood
        Distribution of targets given the network's outputs.
    strength
        zeta of the paper.
    hold_shared
        Whether w stays as it is.
    """

    net: nn.Module
    likelihood: Likelihood
    strength: float
    hold_shared: bool = False

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Train both distributions, or q alone."""
        trained = {
            name: leaf.clone()
            for name, leaf in message.items()
            if owner_of(name) == OWN or not self.hold_shared
        }
        return trained, besides(message, trained)

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Do nothing: the weights of each step are another draw."""
        return nullcontext()

    def loss(
        self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator
    ) -> Terms:
        """Return the loss of a batch with one draw of the weights."""
        own = owned(trained, OWN)
        weights = owned(own, MEAN)
        shared = vectors(trained | fixed, list(weights))
        mean, sd = vectors(own, list(weights))
        spread = unflat(sd, weights)
        variances, concerned = self._variances(spread)
        for name in (one for one in spread if one not in concerned):
            leaf = weights[name]
            weights[name] = leaf + spread[name] * torch.empty_like(leaf).normal_(generator=noise)
        with sampled_outputs(self.net, variances, noise):
            nll = self.likelihood.loss(
                functional_call(self.net, weights, (batch.inputs,)), batch.targets
            )
        # The gradient of the divergence reaches both distributions, each with the other held.
        apart = divergence(mean, sd, *shared)
        return Terms(nll + self.strength / observations * apart, nll)

    @cached_property
    def _layers(self) -> list[str]:
        """Names of the layers at whose outputs noise is drawn. Subclasses may use their weights in
        other ways.
        """
        if has_ties(self.net):
            return []
        return [name for name, one in self.net.named_modules() if type(one) in get_args(Dense)]

    def _variances(self, spread: Tree) -> tuple[dict[str, VarianceOf], set[str]]:
        """Return, by layer, how the variances of its outputs follow from its inputs, and the names
        of all parameters concerned.
        """
        variances: dict[str, VarianceOf] = {}
        concerned: set[str] = set()
        for layer in self._layers:
            weight, bias = leaf_of(layer, "weight"), leaf_of(layer, "bias")
            if weight in spread:
                variances[layer] = partial(
                    through,
                    weight=spread[weight].square(),
                    bias=spread[bias].square() if bias in spread else None,
                )
                concerned |= {weight, bias}
        return variances, concerned

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Return both distributions."""
        return trained | fixed

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Check the data with the means."""
        check_data(self.net, self.likelihood, owned(trained, f"{OWN}/{MEAN}"), data)
