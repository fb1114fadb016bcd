"""One exchange, that is, a phase of one round: who is asked, which answers are admitted, and what
is recorded.

- `Invitations` plans each client's turn and encodes the message to it.
- `Admission` passes one sound answer per client through the `Gate`, and records every other answer.
- `bayesfed.federated.engine.entries.Entries` keeps the rows of the ledger and accepted clients'
  figures, and applies the policy on errors.

`exchange` connects the three to the link, which adds the payloads (`collect`), and to the server,
which takes the step (`stepped`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from bayesfed.errors import ClientError, RefusedError, UpdateError
from bayesfed.errors.checks import shown
from bayesfed.federated.clients.envelopes import masked
from bayesfed.federated.clients.pools import ClientPool
from bayesfed.federated.clients.turn import Outcome, Reply, Task
from bayesfed.federated.core.algorithm import published
from bayesfed.federated.core.protocols import (
    Arrival,
    Assignment,
    Info,
    Local,
    Profile,
    Skip,
    abridged,
)
from bayesfed.federated.core.update import Reducer
from bayesfed.federated.engine.entries import Entries, Occasion
from bayesfed.federated.engine.gate import Gate, length
from bayesfed.trees import Tree


@dataclass
class Invitations:
    """Planning and encoding: a task for each client that takes part.

    Parameters
    ----------
    occasion
        The exchange.
    gate
        Gate, which is told of every task.
    entries
        Where messages and skipped clients are recorded.
    assignments
        By client: the assignments so far.
    """

    occasion: Occasion
    gate: Gate
    entries: Entries
    assignments: dict[str, Assignment] = field(default_factory=dict)
    _published: dict[int | None, Tree] = field(default_factory=dict, repr=False)

    def tasks(self, asked: Iterable[tuple[Profile, int | None]]) -> Iterator[Task]:
        """Yield the tasks of clients, each given with the round in which it last heard from the
        server. Clients may be left out.
        """
        return (task for profile, version in asked if (task := self.task(profile, version)))

    def task(self, profile: Profile, version: int | None) -> Task | None:
        """Return the task of a client that last heard from the server in round `version`. None if
        the client is left out.
        """
        occasion, phase, client = self.occasion, self.occasion.phase, profile.name
        key = occasion.key(client)
        assignment = phase.assign(occasion.state, occasion.round, profile, key.child("assign"))
        if isinstance(assignment, Skip):
            self.entries.skipped(client, assignment.reason)
            return None
        self.assignments[client] = assignment
        if version not in self._published:
            self._published[version] = published(
                phase.server, occasion.state, occasion.round, version
            )
        tree = assignment.view.restrict(self._published[version])
        meta = {
            **assignment.options.header(),
            "client": client,
            "round": occasion.round,
            "phase": phase.name,
        }
        message = assignment.down.encode(tree, meta, key.child("down"))
        self.entries.asked(client, 8 * len(message))
        task = Task(
            client,
            occasion.round,
            phase.name,
            occasion.seed,
            message,
            assignment.down,
            assignment.up,
            phase.link,
            occasion.run_id,
        )
        task = replace(
            task, message=masked(message, task.envelope("down"), self.gate.secrets.get(client))
        )
        self.gate.ask(task, tree)
        return task


@dataclass
class Admission:
    """Admission of answers: the first sound answer of each client goes on to the link.

    Parameters
    ----------
    occasion
        The exchange.
    gate
        Gate that checks the answers.
    entries
        Where refused and failed clients are recorded.
    invitations
        Assignments of the clients.
    replies
        By client: admitted answers that the link has not yet dealt with.
    """

    occasion: Occasion
    gate: Gate
    entries: Entries
    invitations: Invitations
    replies: dict[str, Reply] = field(default_factory=dict)

    def arrivals(
        self, pool: ClientPool, answers: Iterable[tuple[Task, Outcome]]
    ) -> Iterator[Arrival]:
        """Yield the answers that go on to the link, and settle all others.

        Raises
        ------
        ClientError
            Under the policy "raise", if a client failed or gave no sound answer.
        """
        refused = dict[str, ClientError]()
        for task, outcome in answers:
            try:
                packed = self.admit(task, outcome)
            except RefusedError as problem:
                # The client may still answer, since the message may be forged.
                refused[task.client] = self._error(
                    task, "gate", abridged(str(problem)), problem.field
                )
                self.entries.stray(task.client, 8 * length(outcome), refused[task.client])
                continue
            if isinstance(outcome, Reply):
                self.replies[task.client] = outcome
                phase, assignment = self.occasion.phase, self.invitations.assignments[task.client]
                key = task.key.child("up")
                yield Arrival(
                    task.client,
                    self.occasion.round,
                    packed,
                    assignment,
                    phase.local.kind,
                    key,
                    phase=phase.name,
                )
            else:
                pool.settle(task.client, False)
                self.entries.failed(task.client, outcome)
        for task in self.gate.missing():
            pool.settle(task.client, False)
            if task.client not in refused:
                refused[task.client] = self._error(task, "gate", "no answer")
                self.entries.stray(task.client, 0, refused[task.client])
            if self.occasion.policy == "raise":
                raise refused[task.client]

    def admit(self, task: Task, outcome: Outcome) -> bytes:
        """Return the message of an answer, taken out of its envelope. For a failed client it is
        empty.

        Raises
        ------
        RefusedError
            If the answer is not expected, or not sound.
        """
        if isinstance(outcome, Reply):
            return self.gate.admit(task, outcome)
        self.gate.turn(task)
        self.gate.close(task)
        return b""

    def _error(self, task: Task, stage: str, reason: str, field: str = "") -> ClientError:
        return ClientError(task.client, self.occasion.round, stage, reason, field)


def exchange(
    occasion: Occasion,
    pool: ClientPool,
    locals: Mapping[str, Local],
    asked: Iterable[tuple[Profile, int | None]],
    gate: Gate,
) -> tuple[Tree, Info, Entries]:
    """Ask clients, add the sound answers, and take the server's step.

    Parameters
    ----------
    occasion
        The phase, round and run of the exchange.
    pool
        Pool of the clients.
    locals
        Local steps by phase.
    asked
        Profiles of the clients to ask, each with the round in which the client last heard from the
        server.
    gate
        A new gate.

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
    invitations = Invitations(occasion, gate, Entries(occasion))
    reducer = occasion.phase.reducer()
    collect(invitations, pool, pool.map(locals, invitations.tasks(asked)), reducer)
    return *stepped(occasion, reducer, invitations.entries), invitations.entries


