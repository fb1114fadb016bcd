"""One exchange, that is, a phase of one round, from top to bottom.

plan      who is asked, with what weight, options and codecs, before anybody is (`Plan`)
ask       the message to each client, encoded when the pool is ready for it (`Plan.tasks`)
answer    the pool runs clients, and yields their answers in order (`ClientPool.map`)
admit     one sound answer of each client passes the gate (`Gate.take`)
collect   the link decodes, checks, lifts and adds payloads (`Link.collect`)
settle    the client keeps its new memory, or the old one, and the ledger has a row
step      the server makes the next state of the sum (`stepped`)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import starmap

import torch
from torch import Tensor

from bayesfed.errors import ClientError, RefusedError
from bayesfed.federated.clients import ClientPool, Outcome, Reply, Sides, Task, masked
from bayesfed.federated.core import (
    Arrival,
    Assignment,
    Cost,
    Info,
    Profile,
    Reducer,
    Skip,
    Sum,
    abridged,
    seams,
)
from bayesfed.federated.engine.entries import Entries, Occasion
from bayesfed.federated.engine.gate import Gate, length
from bayesfed.keys import forked
from bayesfed.trees import Tree

Asked = Iterable[tuple[Profile, int | None]]


class Plan:
    """Who is asked, and with what.

    Parameters
    ----------
    occasion
        The exchange.
    secrets
        Secrets by client, in keyed mode; else empty.
    asked
        Profiles of the clients to ask, each with the round in which the client last heard from the
        server. Each is decided on before anybody is asked.

    Attributes
    ----------
    gate
        A new gate, which is told of every task.
    entries
        Where messages and skipped clients are recorded.
    assignments
        By client: what it is to do.
    """

    def __init__(self, occasion: Occasion, secrets: Mapping[str, bytes], asked: Asked) -> None:
        self.occasion, self.gate, self.entries = occasion, Gate(secrets), Entries(occasion)
        self.assignments: dict[str, Assignment] = {}
        self._versions: dict[str, int | None] = {}
        self._published: dict[int | None, Tree] = {}
        # By client; one for all that were sent leaves of the same types.
        self.dtypes: dict[str, Mapping[str, torch.dtype]] = {}
        for profile, version in asked:
            key = occasion.key(profile.name).child("assign")
            assignment = occasion.phase.assign(occasion.state, occasion.round, profile, key)
            if isinstance(assignment, Skip):
                self.entries.note(profile.name, "down", reason=f"assign: {assignment.reason}")
                self.entries.silent = True
            else:
                self.assignments[profile.name] = assignment
                self._versions[profile.name] = version

    def tasks(self) -> Iterator[Task]:
        """Yield the task of every client that takes part. Each message is encoded when it is
        needed, so that one is in memory.
        """
        return (self._task(client, assignment) for client, assignment in self.assignments.items())

    def _task(self, client: str, assignment: Assignment) -> Task:
        occasion, phase = self.occasion, self.occasion.phase
        version, down = self._versions[client], assignment.down
        if version not in self._published:
            seen = seams.published(phase.server, occasion.state, occasion.round, version)
            self._published[version] = seen
        tree = assignment.view.restrict(self._published[version])
        ends = down, assignment.up, phase.link, occasion.run_id
        task = Task(client, occasion.round, phase.name, occasion.seed, b"", *ends)
        header = {**assignment.options.header(), **task.address}
        message = down.encode(tree, header, task.key.child("down"))
        self.entries.note(client, "down", Cost(8 * len(message)))
        self.gate.ask(task, tree)
        dtypes = {name: leaf.dtype for name, leaf in tree.items()}
        last = next(reversed(self.dtypes.values()), None)
        self.dtypes[client] = last if last == dtypes else dtypes
        sealed = masked(message, task.envelope("down"), self.gate.secrets.get(client))
        return replace(task, message=sealed)


@dataclass
class Admission:
    """Admission of answers: the first sound answer of each client goes on to the link.

    Parameters
    ----------
    plan
        What the clients were asked.
    settle
        ``(client, accepted)``: tells the pool what became of an answer.
    replies
        By client: admitted answers that the link has not yet dealt with.
    """

    plan: Plan
    settle: Callable[[str, bool], None]
    replies: dict[str, Reply] = field(default_factory=dict)
    _refused: dict[str, ClientError] = field(default_factory=dict, repr=False)

    def admit(self, task: Task, outcome: Outcome) -> Arrival | None:
        """Return what goes on to the link; None for an answer that is settled here.

        Raises
        ------
        ClientError
            Under the policy "raise", if the client failed.
        """
        plan, phase, client = self.plan, self.plan.occasion.phase, task.client
        try:
            packed = plan.gate.take(task, outcome)
        except RefusedError as problem:
            # The client may still answer, since the message may be forged.
            self._refused[client] = self._error(task, abridged(str(problem)), problem.field)
            plan.entries.stray(client, self._refused[client], Cost(8 * length(outcome)))
            return None
        if not isinstance(outcome, Reply):
            self.settle(client, False)
            plan.entries.failed(client, outcome)
            return None
        self.replies[client] = replace(outcome, packed=b"")
        assignment, key = plan.assignments[client], task.key.child("up")
        arrival = client, plan.occasion.round, packed, assignment, phase.local.kind, key
        return Arrival(*arrival, phase=phase.name, dtypes=plan.dtypes.get(client))

    def end(self) -> None:
        """Settle the clients without a sound answer.

        Raises
        ------
        ClientError
            Under the policy "raise", if there is one.
        """
        for task in self.plan.gate.missing():
            self.settle(task.client, False)
            if task.client not in self._refused:
                self._refused[task.client] = self._error(task, "no answer")
                self.plan.entries.stray(task.client, self._refused[task.client])
            if self.plan.occasion.policy == "raise":
                raise self._refused[task.client]

    def enter(self, arrival: Arrival) -> None:
        """Record a payload that the link has dealt with, and settle its client."""
        entries, client = self.plan.entries, arrival.client
        reply, arrival.packed = self.replies.pop(client), b""
        if arrival.refusal:
            where = client, self.plan.occasion.round, "collect"
            error = ClientError(*where, arrival.refusal, arrival.field)
            entries.failed(client, error, arrival.cost, reply.seconds)
        else:
            entries.note(client, "up", arrival.cost, reply.seconds, arrival.silence)
            if arrival.silence:
                entries.silent = True
            else:
                entries.infos[client] = reply.info
        self.settle(client, not arrival.refusal and not arrival.silence)

    def _error(self, task: Task, reason: str, field: str = "") -> ClientError:
        return ClientError(task.client, self.plan.occasion.round, "gate", reason, field)


def exchange(
    occasion: Occasion, pool: ClientPool, sides: Sides, asked: Asked, secrets: Mapping[str, bytes]
) -> tuple[Tree, Info, Entries]:
    """Ask clients, add the sound answers, and take the server's step.

    Parameters
    ----------
    occasion
        The phase, round and run of the exchange.
    pool
        Pool of the clients.
    sides
        The clients' halves by phase.
    asked
        Profiles of the clients to ask, each with the round in which the client last heard from the
        server.
    secrets
        Secrets by client, in keyed mode; else empty.

    Returns
    -------
    tuple
        The next state, the server's figures, and the entries.

    Raises
    ------
    ClientError
        Under the policy "raise", if a client failed or was refused.
    TooFewClientsError
        If fewer clients than `Occasion.least` are in the sum.
    """
    asked = tuple(asked)
    plan, reducer = Plan(occasion, secrets, asked), occasion.phase.reducer()
    # A sampler may ask nobody: then nobody is to blame.
    plan.entries.silent |= not asked
    collect(plan, pool.settle, pool.map(sides, plan.tasks()), reducer)
    return *stepped(occasion, reducer, plan.entries), plan.entries


def collect(
    plan: Plan,
    settle: Callable[[str, bool], None],
    answers: Iterable[tuple[Task, Outcome]],
    reducer: Reducer,
) -> None:
    """Admit answers, let the link add their payloads to the reducer, and settle every client.

    A link that receives payloads one by one gets each as it comes, and another one all together.
    """
    admission, waiting = Admission(plan, settle), list[Arrival]()
    link, key = plan.occasion.phase.link, plan.occasion.key("link")
    # Nothing here keeps a message, which may be as large as the model, while the next client works.
    for arrival in starmap(admission.admit, answers):
        if arrival and seams.one_by_one(link):
            admission.enter(next(iter(link.collect([arrival], reducer, key))))
        elif arrival:
            waiting.append(arrival)
    admission.end()
    for arrival in link.collect(waiting, reducer, key) if waiting else ():
        admission.enter(arrival)


def stepped(occasion: Occasion, reducer: Reducer, entries: Entries) -> tuple[Tree, Info]:
    """Return the state after the server's step, and its figures."""
    phase = occasion.phase
    if not entries.enough():
        if not seams.steps_alone(phase.server):
            return occasion.state, {}
        reducer = Sum()
    # A server may draw from the global generators, as a client's step may.
    with forked(occasion.key("server")):
        state, info = phase.server.step(occasion.state, reducer, occasion.round)
    return {name: _as_before(leaf, occasion.state.get(name)) for name, leaf in state.items()}, info


def _as_before(leaf: Tensor, before: Tensor | None) -> Tensor:
    """Return a leaf of the state in the type that it had."""
    floats = before is not None and before.is_floating_point() and leaf.is_floating_point()
    return leaf.to(before.dtype) if before is not None and floats else leaf
