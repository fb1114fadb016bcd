"""`Inferred`, the result of `infer`: marginals, messages, log Z, and how far to trust them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from bayesfed.errors.checks import checked, whole
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.methods.conditioning import (
    ConditionedSums,
    fitting,
    forbids,
    parts_of,
    refuse_part,
    whole_part,
)
from bayesfed.inference.sum_product.methods.junction import (
    build,
    cheap_tree,
    fitting_tree,
    refuse_size,
)
from bayesfed.inference.sum_product.methods.outcome import Outcome
from bayesfed.inference.sum_product.methods.structure import as_flat, learned
from bayesfed.inference.sum_product.trust.uniqueness import spectral_bound
from bayesfed.keys import Key
from bayesfed.models.random_fields.clusters import Clusters
from bayesfed.models.random_fields.grid import Grid
from bayesfed.models.random_fields.ising import Ising
from bayesfed.models.random_fields.junction_tree import JunctionTree

Model = Grid | Ising | Tables
Method = Literal["exact", "bp", "strip", "gbp"]


@dataclass(frozen=True)
class Inferred:
    """The result of `infer`; every tensor starts with the batch dimensions of the evidence.

    Parameters
    ----------
    method
        The method that ran.
    belief
        Log-odds of the graph's shape, infinite where a state was observed. For general graphs: log
        marginals ``(..., n, C)``.
    state
        Messages; pass them to the next call for a warm start.
    sweeps, residual, converged
        Number of sweeps, largest change of a message in the last one (nats), and whether that is
        within the tolerance. Exact sums have 1, 0 and true.
    multistable_share
        Share of variables whose probability differs by more than 0.01 between runs from several
        starts; None without `certify`. With attractive binary couplings these are the extremes, and
        for "bp" 0 proves, up to the tolerance, that there is one fixed point.
        Elsewhere 0 says only that the runs agree. Exact sums have 0.
    model
        The flat model; of `Clusters`, that of the clusters, whose pairs `pair_marginals` has.
    """

    method: Method
    belief: Tensor
    state: Tensor
    sweeps: int
    residual: float
    converged: bool
    multistable_share: float | None
    model: Model = field(repr=False)
    _outcome: Outcome = field(repr=False)
    _evidence: Tensor = field(repr=False)
    _seen: Tensor = field(repr=False)
    _constant: Tensor | float = field(default=0.0, repr=False)
    _clusters: Clusters | None = field(default=None, repr=False)
    _entries: Tensor | None = field(default=None, repr=False)

    @cached_property
    def trust(self) -> Literal["exact", "unique", "unverified"]:
        """Whether the marginals are exact, or belief propagation provably has one fixed point, or
        neither.

        "unique": `trust_bound` is below 1. Messages reach that point from every start; the
        marginals are still approximate, and the nearer to 1 the bound, the more. "unverified":
        nothing is known; with strong couplings, marginals can be far off and overconfident.
        """
        if self._exact:
            return "exact"
        bound = self.trust_bound
        return "unique" if self.method == "bp" and bound is not None and bound < 1 else "unverified"

    @cached_property
    def extrinsic(self) -> Tensor:
        """What is known of each variable without its own evidence, in the form of `belief`:
        log-odds, ``belief = evidence + extrinsic``, or normalised log marginals.

        Of variables that were observed it takes further sums, a graph for each, where exact sums
        have taken these variables out of the graph.

        Raises
        ------
        ArgumentError
            If a graph with such a variable free is too large.
        """
        later = self._outcome.later
        with torch.no_grad():
            flat = self._outcome.extrinsic if later is None else later()
            if self._clusters and self._entries is not None:
                return self.belief - self._entries.detach()
            return flat.reshape(self._evidence.shape).to(self._evidence)

    @property
    def _exact(self) -> bool:
        return self.method == "exact" or self._outcome.exact

    @cached_property
    def trust_bound(self) -> float | None:
        """Upper bound on the spectral radius of Mooij and Kappen (2007): below 1, belief
        propagation has one fixed point. None for exact sums.
        """
        return None if self._exact else spectral_bound(self.model)

    @cached_property
    def hard(self) -> bool:
        """Whether a table of two or more variables forbids a combination."""
        return isinstance(self.model, Tables) and any(
            torch.isneginf(group.tables).any() for group in self.model.groups
        )

    @property
    def marginals(self) -> Tensor:
        """Probabilities of 1, of the graph's shape; for general graphs, of every state
        ``(..., n, C)``.
        """
        return self.belief.exp() if isinstance(self.model, Tables) else self.belief.sigmoid()

    @property
    def probabilities(self) -> Tensor:
        """Probabilities of every state, ``(..., *shape, C)``, in this form for every graph."""
        marginals = self.marginals
        if isinstance(self.model, Tables):
            return marginals
        return torch.stack([1 - marginals, marginals], dim=-1)

    @cached_property
    def pair_marginals(self) -> tuple[Tensor, ...]:
        """Marginal tables of the factors; for binary pairwise graphs in float64.

        Grids: row links ``(..., [copies,] K, M - 1, 2, 2)`` and column links
        ``(..., [copies,] K - 1, M, 2, 2)``, in the grid's own order. Edge lists:
        ``(..., [copies,] E, 2, 2)``. General graphs: ``(..., F, *cards)`` for each shape of table.
        """
        with torch.no_grad():
            return tuple(
                self._unflatten(table.to(self._evidence.device)) for table in self._outcome.pairs()
            )

    @cached_property
    def log_z(self) -> Tensor:
        """Log of the sum over all states, of the batch's shape, float64: exact, Kikuchi's estimate
        (strip) or Bethe's.

        Differentiable once in the evidence and in the model's tensors, if these require gradients.
        At a fixed point, the derivative is the marginal (Wainwright and Jordan, 2008), so no
        gradient goes through the sweeps.
        """
        with torch.no_grad():
            value = self._outcome.log_z().to(self._evidence.device, torch.float64)
            value = value.reshape(*self._batch, -1).sum(-1)
        value = value + self._constant
        expected = self._expected_energy()
        return value if expected is None else value + (expected - expected.detach())

    @checked(count=whole(1, "100"))
    @torch.no_grad()
    def sample(self, count: int, key: Key) -> Tensor:
        """Return exact draws ``(count, ..., *shape)`` of states as integers, each independent of
        the others, by junction tree.

        Whatever method made this result, the graph must be one that ``method="exact"`` serves by a
        junction tree.

        Parameters
        ----------
        count
            Number of draws.
        key
            Key of the random numbers.

        Raises
        ------
        ArgumentError
            If the clique tree does not fit, or `count` is not positive.
        """
        return self._arranged(self._junction.sample(count, key.generator(self._evidence.device)))

    @cached_property
    def most_probable(self) -> tuple[Tensor, Tensor]:
        """A most probable state ``(..., *shape)``, as integers, and its log probability, of the
        batch's shape; exact, by junction tree.

        Where several states are the most probable, every call returns the same one.
        """
        with torch.no_grad():
            state, weight = self._junction.most_probable()
            log_probability = weight - self._junction.log_z()
            return self._arranged(state[None])[0], log_probability.reshape(*self._batch, -1).sum(-1)

    @cached_property
    def _flat(self) -> tuple[Ising | Tables, Tensor]:
        """The model as an edge list or tables, and the evidence ``(B, n)`` or ``(B, n, C)`` in its
        order, infinite where a state was observed; B counts batch entries and copies.
        """
        flat, evidence = as_flat(self.model), self._seen.to(self._evidence.device)
        if isinstance(flat, Tables):
            return flat, evidence.reshape(-1, *evidence.shape[-2:])
        return flat, evidence.reshape(-1, flat.field.numel())

    @cached_property
    def _junction(self) -> JunctionTree | ConditionedSums:
        flat, evidence = self._flat
        hint = "a smaller batch or graph, or its marginals"
        if forbids(flat, evidence) and cheap_tree(flat, len(evidence)) is None:
            whole = whole_part(flat, evidence)
            if (parts := parts_of(whole, fitting)) is None:
                raise refuse_part(whole, hint)
            return ConditionedSums(flat, evidence, parts)
        tree = fitting_tree(flat, len(evidence))
        if tree is None:
            raise refuse_size(flat, len(evidence), hint)
        return build(flat, evidence, tree)[0]

    def _arranged(self, states: Tensor) -> Tensor:
        """Return states ``(count, B, n)`` in the user's shape."""
        arranged = states.reshape(len(states), *self._batch, *self.model.shape)
        return self._clusters.spread(arranged) if self._clusters else arranged

    @property
    def _batch(self) -> tuple[int, ...]:
        inner = 2 if isinstance(self.model, Tables) else len(self.model.shape)
        return tuple(self._evidence.shape[: self._evidence.ndim - inner])

    def _unflatten(self, table: Tensor) -> Tensor:
        copies = 1 if isinstance(self.model, Tables) else self.model.copies
        return table.reshape(*self._batch, *([copies] if copies > 1 else []), *table.shape[1:])

    def _expected_energy(self) -> Tensor | None:
        """Return the expectation of evidence and log weights under the marginals; None if nothing
        in it requires a gradient.
        """
        model = self.model
        if not (self._evidence.requires_grad or learned(model)):
            return None
        marginals, batch = self.marginals.detach().double(), len(self._batch)
        device, evidence = marginals.device, self._evidence.double()
        joint = list(self.pair_marginals)
        if isinstance(model, Tables):
            own = evidence + model.unary.double().to(device)
            weights = [
                group.tables.double().to(device)[group.which.to(device)] for group in model.groups
            ]
        else:
            if isinstance(model, Grid):
                field, weights = model.fields(device=device), list(model.couplings(device=device))
            else:
                field = model.field.double().to(device)
                weights = [model.coupling.double().to(device)]
            # Of the model's own variables, which clusters share out among their entries.
            belief = self._outcome.belief.to(self._evidence.detach())
            marginals = belief.sigmoid().double().reshape(*self._batch, model.copies, -1)
            own = evidence.reshape(marginals.shape) + field.reshape(-1)
            joint = [table[..., 1, 1] for table in joint]
        # What is impossible weighs -inf and has probability 0.
        terms = [
            (torch.where(share > 0, logs, 0.0) * share).flatten(batch).sum(-1)
            for logs, share in zip([own, *weights], [marginals, *joint], strict=True)
        ]
        return torch.stack(terms).sum(0)
