"""One exchange, a phase of one round: who is asked, what is let in, and what is written down.

    `Invitations` plan each client's turn and encode the message to it.
    `Admission` lets through one sound answer a client, through the `Gate`, and turns every other into an entry.
    `Entries` keeps the rows of the ledger and the figures of accepted clients, and applies the policy on errors.

`exchange` joins the three around the link, which adds, and the server, which steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from bayesfed.errors import ClientError, RefusedError, TooFewClientsError
from bayesfed.federated.clients.envelopes import masked
from bayesfed.federated.clients.pools import ClientPool
from bayesfed.federated.clients.turn import Outcome, Reply, Task
from bayesfed.federated.core.algorithm import Phase, published
from bayesfed.federated.core.costs import Cost
from bayesfed.federated.core.protocols import Arrival, Assignment, Direction, Info, Local, Profile, Skip, abridged
from bayesfed.federated.engine.gate import Gate, length
from bayesfed.federated.engine.ledger import Row
from bayesfed.federated.engine.reports import OnClientError
from bayesfed.keys import Key
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Occasion:
    """The phase, round and run that an exchange belongs to, the server's state before it, and the policy on clients' errors.

    Parameters
    ----------
    least
        How many clients must be in the sum.
    """

    phase: Phase
    state: Tree
    round: int
    seed: int
    policy: OnClientError = "raise"
    least: int = 1
    run_id: str = ""

    def key(self, *names: str) -> Key:
        """Return a stream of this phase and round."""
        return Key(self.seed, self.phase.name, self.round, *names)


@dataclass
class Entries:
    """What an exchange leaves behind.

    Parameters
    ----------
    rows
        Rows of the ledger, in the order of events.
    infos
        Figures of the clients whose payloads are in the sum.
    silent
        Whether a client was left out or not heard through no fault of its own.
    """

    occasion: Occasion
    rows: list[Row] = field(default_factory=list)
    infos: dict[str, Info] = field(default_factory=dict)
    silent: bool = False

    def asked(self, client: str, bits: int) -> None:
        """Enter the message to a client."""
        self.rows.append(self._row(client, "down", Cost(bits)))

    def skipped(self, client: str, reason: str) -> None:
        """Enter a client that is left out before anything is sent."""
        self.rows.append(self._row(client, "down", Cost(), accepted=False, reason=f"assign: {reason}"))
        self.silent = True

    def answered(self, client: str, cost: Cost, seconds: float, info: Info) -> None:
        """Enter a payload that is in the sum."""
        self.rows.append(self._row(client, "up", cost, seconds))
        self.infos[client] = info

    def unheard(self, client: str, cost: Cost, seconds: float, reason: str) -> None:
        """Enter a payload that was not heard, through no fault of the client's."""
        self.rows.append(self._row(client, "up", cost, seconds, accepted=False, reason=reason))
        self.silent = True

    def stray(self, client: str, bits: int, error: ClientError) -> None:
        """Enter a message that is refused whatever the policy: whoever sent it has not used up the client's turn."""
        self.rows.append(self._row(client, "up", Cost(bits), accepted=False, reason=f"{error.stage}: {error.reason}", field=error.field))

    def failed(self, client: str, error: ClientError, cost: Cost = Cost(), seconds: float = 0.0) -> None:
        """Enter a client that failed or was refused.

        Raises
        ------
        ClientError
            The error itself, under the policy "raise".
        """
        reason = f"{error.stage}: {error.reason}"
        self.rows.append(self._row(client, "up", cost, seconds, accepted=False, reason=reason, field=error.field))
        if self.occasion.policy == "raise":
            raise error

    def enough(self) -> bool:
        """Say whether the server may step; False for a round in which nobody was heard and nobody is at fault.

        Raises
        ------
        TooFewClientsError
            If fewer clients are in the sum than there must be.
        """
        least = self.occasion.least
        if not self.infos and self.occasion.policy == "drop" and self.silent and least == 1:
            return False
        if len(self.infos) < least:
            reasons = "; ".join(f"{row.client}: {row.reason}" for row in self.rows if not row.accepted)
            left = f"{len(self.infos)} of at least {least} clients are left" if self.infos else "no client is left"
            raise TooFewClientsError("all", self.occasion.round, self.occasion.phase.name, f"{left} ({reasons})")
        return True

    def _row(
        self, client: str, direction: Direction, cost: Cost, seconds: float = 0.0, *, accepted: bool = True, reason: str = "", field: str = ""
    ) -> Row:
        return Row(client, self.occasion.round, self.occasion.phase.name, direction, cost, seconds, accepted, reason, field)


