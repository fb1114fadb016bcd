"""Two-sided bounds of log Z: mean field from below, tree-reweighted from above.

Below: for any independent q, ``log Z >= E_q[log weight] + H(q)``. Above: if log tables are an
average of those of forests, log Z is at most the average of the forests' log Z, since it is convex
in the tables. Every factor is in one forest at least; what unary weights each forest has is
improved by a few gradient steps. Both hold whatever the messages did.

References
----------
Wainwright and Jordan, Graphical models, exponential families, and variational inference (2008),
sections 5.3 and 7.2. Wainwright, Jaakkola and Willsky, A new class of upper bounds on the log
partition function, IEEE Trans. Inf. Theory 51 (2005).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesfed.inference.sum_product.graphs.flat import TableGroup, Tables
from bayesfed.inference.sum_product.methods.outcome import Settings
from bayesfed.inference.sum_product.methods.tables.propagation import pass_tables
from bayesfed.models.random_fields.ising import Ising

# Rounds of mean field, and gradient steps of the forests' unary weights.
ROUNDS, STEPS = 30, 12


def as_tables(
    model: Ising | Tables, evidence: Tensor, marginals: Tensor
) -> tuple[Tables, Tensor, Tensor]:
    """Return a model, evidence and marginals in the form of tables, in float64: ``(B, n)`` become
    ``(B, n, 2)``.
    """
    if isinstance(model, Tables):
        return model, evidence.double(), marginals.double()
    zeros, coupling = (
        torch.zeros_like(evidence, dtype=torch.float64),
        model.coupling.detach().double().cpu(),
    )
    tables = torch.nn.functional.pad(coupling[:, None, None], (1, 0, 1, 0))
    field = model.field.detach().double().cpu()
    group = TableGroup(tables, torch.arange(len(coupling)), model.edges.cpu().T)
    flat = Tables(
        torch.full((len(field),), 2),
        torch.stack([torch.zeros_like(field), field], dim=1),
        (group,) if len(coupling) else (),
    )
    return (
        flat,
        torch.stack([zeros, evidence.double()], dim=2),
        torch.stack([1 - marginals, marginals], dim=2).double(),
    )


@torch.no_grad()
def lower_bound(model: Tables, evidence: Tensor, marginals: Tensor) -> Tensor:
    """Return the best mean-field bound ``(B,)`` of a few damped rounds that start at marginals
    ``(B, n, C)``.
    """
    padded = torch.arange(model.unary.shape[1]) >= model.cards[:, None]
    unary = (
        model.unary.double().masked_fill(padded, -math.inf).to(evidence.device) + evidence
    ).masked_fill(padded.to(evidence.device), -math.inf)
    q, best = marginals, evidence.new_full((len(evidence),), -math.inf)
    for _ in range(ROUNDS):
        pull, energy = _expected(model, q)
        value = energy + torch.where(q > 0, q * (unary - q.log()), 0.0).flatten(1).sum(1)
        best = torch.maximum(best, value.nan_to_num(nan=-math.inf))
        q = (
            q
            + (unary + pull)
            .nan_to_num(nan=-math.inf, neginf=-math.inf)
            .softmax(-1)
            .nan_to_num(nan=0.0)
        ) / 2
        q = q / q.sum(-1, keepdim=True)
    return best


def _expected(model: Tables, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each state the expected log table given it ``(B, n, C)``, and the expected log
    weight of all factors ``(B,)``.
    """
    pull, energy = torch.zeros_like(q), q.new_zeros(len(q))
    for group in model.groups:
        logs, scope = (
            group.tables.double().to(q.device)[group.which.to(q.device)][None],
            group.scope.to(q.device),
        )
        arity = scope.shape[1]
        weights = [q[:, scope[:, axis], : logs.shape[2 + axis]] for axis in range(arity)]
        shaped = [
            w.reshape(*w.shape[:2], *[1] * axis, -1, *[1] * (arity - axis - 1))
            for axis, w in enumerate(weights)
        ]
        for axis in range(arity):
            # Forbidden combinations count only where q gives them weight.
            others = math.prod(
                (shaped[other] for other in range(arity) if other != axis),
                start=torch.ones_like(shaped[0][..., :1]),
            )
            gone = [2 + other for other in range(arity) if other != axis]
            expected = torch.where(others > 0, others * logs, 0.0).sum(gone)
            pull[..., : expected.shape[-1]].index_add_(1, scope[:, axis], expected)
        both = math.prod(shaped, start=torch.ones_like(shaped[0][..., :1]))
        energy += torch.where(both > 0, both * logs, 0.0).flatten(1).sum(1)
    return pull, energy


@torch.no_grad()
def upper_bound(model: Tables, evidence: Tensor) -> Tensor:
    """Return the best tree-reweighted bound ``(B,)`` of a few gradient steps."""
    forests = _forests(model)
    shifts = [torch.zeros_like(evidence) for _ in forests]
    best = evidence.new_full((len(evidence),), math.inf)
    for step in range(STEPS):
        sums = [
            pass_tables(forest, evidence + shift, Settings())
            for forest, shift in zip(forests, shifts, strict=True)
        ]
        best = torch.minimum(best, torch.stack([outcome.log_z() for outcome in sums]).mean(0))
        beliefs = [outcome.belief.exp() for outcome in sums]
        average = torch.stack(beliefs).mean(0)
        for shift, belief in zip(shifts, beliefs, strict=True):
            shift.add_(average - belief, alpha=4 / (1 + step / 4))
    return best


def _forests(model: Tables) -> list[Tables]:
    """Return forests whose log tables have the model's as their average; each factor is in one of
    them or more.
    """
    scopes = [tuple(scope) for group in model.groups for scope in group.scope.tolist()]
    covered, members = [0] * len(scopes), list[list[int]]()
    while not members or not all(covered):
        above = list(range(model.cards.numel()))

        def root(variable: int, above: list[int] = above) -> int:
            while above[variable] != variable:
                above[variable] = variable = above[above[variable]]
            return variable

        taken = []
        # First what no forest has yet.
        for number in sorted(range(len(scopes)), key=covered.__getitem__):
            roots = {root(variable) for variable in scopes[number]}
            if len(roots) == len(scopes[number]):
                first = roots.pop()
                for other in roots:
                    above[other] = first
                taken.append(number)
        for number in taken:
            covered[number] += 1
        members.append(taken)
    starts = [0]
    for group in model.groups:
        starts.append(starts[-1] + len(group.which))
    forests = []
    for taken in members:
        groups = []
        for group, start in zip(model.groups, starts, strict=False):
            rows = sorted(
                number - start for number in taken if start <= number < start + len(group.which)
            )
            if rows:
                scale = torch.tensor(
                    [len(members) / covered[start + row] for row in rows], dtype=torch.float64
                )
                logs = group.tables.detach().double().cpu()[group.which.cpu()[rows]]
                logs = logs * scale.reshape(-1, *[1] * (logs.ndim - 1))
                groups.append(TableGroup(logs, torch.arange(len(rows)), group.scope.cpu()[rows]))
        forests.append(Tables(model.cards, model.unary.detach().double(), tuple(groups)))
    return forests
