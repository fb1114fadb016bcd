"""One exchange over several ranks: every rank answers its own clients, rank 0 takes the server's
step.

Where payloads are received one by one and only added, each rank adds those of its clients, and the
integers of the sums are added over ranks. Where the link or the reducer needs the payloads
themselves (over the air, robust rules, stacks), the replies are sent to rank 0, which does what one
process does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import NamedTuple

from bayesfed.errors import ClientError
from bayesfed.federated.clients import (
    ClientPool,
    Group,
    Outcome,
    Ranks,
    Reply,
    Sides,
    Task,
    from_safetensors,
    to_safetensors,
)
from bayesfed.federated.core import Info, PartialSum, Reducer, Sum, seams
from bayesfed.federated.core.limbs import ROOM, zeros
from bayesfed.federated.engine.entries import Entries, Occasion
from bayesfed.federated.engine.exchange import Asked, Plan, collect, exchange, stepped
from bayesfed.federated.engine.reports import Row, Snapshot
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Heard:
    """What a rank says of its own clients: their rows and figures, their sum without its digits,
    and the error that stopped it.
    """

    rows: Sequence[Row] = ()
    infos: Mapping[str, Info] = field(default_factory=dict)
    silent: bool = False
    total: PartialSum | None = None
    error: Exception | None = None
    replies: Mapping[str, Outcome] = field(default_factory=dict)


class Stepped(NamedTuple):
    """The state after the server's step as bytes, the server's figures, and rows and figures of all
    clients.
    """

    state: bytes
    info: Info
    rows: list[Row]
    infos: dict[str, Info]


def agreed(pool: ClientPool, resume: Snapshot | None) -> Snapshot | None:
    """Return the snapshot that rank 0 continues from; the others may not have the folder. Every
    rank has to call this.
    """
    if not isinstance(pool, Ranks) or pool.group.size == 1:
        return resume
    # Memories and records on rank 0's disk cannot be read elsewhere.
    sent = pool.group.led(
        lambda: (
            resume
            and replace(resume, memories=dict(resume.memories), history=tuple(resume.history))
        )
    )
    return resume if pool.group.rank == 0 else sent


def exchange_of(pool: ClientPool) -> Callable[..., tuple[Tree, Info, Entries]]:
    """Return the exchange of a pool: over all ranks if there are several."""
    return ranked_exchange if isinstance(pool, Ranks) and pool.group.size > 1 else exchange


def ranked_exchange(
    occasion: Occasion, pool: Ranks, sides: Sides, asked: Asked, secrets: Mapping[str, bytes]
) -> tuple[Tree, Info, Entries]:
    """Ask clients on all ranks, add the sound answers, and take the server's step on rank 0. As
    `bayesfed.federated.engine.exchange.exchange`.
    """
    asked, reducer, group = list(asked), occasion.phase.reducer(), pool.group
    summed = seams.gathered(reducer, Sum)
    if summed and seams.one_by_one(occasion.phase.link):
        sums = list[PartialSum | None]()

        def added() -> Heard:
            own = [(profile, version) for profile, version in asked if pool.owns(profile.name)]
            plan = Plan(occasion, secrets, own)
            plan.entries.silent |= not asked
            collect(plan, pool.settle, pool.map(sides, plan.tasks()), reducer)
            entries, partial = plan.entries, summed.partial
            if partial and partial.count * group.size > ROOM:
                # So that there is room for the sums of all ranks.
                partial = partial.carried()
            sums.append(partial)
            total = partial and replace(partial, limbs={})
            return Heard(entries.rows, entries.infos, entries.silent, total)

        several = group.gather(_tried(group, added))
        total = _reduced(group, group.led(lambda: _merged(several)), *sums)
        result = group.led(lambda: _stepped(occasion, total, several))
    else:
        plans = list[tuple[Plan, list[Task]]]()

        def answered() -> Heard:
            # Rank 0 plans all clients, since it will hear them all.
            all_or_own = [pair for pair in asked if group.rank == 0 or pool.owns(pair[0].name)]
            plan = Plan(occasion, secrets, all_or_own)
            plan.entries.silent |= not asked
            plans.append((plan, list(plan.tasks())))
            # A memory stays with the owner of the client.
            replies = {
                task.client: replace(outcome, memory={}) if isinstance(outcome, Reply) else outcome
                for task, outcome in pool.map(sides, plans[0][1])
            }
            return Heard(replies=replies)

        several = group.gather(_tried(group, answered))
        result = group.led(lambda: _collected(*plans[0], pool, reducer, several))
        pool.settle_others()
    return from_safetensors(result.state), result.info, Entries(occasion, result.rows, result.infos)


def _tried(group: Group, work: Callable[[], Heard]) -> Heard:
    """Return what a rank says, be it an error: the others wait for it."""
    try:
        return work()
    except Exception as problem:
        return Heard(error=group.portable(problem))


def _merged(several: list[Heard]) -> PartialSum | None:
    """Return the sum of all ranks without its digits. The error of the first client by name is
    raised.
    """
    _raise_first(several)
    totals = [heard.total for heard in several if heard.total]
    return reduce(add, totals) if totals else None


def _reduced(group: Group, total: PartialSum | None, partial: PartialSum | None) -> Sum:
    """Add the sums of all ranks; only rank 0's result counts."""
    summed = Sum()
    if total is not None:
        limbs = {
            number: partial.limbs[number] if partial else zeros(number, size)
            for number, size in total.form.sizes.items()
        }
        for leaf in limbs.values():
            group.reduce(leaf)
        summed.include(replace(total, limbs=limbs))
    return summed


def _stepped(occasion: Occasion, total: Sum, several: list[Heard]) -> Stepped:
    entries = Entries(occasion)
    for heard in several:
        entries.rows += heard.rows
        entries.infos |= heard.infos
        entries.silent |= heard.silent
    entries.infos = dict(sorted(entries.infos.items()))
    # Stable, so that a client's own rows stay in their order.
    entries.rows.sort(key=lambda row: row.client)
    return _taken(occasion, total, entries)


def _collected(
    plan: Plan, tasks: list[Task], pool: Ranks, reducer: Reducer, several: list[Heard]
) -> Stepped:
    """Do on rank 0 what one process does with all replies, in the order of the clients' names."""
    _raise_first(several)
    replies = {client: outcome for heard in several for client, outcome in heard.replies.items()}
    answers = ((task, replies[task.client]) for task in tasks if task.client in replies)
    collect(plan, pool.settle, answers, reducer)
    return _taken(plan.occasion, reducer, plan.entries)


def _taken(occasion: Occasion, reducer: Reducer, entries: Entries) -> Stepped:
    state, info = stepped(occasion, reducer, entries)
    return Stepped(to_safetensors(state), info, entries.rows, entries.infos)


def _raise_first(several: list[Heard]) -> None:
    errors = [heard.error for heard in several if heard.error is not None]
    if errors:
        raise min(
            errors,
            key=lambda error: (not isinstance(error, ClientError), getattr(error, "client", "")),
        )
