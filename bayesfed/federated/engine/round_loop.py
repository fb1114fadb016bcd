"""The engine: the only round loop in the package.

`rounds` is a generator of reports; whatever wants to watch, evaluate, save or stop does so between
two of them. Clients are always summed in the order of their names, every random stream is named by
(seed, phase, round, client), so worker count, client order and resuming do not change a bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from bayesfed.errors import ArgumentError, ClientError, RefusedError, TooFewClientsError, complain
from bayesfed.federated.clients.envelopes import check_secrets, masked
from bayesfed.federated.clients.pools import ClientPool
from bayesfed.federated.clients.turn import Outcome, Reply, Task, one_thread
from bayesfed.federated.core.algorithm import Algorithm, Phase, Predictor, published
from bayesfed.federated.core.protocols import Arrival, Assignment, Cost, Info, Local, Profile, Skip, shortened
from bayesfed.federated.engine.gate import Gate, length
from bayesfed.federated.engine.ledger import Row
from bayesfed.federated.engine.samplers import Sampler, everyone
from bayesfed.keys import Key
from bayesfed.trees import Tree

OnClientError = Literal["raise", "drop"]


@dataclass(frozen=True)
class Snapshot:
    """Everything the next round depends on: hand it back to continue, bit for bit; `run` is what its messages are bound to.

    Parameters
    ----------
    history
        Records to put in front of those of a run that goes on from here: those made before this one was resumed, and in ``Result.snapshot``
        and `load`, all.
    """

    algorithm: str
    seed: int
    round: int
    state: Tree
    versions: Mapping[str, int] = field(default_factory=dict)
    memories: Mapping[str, Tree] = field(default_factory=dict)
    run: str = ""
    history: tuple[Record, ...] = ()


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
        """Clients left out of this round, or of a phase of it, with the reason."""
        heard = {(row.client, row.phase) for row in self.rows if row.accepted and row.direction == "up"}
        return {row.client: row.reason for row in self.rows if not row.accepted and (row.client, row.phase) not in heard}

    @property
    def refusals(self) -> tuple[Row, ...]:
        """Every message that was refused, with its client, field and reason: also those of clients whose other answer counts."""
        return tuple(row for row in self.rows if row.field)


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
    least: int = 1,
    secrets: Mapping[str, bytes] | None = None,
    run_id: str | None = None,
) -> Iterator[RoundReport]:
    """Run an algorithm over a pool, yielding a report after every round.

    Parameters
    ----------
    rounds
        Number of the round to stop before; a resumed run counts the rounds already made.
    on_client_error
        "raise" stops at the first client that fails or is refused, naming it with round and stage;
        "drop" goes on without it and the report says why, also through a round in which nobody was heard in time or could take part.
        Strays (second and stale answers, those of strangers) are refused under both, and the run goes on.
    least
        How many clients must be in the sum of every phase. Above 1 it also ends a round in which they were silent or could not take part.
    secrets
        Of every client of the pool, 16 to 64 bytes: messages of both directions are sealed with them, and those that are not are refused.
        The clients have their own from elsewhere (``InProcess(..., secrets=...)``); none travels.
    run_id
        What messages are bound to; default: a name of algorithm and seed, so that a run made again sends the same bytes. In keyed mode
        take a fresh one (``secrets.token_hex(8)``), or messages of an earlier run of that name and seed may be replayed in this one.
        A resumed run keeps its own.

    Raises
    ------
    ArgumentError
        For no rounds, an unknown policy, a sampler that names strangers, a snapshot of another run, or secrets that are none.
    ClientError
        Under "raise".
    TooFewClientsError
        If fewer than `least` clients are left in a phase. The round is not made: the snapshot of the last report is that of the run.
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
    if least < 1:
        raise ArgumentError(complain("least", expected="a number of clients >= 1", actual=least, hint="1"))
    run_id = _run_id(algorithm, seed, resume, run_id)
    keyed = check_secrets("secrets", secrets, (profile.name for profile in pool.profiles)) if secrets is not None else {}
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
            exchange = _Exchange(phase, state, number, seed, on_client_error, least, run_id, Gate(keyed))
            asked = [(profiles[name], versions.get(name)) for name in sorted(chosen)]
            # Planning, sums and the server's step too: products' last bits differ between thread counts.
            with one_thread():
                state, info = exchange.run(pool, locals, asked)
            # A client that failed may not hold this version; counting it as older is always safe.
            versions |= dict.fromkeys(exchange.infos, number)
            server |= info
            clients.update(exchange.infos)
            # A pool may ask ahead; the report does not show how far.
            rows += sorted(exchange.rows, key=lambda row: row.client)
        snapshot = Snapshot(algorithm.name, seed, number + 1, state, dict(versions), pool.memories(), run_id, resume.history)
        yield RoundReport(
            round=number,
            rows=tuple(rows),
            clients=clients,
            server=server,
            seconds=time.perf_counter() - start,
            algorithm=algorithm,
            snapshot=snapshot,
        )


