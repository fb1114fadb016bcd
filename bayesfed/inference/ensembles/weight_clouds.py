"""Gaussians through given networks: `SwagPosterior` through those of a run, `ClientCloud` through
those of clients.

======================================  ==========================================================
notation                                here
======================================  ==========================================================
SWAG: theta_SWA, second moment          `SwagPosterior.mean`, `square`
SWAG: D, K                              `deviations` of the last K models, `rank`
FedBE: w, w_k, S                        `ClientCloud.mean`, the leaves of `clients`, `drawn`
FedBE: g_k, mu, Sigma                   unit changes of a leaf, their mean and diagonal variance
======================================  ==========================================================

References
----------
Maddox et al., "A simple baseline for Bayesian uncertainty in deep learning" (2019), (1) and
Algorithm 1; Chen and Chao, "FedBE: Making Bayesian model ensemble applicable to federated learning"
(2021), section 3.3 and the authors' code, which scales changes leaf by leaf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch

from bayesfed.errors.checks import checked
from bayesfed.inference.ensembles.networks import Few, Networks, apart, figures
from bayesfed.keys import Key
from bayesfed.trees import Tree, zeros_like


@dataclass(frozen=True, eq=False)
class SwagPosterior(Networks):
    """``N(mean, scale (diagonal + D D' / (K - 1)) / 2)``, D the deviations of the last K models
    from the mean when they were taken.

    Parameters
    ----------
    mean, square
        Means of the models and of their squares.
    deviations
        By parameter ``(K, ...)``; rows that are not filled yet are zero.
    filled
        Number of rows of `deviations` that are filled. With fewer than two the posterior is a
        point.
    scale
        Factor on the covariance.
    """

    mean: Tree
    square: Tree
    deviations: Tree
    filled: int
    scale: float = 1.0

    @property
    def constants(self) -> Tree:
        """Mean and sd of every parameter, as ``NAME.mean`` and ``NAME.sd``."""
        low = {
            name: leaf.square().sum(0) / max(self.filled - 1, 1)
            for name, leaf in self.deviations.items()
        }
        sds = {
            name: (self.scale * (leaf + low[name]) / 2).sqrt()
            for name, leaf in self._diagonal.items()
        }
        return figures(self.mean, sds)

    @cached_property
    def _diagonal(self) -> Tree:
        if self.filled < 2:
            return zeros_like(self.mean)
        return {
            name: (leaf - self.mean[name].square()).clamp_min(0)
            for name, leaf in self.square.items()
        }

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return one draw of the parameters."""
        if self.filled < 2:
            return dict(self.mean)
        noise, drawn = key.generator(), dict[str, torch.Tensor]()
        weights = torch.randn(
            len(next(iter(self.deviations.values()))), generator=noise
        ) * math.sqrt(self.scale / (2 * (self.filled - 1)))
        for name, mean in self.mean.items():
            own = (
                torch.randn(mean.shape, generator=noise).to(mean)
                * (self.scale * self._diagonal[name] / 2).sqrt()
            )
            drawn[name] = mean + own + torch.tensordot(weights.to(mean), self.deviations[name], 1)
        return drawn


@dataclass(frozen=True, eq=False)
class ClientCloud(Few):
    """The mean of the clients' networks, these networks, and draws of a Gaussian through them, all
    of equal weight.

    Parameters
    ----------
    mean
        The averaged network.
    clients
        By parameter ``(K, ...)``: the networks of K clients.
    drawn
        Number of draws.
    spread
        Factor on the sd of the clients' directions.
    key
        Names the draws.
    """

    mean: Tree
    clients: Tree
    drawn: int
    spread: float
    key: Key

    @cached_property
    def members(self) -> tuple[Tree, ...]:
        """The mean, the clients' networks and the draws. A `Predictive` takes each of them once,
        whatever the number of draws it is asked for.
        """
        return (
            self.mean,
            *apart(self.clients),
            *(self._drawn(self.key.child(number)) for number in range(self.drawn)),
        )

    def _drawn(self, key: Key) -> Tree:
        noise, made = key.generator(), dict[str, torch.Tensor]()
        for name, mean in self.mean.items():
            changes = self.clients[name] - mean
            norms = changes.reshape(len(changes), -1).norm(dim=1)
            # A client that did not move this leaf has no direction.
            units = changes / norms.clamp_min(torch.finfo(mean.dtype).tiny).reshape(
                -1, *[1] * mean.ndim
            )
            sd = units.std(0, correction=0)
            made[name] = mean + norms.mean() * (
                units.mean(0) + self.spread * sd * torch.randn(mean.shape, generator=noise).to(mean)
            )
        return made
