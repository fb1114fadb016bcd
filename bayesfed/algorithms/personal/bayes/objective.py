"""`PersonalElbo`: what a client of pFedBayes minimises, over its own posterior and over its copy of the shared distribution."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from bayesfed.data.dataset import Dataset
from bayesfed.inference.objectives.likelihood import Terms, check_data
from bayesfed.models.priors.likelihoods import Likelihood
from bayesfed.trees import Tree, under

# Prefixes of the two parameters of an entry's normal distribution: its mean, and rho with sd = log(1 + exp(rho)).
MEAN, RHO = "mean/", "rho/"
# Prefix of the client's own posterior.
OWN = "own/"


def sds(tree: Tree) -> Tree:
    """Return the standard deviations of a tree of means and rhos, by the names of the parameters."""
    return {name: functional.softplus(leaf) for name, leaf in under(tree, RHO).items()}


def divergence(left: Tree, right: Tree) -> Tensor:
    """Return KL(left || right) of independent normals, in nats, over all entries."""
    first, second, theirs = sds(left), sds(right), under(right, MEAN)
    terms = [
        ((second[name] / sd).log() + (sd.square() + (leaf - theirs[name]).square()) / (2 * second[name].square()) - 0.5).sum()
        for (name, leaf), sd in zip(under(left, MEAN).items(), first.values(), strict=True)
    ]
    return torch.stack(terms).sum()


@dataclass(frozen=True)
class PersonalElbo:
    """``E_q[-log p(D | theta)] + strength KL(q || w)`` per row, over q and over the client's copy of w, which only the divergence moves.

    Parameters
    ----------
    net
        The network; its parameters are drawn from q, one draw a step.
    likelihood
        Distribution of targets given the network's outputs.
    strength
        zeta of the paper.
    """

    net: nn.Module
    likelihood: Likelihood
    strength: float

    def start(self, message: Tree) -> tuple[Tree, Tree]:
        """Train both distributions."""
        return {name: leaf.clone() for name, leaf in message.items()}, {}

    def held(self, trained: Tree) -> AbstractContextManager[None]:
        """Do nothing: the weights of each step are another draw."""
        return nullcontext()

    def loss(self, trained: Tree, fixed: Tree, batch: Dataset, observations: float, noise: Generator) -> Terms:
        """Return the loss of a batch with one draw of the weights."""
        own = under(trained, OWN)
        shared = {name: leaf for name, leaf in trained.items() if not name.startswith(OWN)}
        weights = {
            name: torch.addcmul(mean, sd, torch.randn(mean.shape, generator=noise, device=mean.device, dtype=mean.dtype))
            for (name, mean), sd in zip(under(own, MEAN).items(), sds(own).values(), strict=True)
        }
        nll = self.likelihood.loss(functional_call(self.net, weights, (batch.inputs,)), batch.targets)
        # The gradient of the divergence reaches both distributions, each with the other held.
        return Terms(nll + self.strength / observations * divergence(own, shared), nll)

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Return both distributions."""
        return trained

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Check the data with the means."""
        check_data(self.net, self.likelihood, under(trained, OWN + MEAN), data)
