"""What a posterior may be able to do besides being drawn from: `Weighing`, `Partial`, `Dense`,
`Scored`, `OfSites`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from pyro.distributions import TorchDistribution
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.federated.core.algorithm import Posterior
from bayesfed.keys import Key
from bayesfed.trees import Tree


@runtime_checkable
class Weighing(Protocol):
    """A posterior with a density, so that its draws have importance weights."""

    def log_weights(self, data: Dataset, key: Key, *, draws: int = 1000) -> Tensor:
        """Return ``log p(D, z) - log q(z)`` at draws of q, ``(draws,)``, in nats."""


@runtime_checkable
class Partial(Protocol):
    """A posterior of which a part stays with clients, such as local latents."""

    @property
    def stays(self) -> tuple[str, ...]:
        """Names of what stays; empty if nothing does."""

    def at_client(self, memory: Tree, data: Dataset | None = None, name: str = "") -> Posterior:
        """Return the posterior of the client that keeps this memory.

        For equal keys, all clients' draws have equal shared sites, and clients of different names
        have local ones that are independent.
        """


@runtime_checkable
class Dense(Protocol):
    """A posterior that knows densities at its own draws."""

    def draw_with_densities(self, key: Key) -> tuple[Tree, Tree]:
        """Return the draw of `draw` for this key, and the log densities that are known at it, in
        nats: ``log_q``, ``log_prior``, and ``log_prior/SITE`` of each site of the prior.
        """


@runtime_checkable
class Scored(Protocol):
    """A posterior whose clients keep the log densities of their rows at its own draws."""

    def log_likelihoods(self, key: Key, memories: Mapping[str, Tree]) -> Tree:
        """Return the log density in nats of each client's rows at the draw of `draw` for this key;
        nothing unless those of all rows are known.
        """


@runtime_checkable
class OfSites(Protocol):
    """A posterior of a model whose sites have names of their own."""

    def observe_sites(
        self, draw: Mapping[str, Tensor], inputs: Tensor, key: Key
    ) -> Mapping[str, TorchDistribution]:
        """Return the distribution of each observed site at a draw, which may have values of
        observed sites as well.
        """

    def observed(self, draw: Mapping[str, Tensor], data: Dataset) -> Tree:
        """Return what each observed site observes of rows."""

    def derived(self, draw: Mapping[str, Tensor], key: Key) -> Tree:
        """Return the deterministic sites that no rows enter, at one draw."""
