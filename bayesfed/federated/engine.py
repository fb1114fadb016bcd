"""The engine: the only round loop in the package.

`rounds` is a generator of reports; whatever wants to watch, evaluate, save or stop does so between
two of them. Clients are always summed in the order of their names, every random stream is named by
(seed, phase, round, client), so worker count, client order and resuming do not change a bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from bayesfed.errors import ArgumentError, ClientError, complain
from bayesfed.federated.client import Reply, Task
from bayesfed.federated.ledger import Row
from bayesfed.federated.pools import ClientPool
from bayesfed.federated.protocols import Algorithm, Arrival, Assignment, Cost, Info, Local, Phase, Predictor, Profile, Skip
from bayesfed.federated.samplers import Sampler, everyone
from bayesfed.keys import Key
from bayesfed.trees import Tree

OnClientError = Literal["raise", "drop"]


@dataclass(frozen=True)
class Snapshot:
    """Everything the next round depends on: hand it back to continue, bit for bit."""

    algorithm: str
    seed: int
    round: int
    state: Tree
    versions: Mapping[str, int] = field(default_factory=dict)
    memories: Mapping[str, Tree] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a round did, in figures: light enough to keep for every round.

    Parameters
    ----------
    rows
        The round's ledger.
    clients
        Figures each accepted client returned.
    server
        Figures of the server step.
    metrics
        Filled by callbacks.
    """

    round: int
    rows: tuple[Row, ...]
    clients: Mapping[str, Info]
    server: Info
    seconds: float
    metrics: Info = field(default_factory=dict)

    @property
    def refused(self) -> dict[str, str]:
        """Clients left out of this round, with the reason."""
        return {row.client: row.reason for row in self.rows if not row.accepted}


@dataclass(frozen=True, kw_only=True)
class RoundReport(Record):
    """A record with the run itself: ``snapshot.round`` is the number of the next round."""

    algorithm: Algorithm
    snapshot: Snapshot

    @property
    def state(self) -> Tree:
        """The server's state after this round."""
        return self.snapshot.state

    @property
    def model(self) -> Predictor:
        """The model after this round."""
        return self.algorithm.predictor(self.state)

    @property
    def record(self) -> Record:
        """The figures alone, sharing the metrics."""
        return Record(round=self.round, rows=self.rows, clients=self.clients, server=self.server, seconds=self.seconds, metrics=self.metrics)


def rounds(
    algorithm: Algorithm,
    pool: ClientPool,
    *,
    rounds: int,
    seed: int = 0,
    sampler: Sampler = everyone,
    on_client_error: OnClientError = "raise",
    resume: Snapshot | None = None,
) -> Iterator[RoundReport]:
    """Run an algorithm over a pool, yielding a report after every round.

    Parameters
    ----------
    rounds
        Number of the round to stop before; a resumed run counts the rounds already made.
    on_client_error
        "raise" stops at the first client that fails or is refused, naming it with round and stage;
        "drop" goes on without it and the report says why, also through a round in which nobody was heard in time or could take part.

    Raises
    ------
    ArgumentError
        For no rounds, an unknown policy, a sampler that names strangers, or a snapshot of another run.
    ClientError
        Under "raise"; under "drop" only when no client is left.
    """
    if rounds < 1 or (resume and resume.round >= rounds):
        done = resume.round if resume else 0
        raise ArgumentError(complain("rounds", expected=f"more than the {done} rounds already made", actual=rounds, hint=f"rounds={done + 10}"))
    if on_client_error not in ("raise", "drop"):
        raise ArgumentError(complain("on_client_error", expected="'raise' or 'drop'", actual=repr(on_client_error), hint="'drop'"))
    if resume and (resume.algorithm, resume.seed) != (algorithm.name, seed):
        raise ArgumentError(
            complain(
                "resume",
                expected=f"a snapshot of {algorithm.name!r}, seed {seed}",
                actual=f"{resume.algorithm!r}, seed {resume.seed}",
                hint="the run's own arguments",
            )
        )
    resume = resume or Snapshot(algorithm.name, seed, 0, algorithm.initial)
    pool.restore(resume.memories)
    locals, profiles = {phase.name: phase.local for phase in algorithm.phases}, {p.name: p for p in pool.profiles}
    state, versions = resume.state, dict(resume.versions)
    for number in range(resume.round, rounds):
        start = time.perf_counter()
        chosen = sampler(number, list(profiles), Key(seed, "sample", number))
        if not chosen or set(chosen) - profiles.keys() or len(set(chosen)) != len(chosen):
            raise ArgumentError(complain("sampler", expected="distinct clients of the pool", actual=list(chosen), hint="fraction(0.5)"))
        clients, server, rows = dict[str, Info](), Info(), list[Row]()
        for phase in algorithm.phases:
            exchange = _Exchange(phase, state, number, seed, on_client_error)
            asked = [(profiles[name], versions.get(name)) for name in sorted(chosen)]
            state, info = exchange.run(pool, locals, asked)
            # A client that failed may not hold this version; counting it as older is always safe.
            versions |= dict.fromkeys(exchange.infos, number)
            server |= info
            clients.update(exchange.infos)
            rows += exchange.rows
        snapshot = Snapshot(algorithm.name, seed, number + 1, state, dict(versions), pool.memories())
        yield RoundReport(
            round=number,
            rows=tuple(rows),
            clients=clients,
            server=server,
            seconds=time.perf_counter() - start,
            algorithm=algorithm,
            snapshot=snapshot,
        )