def collect(
    invitations: Invitations,
    pool: ClientPool,
    answers: Iterable[tuple[Task, Outcome]],
    reducer: Reducer,
) -> None:
    """Admit answers, let the link add their payloads to the reducer, record every answer, and
    settle every client.
    """
    occasion, entries, phase = invitations.occasion, invitations.entries, invitations.occasion.phase
    admission = Admission(occasion, invitations.gate, entries, invitations)
    for arrival in phase.link.collect(
        admission.arrivals(pool, answers), reducer, occasion.key("link")
    ):
        reply, heard = (
            admission.replies.pop(arrival.client),
            not arrival.refusal and not arrival.silence,
        )
        if heard:
            entries.answered(arrival.client, arrival.cost, reply.seconds, reply.info)
        elif arrival.refusal:
            error = ClientError(
                arrival.client, occasion.round, "collect", arrival.refusal, arrival.field
            )
            entries.failed(arrival.client, error, arrival.cost, reply.seconds)
        else:
            entries.unheard(arrival.client, arrival.cost, reply.seconds, arrival.silence)
        pool.settle(arrival.client, heard)


def stepped(occasion: Occasion, reducer: Reducer, entries: Entries) -> tuple[Tree, Info]:
    """Return the state after the server's step, and its figures."""
    phase = occasion.phase
    if not entries.enough() and not getattr(phase.server, "steps_alone", False):
        return occasion.state, {}
    step = phase.server.step(occasion.state, reducer, occasion.round)
    if not (
        isinstance(step, tuple) and len(step) == 2 and all(isinstance(part, dict) for part in step)
    ):
        where, hint = (
            f"{type(phase.server).__name__}.step, phase {phase.name!r}",
            "return state, {}",
        )
        raise UpdateError(where, "(state, figures)", shown(step), hint)
    return step