@dataclass
class Invitations:
    """Plan and encode: one task for each client that takes part."""

    occasion: Occasion
    gate: Gate
    entries: Entries
    assignments: dict[str, Assignment] = field(default_factory=dict)
    _published: dict[int | None, Tree] = field(default_factory=dict, repr=False)

    def task(self, profile: Profile, version: int | None) -> Task | None:
        """Return the task of a client that last heard from the server in round `version`; None for one that is left out."""
        occasion, phase, client = self.occasion, self.occasion.phase, profile.name
        key = occasion.key(client)
        assignment = phase.assign(occasion.state, occasion.round, profile, key.child("assign"))
        if isinstance(assignment, Skip):
            self.entries.skipped(client, assignment.reason)
            return None
        self.assignments[client] = assignment
        if version not in self._published:
            self._published[version] = published(phase.server, occasion.state, occasion.round, version)
        tree = assignment.view.restrict(self._published[version])
        meta = {**assignment.options.header(), "client": client, "round": occasion.round, "phase": phase.name}
        message = assignment.down.encode(tree, meta, key.child("down"))
        self.entries.asked(client, 8 * len(message))
        task = Task(client, occasion.round, phase.name, occasion.seed, message, assignment.down, assignment.up, phase.link, occasion.run_id)
        task = replace(task, message=masked(message, task.envelope("down"), self.gate.secrets.get(client)))
        self.gate.ask(task, tree)
        return task


@dataclass
class Admission:
    """Let answers in: each client's first sound one goes on to the link."""

    occasion: Occasion
    gate: Gate
    entries: Entries
    invitations: Invitations
    replies: dict[str, Reply] = field(default_factory=dict)

    def arrivals(self, pool: ClientPool, answers: Iterable[tuple[Task, Outcome]]) -> Iterator[Arrival]:
        """Yield what goes on to the link, and settle the rest.

        Raises
        ------
        ClientError
            Under the policy "raise", for a client that failed or gave no sound answer.
        """
        refused = dict[str, ClientError]()
        for task, outcome in answers:
            try:
                packed = self.admit(task, outcome)
            except RefusedError as problem:
                # The client may still answer: somebody else may have made that message up.
                refused[task.client] = self._error(task, "gate", abridged(str(problem)), problem.field)
                self.entries.stray(task.client, 8 * length(outcome), refused[task.client])
                continue
            if isinstance(outcome, Reply):
                self.replies[task.client] = outcome
                phase, assignment = self.occasion.phase, self.invitations.assignments[task.client]
                key = task.key.child("up")
                yield Arrival(task.client, self.occasion.round, packed, assignment, phase.local.kind, key, phase=phase.name)
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
        """Return the message of an answer, out of its envelope; nothing for a client's failure.

        Raises
        ------
        RefusedError
            If it is not the answer that is waited for, or not sound.
        """
        if isinstance(outcome, Reply):
            return self.gate.admit(task, outcome)
        self.gate.turn(task)
        self.gate.close(task)
        return b""

    def _error(self, task: Task, stage: str, reason: str, field: str = "") -> ClientError:
        return ClientError(task.client, self.occasion.round, stage, reason, field)


def exchange(
    occasion: Occasion, pool: ClientPool, locals: Mapping[str, Local], asked: Iterable[tuple[Profile, int | None]], gate: Gate
) -> tuple[Tree, Info, Entries]:
    """Have the pool answer, add what is sound, and take the server's step.

    Parameters
    ----------
    asked
        Profiles of the clients to ask, each with the round in which it last heard from the server.

    Returns
    -------
    tuple
        The next state, the server's figures, and the entries.

    Raises
    ------
    ClientError, TooFewClientsError
        As `Entries`.
    """
    phase, entries = occasion.phase, Entries(occasion)
    invitations = Invitations(occasion, gate, entries)
    admission = Admission(occasion, gate, entries, invitations)
    tasks = (task for profile, version in asked if (task := invitations.task(profile, version)))
    reducer = phase.reducer()
    for arrival in phase.link.collect(admission.arrivals(pool, pool.map(locals, tasks)), reducer, occasion.key("link")):
        reply, heard = admission.replies.pop(arrival.client), not arrival.refusal and not arrival.silence
        if heard:
            entries.answered(arrival.client, arrival.cost, reply.seconds, reply.info)
        elif arrival.refusal:
            error = ClientError(arrival.client, occasion.round, "collect", arrival.refusal, arrival.field)
            entries.failed(arrival.client, error, arrival.cost, reply.seconds)
        else:
            entries.unheard(arrival.client, arrival.cost, reply.seconds, arrival.silence)
        pool.settle(arrival.client, heard)
    if not entries.enough():
        return occasion.state, {}, entries
    state, info = phase.server.step(occasion.state, reducer, occasion.round)
    return state, info, entries
