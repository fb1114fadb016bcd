"""Generalised belief propagation by the two-way algorithm of Heskes, Albers and Kappen, in logs and
in float64.

With n outer regions a around an inner region b and its counting number c::

    m_ab = log sum over x_(a minus b) of q_a  -  m_ba
    q_b  = sum over a of m_ab / (n + c)
    m_ba = q_b - m_ab          and q_a follows

Fixed points are stationary points of Kikuchi's free energy.

References
----------
Heskes, Albers and Kappen, Approximate inference and constrained optimization, UAI (2003).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.methods.outcome import Outcome, Settings, resumed
from bayesfed.inference.sum_product.methods.regions.choice import RUN, Scope, region_graph
from bayesfed.inference.sum_product.methods.regions.wiring import Batch, Part, RegionWiring
from bayesfed.inference.sum_product.methods.settle import Damper, settle
from bayesfed.inference.sum_product.methods.structure import (
    by_group,
    log_tables,
    structure,
    unary_weights,
)
from bayesfed.models.random_fields.clique_tables import shape_of
from bayesfed.models.random_fields.ising import Ising

# Log weight of what tables forbid: differences of -inf would be undefined.
FORBIDDEN = -1e4
# Undamped, the two-way algorithm oscillates on most grids.
LEAST = 0.3


@dataclass(frozen=True)
class _Problem:
    """A model on regions: `own` are the log tables ``(B, F, *cards)`` of each group, `home` the
    outer region of each factor and variable.
    """

    wiring: RegionWiring
    own: list[Tensor]
    factors: list[tuple[int, int, tuple[int, ...]]]
    variables: list[tuple[int, int, tuple[int, ...]]]


def pass_regions(
    model: Ising | Tables,
    evidence: Tensor,
    regions: Sequence[Scope],
    settings: Settings,
    state: Tensor | None = None,
    limit: int = RUN,
) -> Outcome:
    """Pass messages between regions until they settle.

    Parameters
    ----------
    model
        The model.
    evidence
        Log-odds ``(B, n)``, or for tables log weights ``(B, n, C)``.
    regions
        Outer regions; factors and variables in none get one of their own.
    settings
        When to stop.
    state
        Messages ``(B, S)`` of an earlier run with the same regions.
    limit
        Most entries of all sweeps; more are refused before the first one.

    Raises
    ------
    ArgumentError
        If regions or sweeps are too large, `init` is not "zero", the state is not one of this graph
        and these regions, or an overlap is counted so often that its update is undefined.
    """
    settings.check_start()
    problem = _problem(model, evidence, regions, settings.max_sweeps, limit)
    wiring, beliefs = problem.wiring, [table.clone() for table in problem.own]
    sizes = [(len(part.outer), *batch.cards) for batch in wiring.batches for part in batch.parts]
    flat = [int(torch.tensor(size).prod()) for size in sizes]
    like = beliefs[0].new_zeros(len(evidence), sum(flat))
    kept = like if state is None else resumed(state, tuple(like.shape), like)
    messages = [
        part.unflatten(1, size) for part, size in zip(kept.split(flat, 1), sizes, strict=True)
    ]
    damper = Damper(max(settings.damping, LEAST))

    def step(count: int) -> float:
        change = 0.0
        for _ in range(count):
            change = 0.0
            _restart(wiring, problem.own, beliefs, messages)
            rest = iter(messages)
            for batch in wiring.batches:
                change = max(
                    change, _update(batch, beliefs, [next(rest) for _ in batch.parts], damper.share)
                )
        return change

    sweeps, residual = settle(step, settings, every=1, damper=damper) if messages else (1, 0.0)
    _restart(wiring, problem.own, beliefs, messages)
    return _outcome(model, evidence, problem, beliefs, kept, sweeps, residual)


def _problem(
    model: Ising | Tables,
    evidence: Tensor,
    regions: Sequence[Scope],
    sweeps: int,
    limit: int,
) -> _Problem:
    cards, scopes = structure(model)
    outer, counting = region_graph(len(cards), scopes, regions)
    wiring = RegionWiring.of(cards, outer, counting, evidence.device)
    wiring.price().check(len(evidence), sweeps, limit)
    holds: list[list[Scope]] = [[] for _ in cards]
    for region in outer:
        for variable in region:
            holds[variable].append(region)
    own = [
        evidence.new_zeros(len(evidence), len(group), *shape, dtype=torch.float64)
        for group, shape in zip(wiring.groups, wiring.cards, strict=True)
    ]

    def add(scope: tuple[int, ...], table: Tensor) -> tuple[int, int, tuple[int, ...]]:
        group, row = wiring.place[
            next(region for region in holds[scope[0]] if region.issuperset(scope))
        ]
        within = wiring.groups[group][row]
        order = sorted(range(len(scope)), key=scope.__getitem__)
        own[group][:, row] += table.permute(0, *(1 + axis for axis in order)).reshape(
            -1, *shape_of(cards, within, scope)
        )
        return group, row, scope

    factors = [
        add(scope, table[None].clamp_min(FORBIDDEN))
        for scope, table in zip(scopes, log_tables(model, evidence.device), strict=True)
    ]
    unary, _ = unary_weights(*_bounded(model, evidence))
    variables = [add((number,), weights) for number, weights in enumerate(unary)]
    return _Problem(wiring, own, factors, variables)


def _bounded(model: Ising | Tables, evidence: Tensor) -> tuple[Ising | Tables, Tensor]:
    """Return a model and evidence whose weights of single variables are finite, each by itself, so
    that evidence for an impossible state can be taken off again.
    """
    if isinstance(model, Ising):
        return model, evidence
    bounded = replace(model, unary=model.unary.clamp_min(FORBIDDEN))
    return bounded, evidence.clamp_min(FORBIDDEN)


def _restart(
    wiring: RegionWiring, own: list[Tensor], beliefs: list[Tensor], messages: list[Tensor]
) -> None:
    """Sum the beliefs anew from tables and messages, so that rounding errors do not accumulate."""
    for belief, table in zip(beliefs, own, strict=True):
        belief.copy_(table)
    rest = iter(messages)
    for batch in wiring.batches:
        for part in batch.parts:
            _add(beliefs[part.group], next(rest), part)


def _add(belief: Tensor, message: Tensor, part: Part) -> None:
    """Shape messages ``(B, P, *inner cards)`` for the outer tables."""
    sizes = iter(message.shape[2:])
    spread = message.reshape(
        *message.shape[:2], *(next(sizes) if stays else 1 for stays in part.kept)
    )
    belief.index_add_(1, part.outer, spread.expand(-1, -1, *belief.shape[2:]))


def _marginal(belief: Tensor, part: Part) -> Tensor:
    table = belief[:, part.outer]
    return table.logsumexp(part.gone) if part.gone else table


def _update(batch: Batch, beliefs: list[Tensor], messages: list[Tensor], damping: float) -> float:
    """Update the messages to the outer regions around a batch; return the largest change."""
    shape = (-1, *[1] * len(batch.cards))
    total = beliefs[0].new_zeros(len(beliefs[0]), len(batch.power), *batch.cards)
    sent = []
    for part, message in zip(batch.parts, messages, strict=True):
        sent.append(_marginal(beliefs[part.group], part) - message)
        total.index_add_(1, part.inner, sent[-1])
    total *= batch.power.reshape(shape)
    change = 0.0
    for part, message, out in zip(batch.parts, messages, sent, strict=True):
        fresh = total[:, part.inner] - out
        fresh = fresh - fresh.flatten(2).amax(-1).reshape(*fresh.shape[:2], *[1] * len(batch.cards))
        moved = (1 - damping) * (fresh - message)
        change = max(change, float(moved.abs().amax()))
        message.add_(moved)
        _add(beliefs[part.group], moved, part)
    return change


def _outcome(
    model: Ising | Tables,
    evidence: Tensor,
    problem: _Problem,
    beliefs: list[Tensor],
    state: Tensor,
    sweeps: int,
    residual: float,
) -> Outcome:
    wiring = problem.wiring
    tables = [belief.flatten(2).log_softmax(-1).reshape(belief.shape) for belief in beliefs]

    def marginal(home: tuple[int, int, tuple[int, ...]]) -> Tensor:
        """Return the log marginal ``(B, *cards)`` of variables in their region."""
        group, row, scope = home
        within = wiring.groups[group][row]
        gone = [axis + 1 for axis, variable in enumerate(within) if variable not in scope]
        table = tables[group][:, row]
        table = table.logsumexp(gone) if gone else table
        order = sorted(scope)
        return table.permute(0, *(1 + order.index(variable) for variable in scope))

    logs = [marginal(home) for home in problem.variables]
    if isinstance(model, Ising):
        belief = torch.stack([log[:, 1] - log[:, 0] for log in logs], dim=1)
        extrinsic = belief - evidence
    else:
        belief = evidence.new_full(evidence.shape, -torch.inf, dtype=torch.float64)
        extrinsic = belief.clone()
        for number, log in enumerate(logs):
            # What a table forbids has a weight near zero until here.
            card = log.shape[1]
            belief[:, number, :card] = torch.where(log > FORBIDDEN / 2, log, -torch.inf)
            others = log - evidence[:, number, :card].clamp_min(FORBIDDEN)
            extrinsic[:, number, :card] = torch.where(others > FORBIDDEN / 2, others, -torch.inf)
        belief = belief.log_softmax(-1)
        extrinsic = extrinsic.log_softmax(-1)

    def pairs() -> tuple[Tensor, ...]:
        joint = [marginal(home).exp() for home in problem.factors]
        return by_group(model, joint, evidence)

    def log_z() -> Tensor:
        total = beliefs[0].new_zeros(len(evidence))
        for table, own in zip(tables, problem.own, strict=True):
            total += (table.exp() * (own - table)).flatten(1).sum(1)
        for batch in wiring.batches:
            entropy = beliefs[0].new_zeros(len(evidence), len(batch.power))
            for part in batch.parts:
                log = _marginal(tables[part.group], part).flatten(2)
                # Every outer region has the same marginal: the last one written counts.
                entropy[:, part.inner] = -(log.exp() * log).sum(-1)
            total += entropy @ batch.counting
        return total

    return Outcome(belief, extrinsic, state, sweeps, residual, pairs, log_z)
