"""`PersonalElbo`: what a client of pFedBayes minimises, over its own posterior and over its copy of the shared distribution."""

from __future__ import annotations

from collections.abc import Sequence
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
    (mean, sd), (theirs, wide) = flat(left), flat(right, list(left))
    return (wide / sd).log().sum() + ((sd.square() + (mean - theirs).square()) / (2 * wide.square()) - 0.5).sum()


def flat(tree: Tree, order: Sequence[str] | None = None) -> tuple[Tensor, Tensor]:
    """Return the means and the standard deviations of all entries as two vectors, in the order of the tree or of other names."""
    names = order or list(tree)
    mean, rho = (torch.cat([tree[name].flatten() for name in names if name.startswith(prefix)]) for prefix in (MEAN, RHO))
    return mean, functional.softplus(rho)


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
        mean, sd = flat(own)
        drawn = torch.addcmul(mean, sd, torch.randn(mean.shape, generator=noise, device=mean.device, dtype=mean.dtype))
        shapes = {name: leaf.shape for name, leaf in under(own, MEAN).items()}
        parts = drawn.split([shape.numel() for shape in shapes.values()])
        weights = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        nll = self.likelihood.loss(functional_call(self.net, weights, (batch.inputs,)), batch.targets)
        # The gradient of the divergence reaches both distributions, each with the other held.
        return Terms(nll + self.strength / observations * divergence(own, shared), nll)

    def finish(self, trained: Tree, fixed: Tree) -> Tree:
        """Return both distributions."""
        return trained

    def check(self, trained: Tree, fixed: Tree, data: Dataset) -> None:
        """Check the data with the means."""
        check_data(self.net, self.likelihood, under(trained, OWN + MEAN), data)
