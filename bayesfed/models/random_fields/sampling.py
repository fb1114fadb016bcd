"""Supports as a Pyro distribution: the energy, exact draws where possible, Swendsen-Wang or Gibbs
sweeps elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor
from torch.distributions import constraints
from torch.nn.functional import pad, softplus

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import COUNT, checked_class
from bayesfed.models.random_fields import forest
from bayesfed.models.random_fields import transfer_matrix as transfer
from bayesfed.models.random_fields.clique_tables import CliqueTables, Factor
from bayesfed.models.random_fields.clusters import Clusters, Lowered
from bayesfed.models.random_fields.elimination import CliqueTree, clique_tree
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising, components
from bayesfed.models.random_fields.junction_tree import JunctionTree
from bayesfed.models.random_fields.kept import kept

# Most entries of a table, and most variables, of models that are drawn from exactly.
LARGEST, MANY = 2**16, 2000


@checked_class(sweeps=COUNT)
class ClusteredSupport(TorchDistribution):
    """Which weights are active, as a Pyro distribution of binary tensors of ``model.shape``: a
    pairwise binary model that can be sampled and scored.

    `log_prob` leaves out log Z, a constant of the declared prior; it is subtracted only if nothing
    is coupled, where it is known. To learn couplings, subtract `bayesfed.inference.log_z`, which
    has gradients.

    `sample` is exact for trees, for grids with a side of at most 12, which include chains, and for
    other models whose clique tree is small (2^16 entries a table, 2000 variables). Other models run
    `sweeps` Markov chain sweeps from independent draws. If no coupling is negative, these are
    cluster updates of Swendsen and Wang (1987; fields as in Edwards and Sokal, 1988), which also
    mix beyond the ordering transition; otherwise they are Gibbs sweeps.

    Parameters
    ----------
    model
        Couplings and fields, as a support prior's `lower` returns them.
    sweeps
        Number of Markov chain sweeps, where `sample` is not exact.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012 - torch declares it as a plain dict
    support = constraints.boolean
    has_enumerate_support = False

    def __init__(self, model: Lowered, sweeps: int = 30) -> None:
        self.model, self.sweeps = model, sweeps
        super().__init__(event_shape=torch.Size(model.shape), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the energy ``(...)`` of supports ``(..., *shape)``, minus log Z if nothing is
        coupled.
        """
        energy = self.model.energy(
            value.to(torch.get_default_dtype()) if not value.is_floating_point() else value
        )
        if self.model.strength():
            return energy
        own = self.model.model if isinstance(self.model, Clusters) else self.model
        flat = own.fields() if isinstance(own, Grid) else own.field
        return energy - softplus(flat).sum().to(energy.dtype) * own.copies

    @torch.no_grad()
    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw supports ``(*sample_shape, *shape)`` of zeros and ones from torch's global
        generator.
        """
        if isinstance(self.model, Clusters):
            drawn = ClusteredSupport(self.model.model, self.sweeps).sample(sample_shape)
            return self.model.spread(drawn)
        count = torch.Size(sample_shape).numel() * self.model.copies
        if not count:
            return torch.zeros(*sample_shape, *self.model.shape)
        if isinstance(self.model, Grid) and transfer.fits(self.model, 1):
            drawn = transfer.Transfer.of(self.model, torch.zeros(1, *self.model.size)).sample(count)
            drawn = drawn if self.model.size[0] >= self.model.size[1] else drawn.mT
        else:
            drawn = _draw(self.model.ising(), count, self.sweeps)
        return drawn.reshape(*sample_shape, *self.model.shape).to(torch.get_default_dtype())

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> Self:
        """Return itself; raise `ArgumentError` for a batch shape, since a support prior describes
        one layer.
        """
        if torch.Size(batch_shape).numel() != 1:
            raise ArgumentError(
                "ClusteredSupport", "no batch dimension", tuple(batch_shape), "a site per layer"
            )
        return self


def _draw(model: Ising, count: int, sweeps: int) -> Tensor:
    if model.is_forest:
        return forest.sample(model, count)
    if (exact := _exactly(model, count)) is not None:
        return exact
    flat = torch.bernoulli(torch.sigmoid(model.field).expand(count, -1))
    sweep = swendsen_wang if model.attractive() else gibbs
    for _ in range(sweeps):
        flat = sweep(model, flat)
    return flat


@kept
def _small_tree(model: Ising) -> CliqueTree | None:
    size = model.field.numel()
    scopes = zip(*model.edges.tolist(), strict=True)
    return clique_tree([2] * size, scopes, LARGEST) if size <= MANY else None


def _exactly(model: Ising, count: int) -> Tensor | None:
    """Return exact draws ``(count, n)`` by junction tree; None if its clique tree is large."""
    if (tree := _small_tree(model)) is None:
        return None
    tables = pad(model.coupling.double()[:, None, None, None], (1, 0, 1, 0))
    factors = [
        Factor((left, right), table)
        for left, right, table in zip(*model.edges.tolist(), tables, strict=True)
    ]
    cliques = CliqueTables.of(tree, [2] * model.field.numel(), factors, model.field.double())
    unary = torch.stack(
        [torch.zeros_like(model.field, dtype=torch.float64), model.field.double()], dim=1
    )
    return JunctionTree(cliques, list(unary[:, None].unbind(0))).sample(count)[:, 0].to(model.field)


def gibbs(model: Ising, flat: Tensor) -> Tensor:
    """Redraw every variable of states ``(S, n)``, one colour at a time."""
    left, right = model.edges
    coupling = model.coupling.to(flat)
    for colour in model.colours.unique():
        pull = model.field.to(flat).expand_as(flat).clone()
        pull.index_add_(-1, right, flat[..., left] * coupling)
        pull.index_add_(-1, left, flat[..., right] * coupling)
        flat = torch.where(model.colours == colour, torch.bernoulli(torch.sigmoid(pull)), flat)
    return flat


def swendsen_wang(model: Ising, flat: Tensor) -> Tensor:
    """Redraw whole clusters of states ``(S, n)``: bonds between equal neighbours, then one draw for
    each cluster.
    """
    (left, right), half = model.edges, (model.coupling / 2).to(flat)
    bonds = (flat[:, left] == flat[:, right]) & (
        torch.rand(len(flat), len(left), device=flat.device) < -torch.expm1(-half)
    )
    draw, edge = (x.cpu().numpy() for x in bonds.nonzero(as_tuple=True))
    count, size = flat.numel(), flat.shape[1]
    clusters, label = components(
        count, draw * size + left.cpu().numpy()[edge], draw * size + right.cpu().numpy()[edge]
    )
    cluster = torch.from_numpy(label).to(flat.device)
    pull = flat.new_zeros(clusters).index_add_(
        0, cluster, model.symmetric_field().to(flat).repeat(len(flat))
    )
    return torch.bernoulli(torch.sigmoid(pull))[cluster].reshape(flat.shape)
