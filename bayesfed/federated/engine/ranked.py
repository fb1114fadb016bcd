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
from typing import NamedTuple

import torch

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
    portable,
    to_safetensors,
)
from bayesfed.federated.core import Info, PartialSum, Phase, Reducer, Sum, seams
from bayesfed.federated.core.limbs import ROOM
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


def ranked_exchange(
    occasion: Occasion, pool: ClientPool, sides: Sides, asked: Asked, secrets: Mapping[str, bytes]
) -> tuple[Tree, Info, Entries]:
    """Ask clients, on all ranks if there are several, add the sound answers, and take the server's
    step on rank 0. As `bayesfed.federated.engine.exchange.exchange`.
    """
    if not isinstance(pool, Ranks):
        return exchange(occasion, pool, sides, asked, secrets)
    asked, reducer, group = list(asked), occasion.phase.reducer(), pool.group
    states = list[Tree]()
    if adds(occasion.phase, reducer):

        def added() -> Heard:
            own = [(profile, version) for profile, version in asked if pool.owns(profile.name)]
            plan = Plan(occasion, secrets, own)
            collect(plan, pool.settle, pool.map(sides, plan.tasks()), reducer)
            partial, entries = _partial(reducer), plan.entries
            total = replace(partial, limbs={}) if partial else None
            return Heard(entries.rows, entries.infos, entries.silent, total)

        several = group.gather(_tried(group, added))
        total = _reduced(pool, *group.led(lambda: _merged(several)), _partial(reducer))
        result = group.led(lambda: _stepped(occasion, total, several, states))
    else:
        plans = list[tuple[Plan, list[Task]]]()

        def answered() -> Heard:
            # Rank 0 plans all clients, since it will hear them all.
            all_or_own = [pair for pair in asked if group.rank == 0 or pool.owns(pair[0].name)]
            plan = Plan(occasion, secrets, all_or_own)
            plans.append((plan, list(plan.tasks())))
            # A memory stays with the owner of the client.
            replies = {
                task.client: replace(outcome, memory={}) if isinstance(outcome, Reply) else outcome
                for task, outcome in pool.map(sides, plans[0][1])
            }
            return Heard(replies=replies)

        several = group.gather(_tried(group, answered))
        result = group.led(lambda: _collected(*plans[0], pool, reducer, several, states))
        pool.settle_others()
    state = states[0] if states else _placed_as(from_safetensors(result.state), occasion.state)
    return state, result.info, Entries(occasion, result.rows, result.infos)


def adds(phase: Phase, reducer: Reducer) -> bool:
    """Return whether payloads are received one by one and only their sum is needed."""
    return seams.gathered(reducer, Sum) is not None and seams.one_by_one(phase.link)


def _tried(group: Group, work: Callable[[], Heard]) -> Heard:
    """Return what a rank says, be it an error: the others wait for it."""
    try:
        return work()
    except Exception as problem:
        if group.size == 1:
            raise
        return Heard(error=portable(problem))


def _partial(reducer: Reducer) -> PartialSum | None:
    added = seams.gathered(reducer, Sum)
    return added.partial if added else None


def _merged(several: list[Heard]) -> tuple[PartialSum | None, bool]:
    """Check that all ranks can be added. Return their sum without its digits, and whether digits
    must be carried before they are added. The error of the first client by name is raised.
    """
    _raise_first(several)
    totals = [heard.total for heard in several if heard.total is not None]
    if not totals:
        return None, False
    form, count = totals[0].form, sum(total.count for total in totals)
    for total in totals[1:]:
        form.check(total.form)
    carry, quanta = count > ROOM, sum(total.quanta for total in totals)
    return PartialSum(form, {}, quanta, len(totals) if carry else count), carry


def _reduced(
    pool: Ranks, total: PartialSum | None, carry: bool, partial: PartialSum | None
) -> PartialSum | None:
    """Add the sums of all ranks; only rank 0's result counts."""
    if total is None:
        return None
    if partial is not None:
        limbs = dict((partial.carried() if carry else partial).limbs)
    else:
        limbs = {
            number: torch.zeros(number, size, dtype=torch.int64)
            for number, size in total.form.sizes.items()
        }
    for number, leaf in limbs.items():
        limbs[number] = leaf.cpu()
        pool.group.reduce(limbs[number])
    return replace(total, limbs=limbs)


def _stepped(
    occasion: Occasion, total: PartialSum | None, several: list[Heard], states: list[Tree]
) -> Stepped:
    """Take the server's step on rank 0; the state is put into `states` as well."""
    entries, reducer = Entries(occasion), occasion.phase.reducer()
    for heard in several:
        entries.rows += heard.rows
        entries.infos |= heard.infos
        entries.silent |= heard.silent
    entries.infos = dict(sorted(entries.infos.items()))
    # Stable, so that a client's own rows stay in their order.
    entries.rows.sort(key=lambda row: row.client)
    if total is not None and (adding := seams.gathered(reducer, Sum)):
        adding.include(total)
    return _taken(occasion, reducer, entries, states)


def _collected(
    plan: Plan,
    tasks: list[Task],
    pool: Ranks,
    reducer: Reducer,
    several: list[Heard],
    states: list[Tree],
) -> Stepped:
    """Do on rank 0 what one process does with all replies, in the order of the clients' names."""
    _raise_first(several)
    replies = {client: outcome for heard in several for client, outcome in heard.replies.items()}
    answers = ((task, replies[task.client]) for task in tasks if task.client in replies)
    collect(plan, pool.settle, answers, reducer)
    return _taken(plan.occasion, reducer, plan.entries, states)


def _taken(occasion: Occasion, reducer: Reducer, entries: Entries, states: list[Tree]) -> Stepped:
    state, info = stepped(occasion, reducer, entries)
    states.append(state)
    return Stepped(to_safetensors(state), info, entries.rows, entries.infos)


def _placed_as(tree: Tree, like: Tree) -> Tree:
    return {
        name: leaf.to(like[name].device) if name in like else leaf for name, leaf in tree.items()
    }


def _raise_first(several: list[Heard]) -> None:
    errors = [heard.error for heard in several if heard.error is not None]
    if errors:
        raise min(
            errors,
            key=lambda error: (not isinstance(error, ClientError), getattr(error, "client", "")),
        )
