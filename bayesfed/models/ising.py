"""Pairwise binary models: what every support prior is lowered to.

``log p(s) = sum_i field_i s_i + sum_(i,j) coupling_ij s_i s_j - log Z``,  s in {0, 1}^n.

Any 2 x 2 table of log weights has this form up to a constant, so asymmetric Markov chains
need no other kernel. In the spin notation of physics the coupling here is 4 J.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints

from bayesfed.errors import ArgumentError, complain


@dataclass(frozen=True)
class Ising:
    """A pairwise binary model over n variables arranged as ``shape``.

    Parameters
    ----------
    field
        ``(n,)`` log-odds of each variable before its neighbours speak.
    edges
        ``(2, E)`` integer pairs of variables; each pair at most once, no self loops.
    coupling
        ``(E,)`` bonus in nats when both ends are 1.
    shape
        How the variables are arranged; its product is n.
    colours
        ``(n,)`` a proper colouring: neighbours differ. Messages leave one colour at a time.
    """

    field: Tensor
    edges: Tensor
    coupling: Tensor
    shape: tuple[int, ...]
    colours: Tensor

    def __post_init__(self) -> None:
        count = self.field.numel()
        good = (
            self.field.shape == (count,)
            and self.edges.shape == (2, self.coupling.numel())
            and self.colours.shape == (count,)
            and torch.Size(self.shape).numel() == count
        )
        if not good:
            shapes = tuple(map(tuple, (self.field.shape, self.edges.shape, self.coupling.shape, self.colours.shape)))
            raise ArgumentError(
                complain("Ising", expected=f"shapes (n,), (2, E), (E,), (n,) with n = prod{self.shape}", actual=shapes, hint="flat tensors")
            )
        left, right = self.edges
        if self.coupling.numel() and bool((self.colours[left] == self.colours[right]).any()):
            raise ArgumentError(complain("Ising", expected="neighbours of different colours", actual="equal ones", hint="a proper colouring"))

    def energy(self, support: Tensor) -> Tensor:
        """Return the unnormalised log probability of supports ``(..., *shape)`` as ``(...)``."""
        flat = support.to(self.field.dtype).reshape(*support.shape[: support.ndim - len(self.shape)], -1)
        left, right = self.edges
        return flat @ self.field + (flat[..., left] * flat[..., right]) @ self.coupling

    def strength(self) -> float:
        """Return the largest coupling in spin units, |J| = |coupling| / 4."""
        return float(self.coupling.abs().max()) / 4 if self.coupling.numel() else 0.0

    def to(self, device: torch.device | str) -> Ising:
        """Return the same model with its tensors on `device`."""
        field, edges, coupling, colours = (tensor.to(device) for tensor in (self.field, self.edges, self.coupling, self.colours))
        return Ising(field, edges, coupling, self.shape, colours)


class IsingSupport(TorchDistribution):
    """An Ising model as a Pyro distribution over ``shape``: `log_prob` up to ``log Z``, `sample` by Gibbs sweeps.

    The normaliser is left out because it is a constant of the declared prior; it is zero, and
    `sample` exact, when there are no edges. With edges `sample` runs `sweeps` colour-wise Gibbs
    sweeps from independent fields, close to exact below the ordering threshold (|J| < 0.35).
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch declares it as a plain dict
    support = constraints.boolean
    has_enumerate_support = False

    def __init__(self, ising: Ising, sweeps: int = 30) -> None:
        self.ising, self.sweeps = ising, sweeps
        super().__init__(event_shape=torch.Size(ising.shape), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the energy less the part of ``log Z`` that is known without summing over supports."""
        free = torch.nn.functional.softplus(self.ising.field).sum() if not self.ising.coupling.numel() else 0.0
        return self.ising.energy(value) - free

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw supports ``(*sample_shape, *shape)`` from torch's global generator."""
        ising = self.ising
        flat = torch.bernoulli(torch.sigmoid(ising.field).expand(*sample_shape, -1))
        left, right = ising.edges
        for _ in range(self.sweeps if ising.coupling.numel() else 0):
            for colour in ising.colours.unique():
                pull = ising.field.expand_as(flat).clone()
                pull.index_add_(-1, right, flat[..., left] * ising.coupling)
                pull.index_add_(-1, left, flat[..., right] * ising.coupling)
                flat = torch.where(ising.colours == colour, torch.bernoulli(torch.sigmoid(pull)), flat)
        return flat.reshape(*sample_shape, *ising.shape)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Refuse batches: a support prior describes one grid."""
        if torch.Size(batch_shape).numel() != 1:
            raise ArgumentError(complain("IsingSupport", expected="no batch dimension", actual=tuple(batch_shape), hint="a site per layer"))
        return self