class _Exchange:
    """One phase of one round: ask, answer, collect, step."""

    def __init__(self, phase: Phase, state: Tree, round: int, seed: int, policy: OnClientError) -> None:
        self.phase, self.state, self.round, self.seed, self.policy = phase, state, round, seed, policy
        self.rows: list[Row] = []
        self.infos: dict[str, Info] = {}
        self._silent = False
        self._assignments: dict[str, Assignment] = {}
        self._replies: dict[str, tuple[Task, Reply]] = {}
        self._published: dict[int | None, Tree] = {}

    def ask(self, profile: Profile, version: int | None) -> Task | None:
        """Plan one client's turn and encode the message to it; None for one that is left out."""
        key = Key(self.seed, self.phase.name, self.round, profile.name)
        assignment = self.phase.assign(self.state, self.round, profile, key.child("assign"))
        if isinstance(assignment, Skip):
            self.rows.append(Row(profile.name, self.round, self.phase.name, "down", Cost(), accepted=False, reason=f"assign: {assignment.reason}"))
            self._silent = True
            return None
        self._assignments[profile.name] = assignment
        if version not in self._published:
            self._published[version] = self.phase.server.publish(self.state, self.round, version)
        tree = assignment.view.restrict(self._published[version])
        meta = {**assignment.options, "client": profile.name, "round": self.round, "phase": self.phase.name}
        message = assignment.down.encode(tree, meta, key.child("down"))
        self.rows.append(Row(profile.name, self.round, self.phase.name, "down", Cost(8 * len(message))))
        return Task(profile.name, self.round, self.phase.name, self.seed, message, assignment.down, assignment.up, self.phase.link)

    def run(self, pool: ClientPool, locals: Mapping[str, Local], asked: Iterable[tuple[Profile, int | None]]) -> tuple[Tree, Info]:
        """Have the pool answer, add what is sound, and take the server step."""
        reducer = self.phase.reducer()
        tasks = (task for profile, version in asked if (task := self.ask(profile, version)))
        for arrival in self.phase.link.collect(self._arrivals(pool, locals, tasks), reducer, Key(self.seed, self.phase.name, self.round, "link")):
            task, reply = self._replies.pop(arrival.client)
            error = ClientError(task.client, self.round, "collect", arrival.refusal) if arrival.refusal else None
            heard = not error and not arrival.silence
            self._enter(task, arrival.cost, reply.seconds, error, arrival.silence)
            self._silent |= bool(arrival.silence)
            if heard:
                self.infos[task.client] = reply.info
            pool.settle(task.client, heard)
        if not self.infos:
            if self.policy == "drop" and self._silent:
                return self.state, {}
            reasons = "; ".join(f"{row.client}: {row.reason}" for row in self.rows if not row.accepted)
            raise ClientError("all", self.round, self.phase.name, f"no client is left ({reasons})")
        return self.phase.server.step(self.state, reducer, self.round)

    def _arrivals(self, pool: ClientPool, locals: Mapping[str, Local], tasks: Iterable[Task]) -> Iterator[Arrival]:
        for task, outcome in pool.map(locals, tasks):
            if isinstance(outcome, Reply):
                self._replies[task.client] = (task, outcome)
                assignment = self._assignments[task.client]
                yield Arrival(task.client, self.round, outcome.packed, assignment, self.phase.local.kind, task.key.child("up"))
            else:
                self._enter(task, Cost(), 0.0, outcome)
                pool.settle(task.client, False)

    def _enter(self, task: Task, cost: Cost, seconds: float, error: ClientError | None, silence: str = "") -> None:
        reason = f"{error.stage}: {error.reason}" if error else silence
        self.rows.append(Row(task.client, self.round, task.phase, "up", cost, seconds, not reason, reason))
        if error and self.policy == "raise":
            raise error