def _run_id(algorithm: Algorithm, seed: int, resume: Snapshot | None, given: str | None) -> str:
    if given is not None and (not given or (resume and resume.run and resume.run != given)):
        expected = repr(resume.run) if resume and resume.run else "a name"
        raise ArgumentError(complain("run_id", expected=expected, actual=repr(given), hint="None"))
    return given or (resume.run if resume else "") or f"{Key(seed, 'run', algorithm.name).integer():016x}"


class _Exchange:
    """One phase of one round: ask, answer, collect, step."""

    def __init__(self, phase: Phase, state: Tree, round: int, seed: int, policy: OnClientError, least: int, run: str, gate: Gate) -> None:
        self.phase, self.state, self.round, self.seed, self.policy = phase, state, round, seed, policy
        self.least, self.run_id, self.gate = least, run, gate
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
            self._published[version] = published(self.phase.server, self.state, self.round, version)
        tree = assignment.view.restrict(self._published[version])
        meta = {**assignment.options.header(), "client": profile.name, "round": self.round, "phase": self.phase.name}
        message = assignment.down.encode(tree, meta, key.child("down"))
        self.rows.append(Row(profile.name, self.round, self.phase.name, "down", Cost(8 * len(message))))
        task = Task(profile.name, self.round, self.phase.name, self.seed, message, assignment.down, assignment.up, self.phase.link, self.run_id)
        task = replace(task, message=masked(message, task.envelope("down"), self.gate.secrets.get(profile.name)))
        self.gate.ask(task, tree)
        return task

    def run(self, pool: ClientPool, locals: Mapping[str, Local], asked: Iterable[tuple[Profile, int | None]]) -> tuple[Tree, Info]:
        """Have the pool answer, add what is sound, and take the server step."""
        reducer = self.phase.reducer()
        tasks = (task for profile, version in asked if (task := self.ask(profile, version)))
        for arrival in self.phase.link.collect(self._arrivals(pool, locals, tasks), reducer, Key(self.seed, self.phase.name, self.round, "link")):
            task, reply = self._replies.pop(arrival.client)
            error = ClientError(task.client, self.round, "collect", arrival.refusal, arrival.field) if arrival.refusal else None
            heard = not error and not arrival.silence
            self._enter(task, arrival.cost, reply.seconds, error, arrival.silence)
            self._silent |= bool(arrival.silence)
            if heard:
                self.infos[task.client] = reply.info
            pool.settle(task.client, heard)
        if not self.infos and self.policy == "drop" and self._silent and self.least == 1:
            return self.state, {}
        if len(self.infos) < self.least:
            reasons = "; ".join(f"{row.client}: {row.reason}" for row in self.rows if not row.accepted)
            left = f"{len(self.infos)} of at least {self.least} clients are left" if self.infos else "no client is left"
            raise TooFewClientsError("all", self.round, self.phase.name, f"{left} ({reasons})")
        return self.phase.server.step(self.state, reducer, self.round)

    def _arrivals(self, pool: ClientPool, locals: Mapping[str, Local], tasks: Iterable[Task]) -> Iterator[Arrival]:
        # A client that was refused at the gate may still answer: whoever made that message up has not used up its turn.
        refused = dict[str, ClientError]()
        for task, outcome in pool.map(locals, tasks):
            try:
                packed = self._admitted(task, outcome)
            except RefusedError as problem:
                error = ClientError(task.client, self.round, "gate", shortened(str(problem)), problem.field)
                self._note(task, Cost(8 * length(outcome)), 0.0, error)
                refused[task.client] = error
                continue
            if isinstance(outcome, Reply):
                self._replies[task.client] = (task, outcome)
                assignment = self._assignments[task.client]
                key = task.key.child("up")
                yield Arrival(task.client, self.round, packed, assignment, self.phase.local.kind, key, phase=self.phase.name)
            else:
                pool.settle(task.client, False)
                self._enter(task, Cost(), 0.0, outcome)
        for task in self.gate.missing():
            pool.settle(task.client, False)
            if task.client not in refused:
                refused[task.client] = ClientError(task.client, self.round, "gate", "no answer")
                self._note(task, Cost(), 0.0, refused[task.client])
            if self.policy == "raise":
                raise refused[task.client]

    def _admitted(self, task: Task, outcome: Outcome) -> bytes:
        if isinstance(outcome, Reply):
            return self.gate.admit(task, outcome)
        self.gate.turn(task)
        self.gate.close(task)
        return b""

    def _enter(self, task: Task, cost: Cost, seconds: float, error: ClientError | None, silence: str = "") -> None:
        self._note(task, cost, seconds, error, silence)
        if error and self.policy == "raise":
            raise error

    def _note(self, task: Task, cost: Cost, seconds: float, error: ClientError | None, silence: str = "") -> None:
        reason, field = (f"{error.stage}: {error.reason}", error.field) if error else (silence, "")
        self.rows.append(Row(task.client, self.round, self.phase.name, "up", cost, seconds, not reason, reason, field))
