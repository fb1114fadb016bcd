"""`run`: an algorithm over clients' data, round after round."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import ITSELF, Role, check, checked
from bayesfed.federated import (
    Algorithm,
    ClientPool,
    FedBuff,
    InProcess,
    Ranks,
    Record,
    RecordFile,
    RoundReport,
    Sampler,
    Snapshot,
    bits,
    everyone,
)
from bayesfed.federated.clients import led
from bayesfed.federated.core import Info
from bayesfed.federated.engine import callbacks as watch
from bayesfed.federated.engine import round_loop as engine
from bayesfed.federated.engine.arguments import (
    check_call,
    check_clients,
    check_labels,
    check_test,
)
from bayesfed.federated.engine.checkpoint import Checkpoints
from bayesfed.federated.engine.files.records import history_in
from bayesfed.federated.engine.ranked import agreed
from bayesfed.federated.engine.reports import OnClientError
from bayesfed.running.drawn_weights import warn_of_drawn_weights
from bayesfed.running.result import Result
from bayesfed.running.settling import unheard, warn_of_unheard, warn_unless_settled
from bayesfed.running.trackers.tracker import Tracker

log = logging.getLogger("bayesfed")

# Most rounds of a method that ends by itself.
MOST = 1000
FIGURE = Role(lambda value: float(value) is not None, "a number", "float('nan')")


@checked(
    **dict.fromkeys(
        ("algorithm", "clients", "rounds", "test", "seed", "sampler", "resume", "secrets"), ITSELF
    )
)
def run(
    algorithm: Algorithm,
    clients: Mapping[str, Dataset] | ClientPool,
    *,
    rounds: int | None = None,
    test: Dataset | None = None,
    seed: int = 0,
    sampler: Sampler = everyone,
    on_client_error: OnClientError = "raise",
    callbacks: Sequence[watch.Callback] = (),
    progress: bool = True,
    resume: Snapshot | None = None,
    least: int = 1,
    secrets: Mapping[str, bytes] | None = None,
    run_id: str | None = None,
    resume_anyway: bool = False,
    records: str | Path | None = None,
    asynchronous: FedBuff | None = None,
) -> Result:
    """Run an algorithm over clients until `rounds` rounds are made, the method ends by itself, or a
    callback returns True. Each round is a line of the logger "bayesfed", at level INFO.

    Parameters
    ----------
    algorithm
        The method: what a recipe such as `fed_avg` returns.
    rounds
        Total number of rounds. Methods that end by themselves, as `federated_svi` does of a model
        alone, need none; it is the most then.
    clients
        A data set for each client by name, a `Population`, or a pool. With `Ranks`, every rank of a
        job has to call `run` with the same arguments.
    test
        Scored every round by classification accuracy; for other metrics use `evaluate` as a
        callback.
    callbacks
        Called after every round in their order, trackers (`tensorboard`, `mlflow`, `wandb`) and
        then `checkpoint` last, so that what the others entered is saved. One that is a context
        manager is entered before the first round and left at the end, also after an error.
    progress
        Draw a progress bar on standard error, if that is a terminal or in a notebook.
    seed
        Names every draw of the run, with round and client; a snapshot that is gone on from must
        have the same.
    sampler
        ``(round, names, key) -> names``: who takes part in a round; default everyone.
    resume
        A snapshot to go on from: that of a `Result`, or from a folder of checkpoints (`load`,
        `newest`). If all rounds are made already, the result is what it says, and nothing runs.
    resume_anyway
        Go on although settings or clients are not those of the snapshot, or not known.
    on_client_error, least, secrets, run_id
        Who is left out, how many must be left, and what messages are sealed with: as
        `bayesfed.federated.rounds`.
    records
        Folder for the records of all rounds: they are appended to ``records.jsonl`` there, and
        ``Result.history`` reads them back. A resumed run goes on in its folder. Default: they are
        in memory, about 3.5 kB for every client and round.
    asynchronous
        `FedBuff`: run asynchronously in simulated time; a round is then a step of the server.

    Raises
    ------
    ArgumentError, DataError, ClientError
        As `bayesfed.federated.rounds`; an interrupted run loses nothing that a `checkpoint`
        callback saved.
    CheckpointError
        If the folder of `records` has those of another run, or cannot be written to.

    Warns
    -----
    ConvergenceWarning
        If a run of `federated_svi`, of a model or a network, has not settled (`Result.settling`).
    UndeterminedWarning
        If the run ended before what it is for: `swag` before it took models,
        ``prior_precision="auto"`` before it chose; or a posterior lacks the rows of clients that
        were never heard, which are named with their shares (`Result.unheard`).
    """
    most = MOST if rounds is None else rounds

    # Of several ranks, what rank 0 resumes from counts.
    done = led(clients, partial(_is_done, algorithm, rounds, sampler, resume, seed, resume_anyway))
    check_clients(clients)
    if done and resume and isinstance(clients, Mapping) and not clients:
        return Result(algorithm, resume.history, resume, clients)
    pool: ClientPool = InProcess(clients) if isinstance(clients, Mapping) else clients
    rows = pool.data if isinstance(pool, InProcess | Ranks) else None
    if done and (end := resume if isinstance(clients, Mapping) else agreed(clients, resume)):
        return Result(algorithm, end.history, end, rows, unheard(algorithm, pool.profiles, end))
    warn_of_drawn_weights(algorithm, rows or {})
    watchers: list[watch.Callback] = [watch.elbo]
    if test is not None:
        check_test(algorithm, test, rows or {})
        watchers.append(watch.evaluate(test))
    watchers += callbacks
    scored = [one for one in watchers if isinstance(one, watch.Evaluation)]
    names = [one.name for one in scored]
    if again := {name for name in names if names.count(name) > 1}:
        expected, hint = "a name for each evaluation", "evaluate(rows, name='validation')"
        raise ArgumentError("run, callbacks", expected, f"{min(again)!r} twice", hint)
    check_labels(rows or {}, {f"evaluate, {one.name}": one.data for one in scored})
    leads = not isinstance(pool, Ranks) or pool.group.rank == 0
    if progress and leads:
        watchers.append(watch.progress(most, label=algorithm.name))
    watchers.sort(
        key=lambda watcher: (isinstance(watcher, Checkpoints), isinstance(watcher, Tracker))
    )
    opened = list[list[Record] | RecordFile]()
    led(pool, lambda: opened.append(_history(records, resume.history if resume else ())))
    made = engine.rounds(
        algorithm,
        pool,
        rounds=most,
        seed=seed,
        sampler=sampler,
        on_client_error=on_client_error,
        resume=resume,
        least=least,
        secrets=secrets,
        run_id=run_id,
        resume_anyway=resume_anyway,
        asynchronous=asynchronous,
    )
    with ExitStack() as entered:
        for watcher in watchers if leads else ():
            if isinstance(watcher, AbstractContextManager):
                entered.enter_context(watcher)
        for report in made:
            snapshot = report.snapshot
            if not opened:
                opened.append(_elsewhere(records, snapshot.history))
            (history,) = opened
            # Of several ranks, rank 0 alone calls the callbacks.
            stop, metrics = led(pool, partial(_watched, watchers, report))
            report.metrics.update(metrics)
            # Now its metrics are complete.
            history.append(report.record)
            if leads and log.isEnabledFor(logging.INFO):
                log.info("%s, round %d: %s", algorithm.name, report.round, _said(report.record))
            if stop:
                break
    if isinstance(pool, Ranks):
        pool.group.wait()
    made_so_far = tuple(history) if isinstance(history, list) else history
    warn_unless_settled(algorithm, snapshot.state, made_so_far)
    shares = unheard(algorithm, pool.profiles, snapshot)
    warn_of_unheard(algorithm, shares, made_so_far)
    return Result(algorithm, made_so_far, replace(snapshot, history=made_so_far), rows, shares)


def _is_done(
    algorithm: Algorithm,
    rounds: int | None,
    sampler: Sampler,
    resume: Snapshot | None,
    seed: int,
    resume_anyway: bool,
) -> bool:
    """Check the arguments of a run, and return whether there is nothing left to run.

    Raises
    ------
    ArgumentError
        If an argument is not valid, or the finished run was made with another algorithm.
    """
    check_call(algorithm, rounds, sampler, resume)
    if resume is None or (resume.algorithm, resume.seed) != (algorithm.name, seed):
        return False
    if resume.round != (MOST if rounds is None else rounds) and not algorithm.ended(resume.state):
        return False
    if not resume_anyway:
        engine.check_same(algorithm, resume)
    return True


def _said(record: Record) -> str:
    """Return a round's metrics, kilobytes and refused clients in one line."""
    spent = {f"kB {way}": bits(record.rows, way) / 8e3 for way in ("down", "up")}
    refused = {"refused": float(len(record.refused))} if record.refused else {}
    figures = {**record.metrics, **spent, **refused}
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items())


def _history(records: str | Path | None, earlier: Sequence[Record]) -> list[Record] | RecordFile:
    return list(earlier) if records is None else history_in(records, earlier)


def _elsewhere(records: str | Path | None, earlier: Sequence[Record]) -> list[Record] | RecordFile:
    """Return the records of a rank that does not write those of the run: if rank 0 has them on
    disk, in a file without a name.
    """
    with tempfile.TemporaryDirectory() as folder:
        return _history(records and folder, earlier)


def _watched(watchers: Sequence[watch.Callback], report: RoundReport) -> tuple[bool, Info]:
    """Call all callbacks; return whether one of them stops the run, and the metrics that they
    entered.
    """
    verdicts = [watcher(report) for watcher in watchers]
    for name, value in report.metrics.items():
        check(f"run, callbacks, metric {name!r}", value, FIGURE)
    return any(map(_stops, verdicts)), dict(report.metrics)


def _stops(verdict: object) -> bool:
    """Return whether a callback returned True: Python's, NumPy's or torch's."""
    own = isinstance(verdict, bool | np.bool_)
    torchs = isinstance(verdict, Tensor) and verdict.dtype is torch.bool and verdict.numel() == 1
    return (own or torchs) and bool(verdict)
