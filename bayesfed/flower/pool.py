"""`Flower`: a pool whose clients are SuperNodes of a Flower federation.

Of Flower's grid only `get_node_ids`, `push_messages` and `pull_messages` are used. Messages, the
order of sums and random streams are the same as with other pools, so a run over nodes equals a run
in process bit for bit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from bayesfed.errors import ArgumentError, DataError, WireError
from bayesfed.errors.checks import a, checked, number
from bayesfed.errors.plurals import plural
from bayesfed.federated import Profile, Reply, Slot, Task
from bayesfed.federated.clients import Outcome, Sides
from bayesfed.flower.letters import VERSIONS, Answer, Question, read_reply
from bayesfed.flower.memories import RemoteMemories
from bayesfed.flower.messages import FlowerMail, Received
from bayesfed.flower.roster import Roster

if TYPE_CHECKING:
    from flwr.serverapp import Grid

log = logging.getLogger("bayesfed.flower")
# Flower compares the clocks of two machines, which may differ by this much.
GRACE_S = 60.0
LOOK_S = 1.0
TIME = number("(0, inf]", "600.0")
PARTS = a(Mapping, "digests by name", "experiment.parts")


@dataclass
class _Turn:
    """The state of one task: when and where it was sent, how often, and its outcome."""

    task: Task
    sent_at: float
    node: int | None = None
    attempts: int = 0
    trouble: str = ""
    outcome: Outcome | None = None


class Flower(RemoteMemories):
    """A pool of clients on the nodes of a Flower grid.

    All tasks of a phase are sent before waiting for the first answer. If a client's SuperNode comes
    back under another number before the client has answered, the client is asked again, and its
    figures have the number of ``attempts``. A client that fails, does not answer in time or has no
    node is left out, with the reason in the report; an answer that comes too late is passed on with
    its own task, and the engine refuses it. Memories stay with the clients: the pool keeps track of
    which memory of each client is valid and tells the client with every question.

    Parameters
    ----------
    grid
        Flower's grid, as passed to a ServerApp.
    clients
        Number of clients or their names; the handshake waits for them.
    deadline_s
        Longest time of a phase in seconds, from its first message. None: wait as long as the node
        is online.
    hello_s
        Longest time of the handshake in seconds.
    poll_s
        Seconds between two checks for answers.
    experiment
        `Experiment.fingerprint`, which clients must share; "" accepts any.
    parts
        `Experiment.parts`, to say what differs at a client with another experiment.
    codecs
        Your own dataclasses among the codecs.
    mail, clock, wait
        Replacements of Flower's messages and of time, for tests.

    Raises
    ------
    ClientError
        If not all clients are there in time, two nodes say the same name, or there are more clients
        than expected.
    DataError
        If no client has rows.
    ArgumentError
        If a time is not positive, or no clients are expected.
    MissingExtraError
        If Flower is not installed.
    """

    @checked(deadline_s=TIME, hello_s=TIME, poll_s=TIME, parts=PARTS)
    def __init__(
        self,
        grid: Grid,
        clients: int | Collection[str],
        *,
        deadline_s: float | None = 600.0,
        hello_s: float = 300.0,
        poll_s: float = 0.2,
        experiment: str = "",
        parts: Mapping[str, str] = MappingProxyType({}),
        codecs: Iterable[type] = (),
        mail: FlowerMail | None = None,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__()
        wanted = clients if isinstance(clients, int) else frozenset(clients)
        if not wanted or (isinstance(wanted, int) and wanted < 0):
            raise ArgumentError("Flower", "one client or more", clients, "clients=3")
        self._grid, self._mail = grid, mail or FlowerMail()
        self._deadline_s, self._poll_s, self._codecs = deadline_s, poll_s, tuple(codecs)
        self._clock, self._wait, self._looked_at = clock, wait, float("-inf")
        self._roster = Roster(
            experiment, parts, lambda content, node: self._push(content, node, hello_s + GRACE_S)
        )
        self._open: dict[str, _Turn] = {}
        self._closed: dict[str, Task] = {}
        self._late: list[tuple[Task, Outcome]] = []
        self.bytes_sent, self.bytes_received = 0, 0
        self.profiles: tuple[Profile, ...] = self._greeted(wanted, hello_s)

    def map(self, sides: Sides, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Yield the outcomes of tasks in order, and between them late and second answers, each
        with its own task.

        `sides` is not used: clients have the local steps of their own experiment.
        """
        self._look(force=True)
        self._closed = {}
        turns: list[_Turn] = []
        for task in tasks:
            turns.append(_Turn(task, self._clock()))
            self._send(turns[-1])
        start = self._clock()
        for turn in turns:
            while turn.outcome is None:
                self._step(turns, start)
                if turn.outcome is None:
                    self._wait(self._poll_s)
            yield from self._taken()
            yield turn.task, turn.outcome
        yield from self._taken()

    def _greeted(self, wanted: int | frozenset[str], hello_s: float) -> tuple[Profile, ...]:
        end, roster = self._clock() + hello_s, self._roster
        while True:
            self._look()
            self._pull()
            if roster.twice:
                raise roster.refusal(
                    f"two nodes say {sorted(roster.twice)}", "a name of its own for each node"
                )
            if not (missing := roster.missing(wanted)):
                break
            if self._clock() >= end:
                raise roster.refusal(
                    f"{', '.join(missing)} to come after {hello_s:g} s",
                    "starting their nodes, or a larger hello_s",
                )
            self._wait(self._poll_s)
        if isinstance(wanted, int) and len(roster.nodes) > wanted:
            raise roster.refusal(
                f"more than {wanted} clients", "the names of those that are meant as clients"
            )
        names = sorted(roster.nodes if isinstance(wanted, int) else wanted)
        profiles = tuple(roster.profiles[name] for name in names)
        if not any(profile.samples for profile in profiles):
            raise DataError(
                "Flower",
                "a client with data",
                f"{plural(len(profiles), 'client')}, all empty",
                "the data function",
            )
        return profiles

    def _step(self, turns: list[_Turn], start: float) -> None:
        """Receive answers, ask clients again that came back, and give up on those that are gone or
        late.
        """
        self._pull()
        self._look()
        late = self._deadline_s is not None and self._clock() - start >= self._deadline_s
        for turn in turns:
            if turn.outcome is not None:
                continue
            task, node = turn.task, self._roster.nodes.get(turn.task.client)
            if late:
                where = f" by its node {turn.node}" if turn.node is not None else ""
                reason = f"not answered{where} within {self._deadline_s:g} s"
                turn.outcome = task.error("deadline", f"{reason}; try a larger deadline_s")
            elif node is not None and node != turn.node:
                self._send(turn)
            elif node is None and not self._roster.greeted:
                reason = turn.trouble or "its node is offline"
                turn.outcome = task.error("node", f"{reason}; try starting it again")

    def _look(self, *, force: bool = False) -> None:
        if force or self._clock() - self._looked_at >= LOOK_S:
            self._looked_at = self._clock()
            self._roster.look({int(node) for node in self._grid.get_node_ids()})

    def _push(self, content: bytes, node: int, ttl_s: float) -> str | None:
        ids = list(self._grid.push_messages([self._mail.outgoing(content, node, ttl_s)]))
        if not ids or ids[0] is None:
            return None
        self.bytes_sent += len(content)
        return str(ids[0])

    @property
    def _ttl_s(self) -> float:
        # So that a busy node does not receive a message whose answer nobody waits for.
        return self._deadline_s + GRACE_S if self._deadline_s is not None else 7 * 86400.0

    def _send(self, turn: _Turn) -> None:
        node = self._roster.nodes.get(turn.task.client)
        if node is None:
            return
        question = Question(
            turn.task, self.slot(turn.task.client), self._codecs, self._roster.experiment
        )
        turn.node, turn.attempts, turn.sent_at = node, turn.attempts + 1, self._clock()
        if (id := self._push(question.write(), node, self._ttl_s)) is None:
            reason = f"Flower did not take the message to its node {node}"
            turn.outcome = turn.task.error("node", reason)
        else:
            self._open[id] = turn

    def _pull(self) -> None:
        self._open = {
            id: turn
            for id, turn in self._open.items()
            if self._clock() - turn.sent_at < self._ttl_s
        }
        ids = [*self._roster.greeted, *self._open]
        for message in self._grid.pull_messages(ids) if ids else ():
            received = self._mail.incoming(message)
            self.bytes_received += len(received.content)
            if received.id in self._roster.greeted:
                self._roster.hear(received)
            elif received.id in self._open:
                self._hear(self._open.pop(received.id), received)
            elif received.id in self._closed:
                self._extra(
                    self._closed[received.id], _outcome(self._closed[received.id], received)[0]
                )

    def _hear(self, turn: _Turn, received: Received) -> None:
        client = turn.task.client
        self._closed[received.id] = turn.task
        if received.gone:
            turn.trouble = received.error
            if self._roster.nodes.get(client) == turn.node and turn.outcome is None:
                self._roster.leave(client, received.error)
            return
        outcome, slot = _outcome(turn.task, received)
        if turn.outcome is not None:
            self._extra(turn.task, outcome)
            return
        if isinstance(outcome, Reply):
            self.pend(client, slot)
            if turn.attempts > 1:
                outcome.info["attempts"] = float(turn.attempts)
        turn.outcome = outcome

    def _extra(self, task: Task, outcome: Outcome) -> None:
        log.warning("another or a late answer of client %r to round %s", task.client, task.round)
        if isinstance(outcome, Reply):
            self._late.append((task, outcome))

    def _taken(self) -> Iterator[tuple[Task, Outcome]]:
        while self._late:
            yield self._late.pop(0)


def _outcome(task: Task, received: Received) -> tuple[Outcome, Slot | None]:
    """Return the outcome of an answer, and the slot of the memory that was made with it."""
    if received.error:
        return task.error("app", received.error), None
    try:
        answer = read_reply(received.content)
    except WireError as problem:
        return task.error("reply", str(problem)), None
    asked = (task.client, task.round, task.phase)
    if not isinstance(answer, Answer):
        return task.error("reply", f"a name, not an answer; try {VERSIONS}"), None
    if answer.stage:
        return task.error(answer.stage, answer.reason, answer.field), None
    if (said := (answer.client, answer.round, answer.phase)) != asked:
        return task.error("reply", f"an answer to {said}, not to {asked}; try {VERSIONS}"), None
    reply = Reply(answer.packed, {}, answer.info, answer.seconds)
    return reply, Slot(task.round, task.phase) if answer.remembers else None
