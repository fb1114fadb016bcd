"""The only round loop in the package.

`rounds` is a generator of reports. Code that watches, evaluates, saves or stops a run does so
between two reports. Clients are always summed in the order of their names, and every random stream
is named by (seed, phase, round, client). The number of workers, the order of clients and resuming
therefore do not change a bit of the result.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import ITSELF, checked, shown, whole
from bayesfed.errors.plurals import plural
from bayesfed.federated.clients import (
    ClientPool,
    Numbers,
    Roster,
    alike,
    check_secrets,
    led,
    one_thread,
    sides_of,
)
from bayesfed.federated.core import Algorithm, Conditions, Info
from bayesfed.federated.engine.arguments import check_call, check_posterior
from bayesfed.federated.engine.assembly import assembled
from bayesfed.federated.engine.asynchronous.fed_buff import FedBuff
from bayesfed.federated.engine.asynchronous.window import Window
from bayesfed.federated.engine.entries import Occasion
from bayesfed.federated.engine.files.migration import kept, migrated
from bayesfed.federated.engine.ranked import agreed, exchange_of
from bayesfed.federated.engine.reports import OnClientError, RoundReport, Row, Snapshot
from bayesfed.federated.engine.samplers import Sampler, everyone
from bayesfed.federated.engine.settings import (
    differences,
    settings_of_algorithm,
    settings_of_run,
    without_run,
)
from bayesfed.keys import Key


@checked(
    least=whole(1, "1"),
    **dict.fromkeys(("algorithm", "rounds", "seed", "sampler", "resume", "secrets"), ITSELF),
)
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
    resume_anyway: bool = False,
    asynchronous: FedBuff | None = None,
) -> Iterator[RoundReport]:
    """Run an algorithm on a pool of clients, and yield a report after every round.

    Parameters
    ----------
    algorithm
        The method.
    pool
        Pool of the clients.
    rounds
        Total number of rounds. A resumed run counts the rounds before it was resumed, and a method
        that ends by itself may take fewer.
    seed
        Seed that names all random streams of the run.
    sampler
        ``(round, clients, key) -> clients of the round``. Default: `everyone`.
    on_client_error
        "raise" stops at the first client that fails or is refused, with an error that names the
        client, round and stage. "drop" goes on without the client, and the report has the reason;
        this includes rounds in which no client was heard in time or could take part. Strays (second
        and stale answers, and those of unknown clients) are refused under both policies, and the
        run goes on.
    resume
        Snapshot to continue from.
    least
        Smallest number of clients in the sum of every phase. If it is above 1, too few clients end
        the run even if the others are missing through no fault of their own.
    secrets
        Secret of every client of the pool, 16 to 64 bytes each. Messages in both directions are
        sealed with them, and other messages are refused. The clients get their secrets in another
        way (``InProcess(..., secrets=...)``); secrets are never sent.
    run_id
        Id that messages are bound to. Default: a hash of algorithm and seed, so that a repeated run
        sends the same bytes. In keyed mode use a fresh id (``secrets.token_hex(8)``); otherwise
        messages of an earlier run with the same algorithm and seed could be replayed in this one. A
        resumed run keeps its id.
    resume_anyway
        Continue from a snapshot although its settings or clients are others
        (`bayesfed.federated.engine.settings`), or are not known because an earlier version wrote
        it. The new settings count from then on.
    asynchronous
        Run asynchronously in simulated time. A round is then a step of the server.

    Raises
    ------
    ArgumentError
        If there are no rounds to run, the policy is unknown, the sampler names unknown clients, the
        snapshot is of another run, has other settings or other clients, a secret is missing or not
        valid, or a check of the algorithm refuses the run.
    ClientError
        Under "raise", if a client fails or is refused.
    TooFewClientsError
        If fewer than `least` clients are in the sum of a phase. The round is not completed: the
        last report has the snapshot to continue from.
    """
    resume = agreed(pool, resume)
    check_call(algorithm, rounds, sampler, resume)
    # A number of NumPy would be written otherwise.
    seed = Key(seed).seed
    resume = _resumed(algorithm, rounds, seed, resume)
    run_id = _run_id(algorithm, seed, resume, run_id)
    roster = Roster(pool.profiles)
    keyed = check_secrets("secrets", secrets, roster.names) if secrets is not None else {}
    if asynchronous:
        asynchronous.check(algorithm, pool, sampler, len(roster))
    settings = settings_of_run(algorithm, asynchronous or sampler, pool.profiles)
    alike(pool, settings, resume.state if resume else algorithm.initial)
    changed = _changed(resume, settings, resume_anyway) if resume and resume.round else ()
    resume = resume or Snapshot(algorithm.name, seed, 0, algorithm.initial)
    check_posterior(algorithm, resume.state)
    pool.restore(resume.memories)
    phases = tuple(assembled(phase) for phase in algorithm.phases)
    sides, memories = sides_of(algorithm), resume.memories
    state, versions = resume.state, Numbers(roster.ordered).updated(resume.versions)
    window = (
        Window(asynchronous, pool, roster, sides, keyed, resume.in_flight) if asynchronous else None
    )
    exchanged = exchange_of(pool)
    for number in range(resume.round, rounds):
        if algorithm.ended(state):
            return
        start = time.perf_counter()
        for condition in algorithm.checks:
            conditions = Conditions(
                algorithm=algorithm,
                sampler=sampler,
                profiles=roster.profiles,
                remembering=tuple(memories),
                changed=changed,
                rows=roster.rows,
                round=number,
            )
            led(pool, partial(condition, conditions))
        chosen = (
            ()
            if window
            else _chosen(
                pool, sampler, number, roster, Key(seed, "sample", number), on_client_error
            )
        )
        clients, server, rows = dict[str, Info](), Info(), list[Row]()
        for phase in phases:
            occasion = Occasion(phase, state, number, seed, on_client_error, least, run_id)
            # Planning, sums and the server's step run in one thread as well, since the last bits of
            # products depend on the number of threads.
            with one_thread():
                if window:
                    state, info, entries, heard = window.step(occasion, versions)
                else:
                    asked = [(roster[name], versions.get(name)) for name in sorted(chosen)]
                    state, info, entries = exchanged(occasion, pool, sides, asked, keyed)
                    heard = dict.fromkeys(entries.infos, number)
            # A client that failed may not hold this version. An older version is always safe.
            versions = versions.updated(heard)
            server |= info
            for client, figures in entries.infos.items():
                clients[client] = clients.get(client, {}) | figures
            # Sorted, since the order of events depends on how far a pool asks ahead.
            rows += sorted(entries.rows, key=lambda row: row.client)
        memories = window.memories() if window else pool.memories()
        flights = window.in_flight() if window else {}
        snapshot = replace(
            resume,
            round=number + 1,
            state=state,
            versions=versions,
            memories=memories,
            run=run_id,
            settings=settings,
            in_flight=flights,
            owned=True,
            origin=algorithm.origin,
        )
        yield RoundReport(
            round=number,
            rows=tuple(rows),
            clients=clients,
            server=server,
            seconds=time.perf_counter() - start,
            algorithm=algorithm,
            snapshot=snapshot,
        )


def _chosen(
    pool: ClientPool,
    sampler: Sampler,
    round: int,
    roster: Roster,
    key: Key,
    policy: OnClientError,
) -> Collection[str]:
    """Return the clients of a round. Under "drop" there may be none, as in a draw in which every
    client takes part with a probability of its own; such a round is one in which nobody was heard.
    """
    chosen = led(pool, partial(sampler, round, roster.names, key))
    where, hint = f"sampler, round {round}", "fraction(0.5)"
    if not isinstance(chosen, Collection) or isinstance(chosen, str):
        raise ArgumentError(where, "names of clients", shown(chosen), hint)
    if unknown := [name for name in chosen if name not in roster]:
        names = ", ".join(map(repr, islice(roster.names, 3)))
        several = f"{names}, ..." if len(roster) > 3 else names
        expected = f"clients of this run ({plural(len(roster), 'client')}: {several})"
        raise ArgumentError(where, expected, repr(unknown[0]), hint)
    if len(set(chosen)) != len(chosen):
        twice = next(name for name in chosen if list(chosen).count(name) > 1)
        raise ArgumentError(where, "distinct clients", f"{twice!r} more than once", hint)
    if not chosen and policy == "raise":
        expected = "at least one client"
        alone = "on_client_error='drop', under which such a round changes nothing"
        raise ArgumentError(where, expected, "none", f"{hint}, or {alone}")
    return chosen


def _resumed(
    algorithm: Algorithm, rounds: int, seed: int, resume: Snapshot | None
) -> Snapshot | None:
    """Check that there are rounds to run, and that the snapshot is of this run. Return it with the
    names that leaves have now.
    """
    if rounds < 1 or (resume and resume.round >= rounds):
        done = resume.round if resume else 0
        raise ArgumentError(
            "rounds",
            f"more than the {plural(done, 'round')} already made",
            rounds,
            f"rounds={done + 10}",
        )
    if resume and (resume.algorithm, resume.seed) != (algorithm.name, seed):
        raise ArgumentError(
            "resume",
            f"a snapshot of {algorithm.name!r}, seed {seed}",
            f"{resume.algorithm!r}, seed {resume.seed}",
            "the run's own arguments",
        )
    return migrated(resume, algorithm) if resume and not resume.owned else resume


def _run_id(algorithm: Algorithm, seed: int, resume: Snapshot | None, given: str | None) -> str:
    if given is not None and (not given or (resume and resume.run and resume.run != given)):
        raise ArgumentError(
            "run_id", repr(resume.run) if resume and resume.run else "a name", repr(given), "None"
        )
    return (
        given
        or (resume.run if resume else "")
        or f"{Key(seed, 'run', algorithm.name).integer():016x}"
    )


def check_same(algorithm: Algorithm, snapshot: Snapshot) -> None:
    """Check that a finished run was made with this algorithm: its name, settings and networks.
    Snapshots of earlier versions pass, whose settings are not known or had other names.

    Raises
    ------
    ArgumentError
        If it was made with another; the message names what differs.
    """
    if snapshot.algorithm != algorithm.name:
        expected, hint = f"the algorithm of the run, {snapshot.algorithm!r}", "that of the run"
        raise ArgumentError("algorithm", expected, repr(algorithm.name), hint)
    if not snapshot.settings or not snapshot.owned:
        return
    changes = differences(without_run(snapshot.settings), settings_of_algorithm(algorithm))
    if changes:
        raise ArgumentError(
            "algorithm",
            "the settings and networks of the run",
            _listed(changes),
            "the algorithm of the run",
        )


def _changed(resume: Snapshot, settings: Mapping[str, str], anyway: bool) -> tuple[str, ...]:
    """Return the names of the settings that differ from those of the snapshot.

    Raises
    ------
    ArgumentError
        If any differ, unless `anyway`.
    """
    if not resume.settings:
        if not anyway:
            raise ArgumentError(
                "resume",
                "a snapshot with the settings of its run",
                "a snapshot without settings, which an earlier version wrote",
                "resume_anyway=True, if settings and clients are those of the run",
            )
        return ("settings, which are not known",)
    changes = differences(resume.settings, settings if resume.owned else kept(settings))
    if changes and not anyway:
        raise ArgumentError(
            "resume",
            "the settings and clients of the snapshot's run",
            _listed(changes),
            "the settings and clients of the run, or resume_anyway=True",
        )
    return tuple(changes)


def _listed(changes: Mapping[str, tuple[str, str]]) -> str:
    """Return the first three changes of settings in words, and how many more there are."""
    words = [f"{name} {before}, now {now}" for name, (before, now) in changes.items()]
    if len(words) > 3:
        words[3:] = [f"and {len(words) - 3} more"]
    return "; ".join(words)
