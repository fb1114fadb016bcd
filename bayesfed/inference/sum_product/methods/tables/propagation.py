"""Sum-product on general factor graphs: any cardinalities, any arities, with or without cycles.

A message is the log weights of a variable's states, the largest 0. A factor takes the cavities of
its variables (belief without its own last message) as probabilities q and sums its table against
them, over all variables but the one that receives the message:
``m_k(x_k) = log sum table(x) prod_(l != k) q_l(x_l)``.

Everything is state-major, ``(B, states, k, F)`` for k positions in a row with as many states, so
that each step is one pass over long rows of factors. Only beliefs are gathered and scattered, not
messages.

References
----------
Kschischang, Frey and Loeliger, Factor graphs and the sum-product algorithm, IEEE Trans. Inf. Theory
47 (2001), (5)-(6). Yedidia, Freeman and Weiss, Constructing free-energy approximations, IEEE Trans.
Inf. Theory 51 (2005): Bethe's log Z.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from itertools import islice

import torch
from torch import Tensor
from tqdm import tqdm

from bayesfed.errors import ArgumentError
from bayesfed.inference.sum_product.graphs.flat import Tables
from bayesfed.inference.sum_product.methods.outcome import Outcome, Settings, resumed
from bayesfed.inference.sum_product.methods.settle import Damper, settle
from bayesfed.inference.sum_product.methods.tables.schedule import Batch, Program, compile_tables

Views = list[list[Tensor]]
# Entries of all tables, once for each state that is tried, in a sweep and at a time.
TRIED, TRIED_AT_ONCE = 2**28, 2**24


@torch.no_grad()
def pass_tables(
    model: Tables, evidence: Tensor, settings: Settings, state: Tensor | None = None
) -> Outcome:
    """Pass messages until they settle; on a forest make one sweep up and down, which is exact and
    not damped.

    Parameters
    ----------
    model
        The factor graph.
    evidence
        ``(B, n, C)``, log weights in float32 or float64, ``-inf`` for impossible states; entries of
        states that a variable does not have are ignored. No message is stronger than 708 nats
        (float32: 87), except for impossible states.
    settings
        When to stop; its `init` must be "zero".
    state
        ``(B, S)``, messages of an earlier outcome, not used on a forest.

    Returns
    -------
    `Outcome`; ``pairs()`` are probabilities, and ``log_z()`` is Bethe's, exact on a forest.

    Raises
    ------
    ArgumentError
        If the state does not fit the model, if `init` is not "zero", or if a variable has no
        possible state.
    """
    prior, log_weights = _fields(model, evidence)
    settings.check_start()
    program = compile_tables(model, evidence.dtype, evidence.device)
    messages, views = _start(program, log_weights, state)
    field = prior + log_weights
    possible = _spread_zeros(program, field)
    field = field.where(possible, -math.inf)
    if program.forest:
        belief = _collect(program, field, views)
        for number in tqdm(
            program.order,
            desc="message passing",
            unit="batch",
            delay=2.0,
            leave=False,
            disable=settings.hide_bar,
        ):
            _send(program.batches[number], belief, views[number], 0.0, None)
        sweeps, residual = 1, 0.0
    else:
        damper = Damper(settings.damping)

        def step(count: int) -> float:
            # Summed anew every time, so that rounding errors do not accumulate in the beliefs.
            belief, moved = _collect(program, field, views), list[Tensor]()
            for remaining in reversed(range(count)):
                for batch, messages in zip(program.batches, views, strict=True):
                    _send(batch, belief, messages, damper.share, None if remaining else moved)
            return float(torch.stack(moved).amax())

        sweeps, residual = settle(step, settings, damper=damper)
    # The extrinsic part is summed from messages, not subtracted: it must not depend on the
    # variable's own evidence, even by rounding.
    extrinsic = _collect(program, prior.expand_as(field), views).where(
        possible | torch.isneginf(log_weights), -math.inf
    )
    belief = _collect(program, field, views)
    return Outcome(
        belief.log_softmax(1).mT.contiguous(),
        extrinsic.log_softmax(1).mT.contiguous(),
        messages,
        sweeps,
        residual,
        lambda: _marginals(model, program, belief, views),
        lambda: _log_z(program, belief, views),
    )


def possible_states(model: Tables, evidence: Tensor) -> Tensor:
    """Return ``(B, n, C)``, whether each state is possible in the evidence ``(B, n, C)`` and in
    every table together with possible states of its other variables.

    Raises
    ------
    ArgumentError
        If a variable has no possible state.
    """
    prior, log_weights = _fields(model, evidence)
    program = compile_tables(model, evidence.dtype, evidence.device)
    return _spread_zeros(program, prior + log_weights).mT


def without_contradictions(model: Tables, possible: Tensor) -> Tensor:
    """Return the possible states ``(n, C)`` of one entry without those that contradict all others:
    each is tried, and zeros are spread from it.

    It takes as many sweeps as there are states of variables with more than one, so it is done only
    while a sweep of all of them has at most `TRIED` entries.

    Parameters
    ----------
    model
        The factor graph.
    possible
        ``(n, C)``, whether each state is possible.
    """
    program = compile_tables(model, torch.float32, possible.device)
    size = sum(batch.factors.numel() * math.prod(batch.cards) for batch in program.batches)
    while True:
        several = possible & (possible.sum(1, keepdim=True) > 1)
        tried = several.nonzero()
        if not 0 < len(tried) * size <= TRIED:
            return possible
        alive = list[Tensor]()
        for variables, states in (part.T for part in tried.split(max(1, TRIED_AT_ONCE // size))):
            field = possible.T.float().repeat(len(variables), 1, 1)
            entry = torch.arange(len(variables), device=possible.device)
            field[entry, :, variables] = 0.0
            field[entry, states, variables] = 1.0
            alive.append((_spread(program, field).amax(1) > 0).all(1))
        dead = tried[~torch.cat(alive)]
        if not len(dead):
            return possible
        left = possible.clone()
        left[tuple(dead.T)] = False
        possible = _spread(program, left.T.float()[None])[0].T > 0


def _spread(program: Program, possible: Tensor) -> Tensor:
    """Return ``(B, C, n)``, 1 for the states that are possible in every table together with
    possible states of its other variables, else 0.
    """
    while program.hard:
        before = possible.clone()
        for batch in (program.batches[number] for number in program.order):
            incoming = _apart(batch.gathered(possible))
            for weights, scope in zip(
                _outgoing((batch.weights > 0).to(possible), incoming), batch.scope, strict=True
            ):
                allowed = (weights > 0).to(possible)
                possible[:, : weights.shape[1]].scatter_reduce_(
                    2, scope.expand(weights.shape), allowed, "amin"
                )
        if torch.equal(before, possible):
            break
    return possible


def _fields(model: Tables, evidence: Tensor) -> tuple[Tensor, Tensor]:
    """Return the model's unary weights and the evidence, as ``(B, C, n)`` with ``-inf`` in padded
    states.
    """
    states = torch.arange(model.unary.shape[1], device=evidence.device)
    padded = states[:, None] >= model.cards.to(evidence.device)
    weights = evidence.mT.masked_fill(padded, -math.inf).contiguous()
    return model.unary.to(evidence).T.masked_fill(padded, -math.inf)[None].contiguous(), weights


def _start(program: Program, like: Tensor, state: Tensor | None) -> tuple[Tensor, Views]:
    """Return the messages as one tensor ``(B, S)``, and its views ``(B, states, k, F)`` by batch
    and run of positions.
    """
    sizes = [card * scope.numel() for batch in program.batches for card, scope in batch.runs]
    messages = like.new_zeros(like.shape[0], sum(sizes))
    if state is not None:
        kept = resumed(state, tuple(messages.shape), like)
        messages = messages if program.forest else kept
    parts = iter(messages.split(sizes, 1))
    return messages, [
        [
            next(parts).unflatten(1, (-1, card, batch.factors.numel())).transpose(1, 2)
            for card, _ in batch.runs
        ]
        for batch in program.batches
    ]


def _send(
    batch: Batch, belief: Tensor, old: list[Tensor], damping: float, moved: list[Tensor] | None
) -> None:
    """Update a batch's messages and the beliefs of their variables, and append the largest changes
    of messages to `moved`.
    """
    cavities, _ = _cavities(batch, belief, old)
    outgoing = iter(_outgoing(batch.weights, _apart(c.exp() for c in cavities)))
    for (card, scope), cavity, message in zip(batch.runs, cavities, old, strict=True):
        before = message if batch.apart and not damping and moved is None else message.clone()
        weights = torch.stack([*islice(outgoing, message.shape[2])], 2)
        torch.log(_floor_(weights), out=message)
        message.sub_(message.amax(1, keepdim=True))
        if damping:
            message.lerp_(before, damping)
        if moved is not None:
            moved.append((message - before).abs_().amax())
        if batch.apart:
            changed = cavity.add_(message).flatten(2)
            belief.scatter_(2, scope.expand(changed.shape), changed)
        else:
            belief[:, :card].index_add_(2, scope, (message - before).flatten(2))


def _apart(runs: Iterable[Tensor]) -> list[Tensor]:
    """Return what there is for each position, ``(B, states, F)``."""
    return [position for run in runs for position in run.unbind(2)]


def _cavities(
    batch: Batch, belief: Tensor, messages: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the log cavities of each run of positions ``(B, states, k, F)``, the largest 0, and
    what was subtracted for that ``(B, 1, k, F)``.
    """
    cavities = [
        values.sub_(message)
        for values, message in zip(batch.gathered(belief), messages, strict=True)
    ]
    tops = [cavity.amax(1, keepdim=True) for cavity in cavities]
    for cavity, top in zip(cavities, tops, strict=True):
        cavity.sub_(top)
    return cavities, tops


