"""The engine: the only round loop in the package.

`rounds` is a generator of reports; whatever wants to watch, evaluate, save or stop does so between
two of them. Clients are always summed in the order of their names, every random stream is named by
(seed, phase, round, client), so worker count, client order and resuming do not change a bit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.clients.envelopes import check_secrets
from bayesfed.federated.clients.pools import ClientPool
from bayesfed.federated.clients.turn import one_thread
from bayesfed.federated.core.algorithm import Algorithm
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.engine.exchange import Occasion, exchange
from bayesfed.federated.engine.gate import Gate
from bayesfed.federated.engine.ledger import Row
from bayesfed.federated.engine.reports import OnClientError, RoundReport, Snapshot
from bayesfed.federated.engine.samplers import Sampler, everyone
from bayesfed.keys import Key


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
            occasion = Occasion(phase, state, number, seed, on_client_error, least, run_id)
            asked = [(profiles[name], versions.get(name)) for name in sorted(chosen)]
            # Planning, sums and the server's step too: the last bits of products differ between thread counts.
            with one_thread():
                state, info, entries = exchange(occasion, pool, locals, asked, Gate(keyed))
            # A client that failed may not hold this version; counting it as older is always safe.
            versions |= dict.fromkeys(entries.infos, number)
            server |= info
            clients.update(entries.infos)
            # A pool may ask ahead; the report does not show how far.
            rows += sorted(entries.rows, key=lambda row: row.client)
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
