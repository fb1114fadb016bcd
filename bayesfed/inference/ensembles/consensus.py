"""What the posteriors of clients predict together: between the mean of their predictions and the
product (Hasan et al., 2024).

======================  ==========================================================================
paper                   here
======================  ==========================================================================
p_k(y | x)              the mean prediction of the networks that client k drew
beta                    `Consensus.share`: 0 is the mean of the clients, 1 their product
p(y | x)                proportional to ``(prod_k p_k)^beta (mean_k p_k)^(1 - beta)``
======================  ==========================================================================

A product is too certain where the clients' rows are alike, since each p_k has the prior's share and
the clients err together; the mean is too doubtful. The labels of held-out rows decide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from bayesfed.errors.checks import checked
from bayesfed.inference.ensembles.networks import Networks, apart
from bayesfed.keys import Key
from bayesfed.models.modules import outputs
from bayesfed.trees import Tree


@dataclass(frozen=True, eq=False)
class Consensus(Networks):
    """Predictor and posterior in one: the networks of all clients, of which one prediction is made.

    The prediction is no mean over draws. As a posterior it therefore has a single member, which
    holds all networks, and no mutual information.

    Parameters
    ----------
    parameters
        By parameter ``(K, S, ...)``: S networks of each of K clients.
    share
        beta.
    """

    parameters: Tree
    share: float

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logarithms of the probabilities of the classes, ``(B, C)``."""
        return interpolated(self.by_client(inputs), self.share)

    def by_client(self, inputs: Tensor) -> Tensor:
        """Return ``log p_k``, ``(K, B, C)``."""
        return by_client(self.net, self.parameters, inputs)

    @property
    def members(self) -> tuple[Tree, ...]:
        """All networks, as the one draw that a `Predictive` takes."""
        return (self.parameters,)

    @property
    def constants(self) -> Tree:
        """beta, as ``share``."""
        return {"share": torch.tensor(self.share)}

    @checked()
    def draw(self, key: Key) -> Tree:
        """Return all networks."""
        return self.parameters

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the classes, of batch shape ``(B,)``."""
        logs = by_client(self.net, draw, inputs)
        return self.likelihood.distribution(interpolated(logs, self.share))


def by_client(net: nn.Module, networks: Tree, inputs: Tensor) -> Tensor:
    """Return the logarithm of each client's mean prediction, ``(K, B, C)``, for networks
    ``(K, S, ...)`` by parameter.
    """
    return torch.stack(
        [
            mean_of(torch.stack([outputs(net, one, inputs).log_softmax(1) for one in apart(own)]))
            for own in apart(networks)
        ]
    )


def interpolated(logs: Tensor, share: float) -> Tensor:
    """Return ``log p``, ``(B, C)``, for ``log p_k`` ``(K, B, C)`` and beta."""
    return (share * logs.sum(0) + (1 - share) * mean_of(logs)).log_softmax(1)


def mean_of(logs: Tensor) -> Tensor:
    """Return the logarithm of the mean of what these are the logarithms of, over the first axis."""
    return logs.logsumexp(0) - math.log(len(logs))