def _floor_(weights: Tensor) -> Tensor:
    # Floored at the smallest normal number (its log is -708 in float64, -87 in float32):
    # subtracting a message of -inf from a belief would be inf - inf. Impossible states are -inf in
    # the field already.
    return weights.clamp_min_(torch.finfo(weights.dtype).tiny)


def _outgoing(table: Tensor, incoming: list[Tensor]) -> list[Tensor]:
    """Return for each position the sum of a table ``(1 or B, X, 1 or F)`` against the weights
    ``(B, states, F)`` of all other positions.

    Recursive: all positions of one half share the sum over the other half.
    """
    if len(incoming) == 1:
        return [table]
    halves = incoming[: len(incoming) // 2], incoming[len(incoming) // 2 :]
    left, right = (
        reduce(lambda a, b: (a.unsqueeze(2) * b.unsqueeze(1)).flatten(1, 2), half)
        for half in halves
    )
    matrix = table.view(len(table), left.shape[1], right.shape[1], -1)
    return _outgoing(_contract(matrix, right), halves[0]) + _outgoing(
        _contract(matrix.transpose(1, 2), left), halves[1]
    )


def _contract(matrix: Tensor, weights: Tensor) -> Tensor:
    """Return the sum over R of ``(1 or B, L, R, 1 or F)`` times ``(B, R, F)``."""
    if matrix.shape[-1] == 1:
        return matrix.squeeze(3) @ weights
    total = matrix.select(2, 0) * weights.narrow(1, 0, 1)
    for state in range(1, weights.shape[1]):
        total.addcmul_(matrix.select(2, state), weights.narrow(1, state, 1))
    return total


def _collect(program: Program, field: Tensor, views: Views) -> Tensor:
    """Return a field ``(B, C, n)`` plus all messages."""
    belief = field.clone(memory_format=torch.contiguous_format)
    for batch, messages in zip(program.batches, views, strict=True):
        for (card, scope), message in zip(batch.runs, messages, strict=True):
            belief[:, :card].index_add_(2, scope, message.flatten(2))
    return belief


def _spread_zeros(program: Program, field: Tensor) -> Tensor:
    """Return which states are possible: in the field, and in every table together with possible
    states of its other variables.

    Computed exactly, without messages: strong evidence for a forbidden state would outweigh a
    floored message.
    """
    possible = _spread(program, (field > -math.inf).to(field))
    stuck = (possible.amax(1) == 0).nonzero()
    if stuck.numel():
        entry, variable = stuck[0].tolist()
        actual = f"none for variable {variable} of batch entry {entry} ({len(stuck)} such in all)"
        hint = "softer tables or evidence: they contradict each other"
        raise ArgumentError(
            "message passing on tables", "a possible state for every variable", actual, hint
        )
    return possible > 0


def _marginals(model: Tables, program: Program, belief: Tensor, views: Views) -> tuple[Tensor, ...]:
    """Return the probabilities of the factors' joint states, ``(B, F, *cards)`` for each group."""
    tables = [
        belief.new_empty(len(belief), group.which.numel(), *group.tables.shape[1:])
        for group in model.groups
    ]
    for batch, messages in zip(program.batches, views, strict=True):
        cavities, _ = _cavities(batch, belief, messages)
        joint = batch.weights.log() + reduce(
            lambda a, b: (a[:, :, None] + b[:, None]).flatten(1, 2), _apart(cavities)
        )
        tables[batch.group].index_copy_(
            1, batch.factors, joint.softmax(1).mT.unflatten(2, batch.cards)
        )
    return tuple(tables)


def _log_z(program: Program, belief: Tensor, views: Views) -> Tensor:
    """Return Bethe's log Z: the log sums of factors with their cavities, plus those of variables
    with all messages times (1 - degree).
    """
    # In float64: there are as many terms as variables, of either sign.
    total = (belief.logsumexp(1).double() * (1 - program.degree.double())).sum(1)
    for batch, messages in zip(program.batches, views, strict=True):
        cavities, tops = _cavities(batch, belief, messages)
        incoming = _apart(cavity.exp() for cavity in cavities)
        taken = reduce(torch.add, _apart(tops))[:, 0]
        sums = _floor_((_outgoing(batch.weights, incoming)[0] * incoming[0]).sum(1)).log()
        total += (sums + taken + batch.peak).double().sum(1)
    return total.to(belief)
