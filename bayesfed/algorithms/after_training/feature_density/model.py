"""`FeatureDensity`: a network, and Gaussians of the classes in the space of its last layer's
inputs.

======================  ===========================================================
notation                here
======================  ===========================================================
phi(x), d               `features`: what the last linear layer gets
mu_c, Sigma             `means`, `covariance`: one covariance for all classes
M(x)                    `distance`: ``min_c (phi - mu_c)' Sigma^-1 (phi - mu_c)``
log p(phi(x))           `log_density`: ``log sum_c pi_c N(phi; mu_c, Sigma)``
======================  ===========================================================

References
----------
Lee et al., "A simple unified framework for detecting out-of-distribution samples and adversarial
attacks" (2018), (2); Mukhoti et al., "Deep deterministic uncertainty" (2023), with one covariance
for all classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.plurals import plural
from bayesfed.federated import Model
from bayesfed.models.calling import called
from bayesfed.models.modules import evaluating, last_linear, noting
from bayesfed.trees import Tree, to


@dataclass(frozen=True, eq=False)
class FeatureDensity:
    """A network that also says how far a row's features are from those of every class.

    Parameters
    ----------
    net, parameters
        Network and its parameters.
    counts
        ``(C,)``: number of rows by class.
    sums, products
        ``(C, d)`` and ``(d, d)``: sums of the features by class, and of their outer products over
        all rows.
    shrinkage
        Share of a multiple of the identity in the covariance, whose trace it keeps.
    """

    net: nn.Module
    parameters: Tree
    counts: Tensor
    sums: Tensor
    products: Tensor
    shrinkage: float

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the network, ``(B, C)``."""
        return Model(self.net, self.parameters)(inputs)

    @cached_property
    def means(self) -> Tensor:
        """``(C, d)``; zero for a class without rows."""
        return self.sums / self.counts.clamp_min(1)[:, None]

    @cached_property
    def covariance(self) -> Tensor:
        """``(d, d)``: covariance within classes, before the identity is mixed in."""
        within = self.products - (self.counts[:, None] * self.means).mT @ self.means
        return within / self.counts.sum().clamp_min(1)

    @cached_property
    def _root(self) -> Tensor:
        """Return the Cholesky factor of the mixed covariance."""
        size = len(self.covariance)
        eye = torch.eye(size, dtype=self.covariance.dtype)
        mixed = (
            1 - self.shrinkage
        ) * self.covariance + self.shrinkage * self.covariance.trace() / size * eye
        factor: Tensor
        factor, failed = torch.linalg.cholesky_ex(mixed)
        if int(failed):
            raise ArgumentError(
                "feature_density",
                "a covariance that can be inverted",
                "one that is singular",
                "a larger shrinkage, or more rows",
            )
        return factor

    def distance(self, inputs: Tensor) -> Tensor:
        """Return the squared Mahalanobis distance to the nearest class, ``(B,)``: larger means less
        certain.

        Raises
        ------
        ArgumentError
            If the covariance is singular, as it is without rows.
        """
        return self._distances(inputs).amin(1)

    def log_density(self, inputs: Tensor) -> Tensor:
        """Return the logarithm of the density of the features, ``(B,)``; errors as for
        `distance`.
        """
        size = len(self.covariance)
        normal = (
            -(self._distances(inputs) + size * math.log(2 * math.pi)) / 2
            - self._root.diagonal().log().sum()
        )
        return torch.logsumexp(normal + (self.counts[self.counts > 0] / self.counts.sum()).log(), 1)

    def _distances(self, inputs: Tensor) -> Tensor:
        """Return the squared distances to the classes with rows, ``(B, C)``."""
        rows = (
            torch.cat([features(self.net, self.parameters, part) for part in inputs.split(2000)])
            .double()
            .cpu()
        )
        whitened = torch.linalg.solve_triangular(self._root, rows.mT, upper=False).mT
        centres = torch.linalg.solve_triangular(
            self._root, self.means[self.counts > 0].mT, upper=False
        ).mT
        distances: Tensor = (whitened[:, None] - centres).square().sum(2)
        return distances


def last_of(net: nn.Module) -> tuple[str, nn.Linear]:
    """Return path and layer of a network's last linear layer; `ArgumentError` without any."""
    return last_linear(net, "feature_density", "mlp([64, 64, 10], key)")


def features(net: nn.Module, parameters: Tree, inputs: Tensor) -> Tensor:
    """Return what the last linear layer of a network gets, ``(B, d)``.

    Raises
    ------
    DataError
        If that layer is not used exactly once, on one vector a row.
    """
    last, _ = last_of(net)
    with noting(net, [last]) as calls, torch.no_grad(), evaluating(net):
        called(net, to(parameters, inputs.device), inputs)
    if len(calls) != 1 or calls[0][1].ndim != 2:
        raise DataError(
            "feature_density",
            "a last linear layer used once, on (B, d)",
            f"{plural(len(calls), 'time')}, {tuple(calls[0][1].shape) if calls else ()}",
            "mlp, cnn, resnet18",
        )
    return calls[0][1]
