"""Checkpoints: a folder with a run's last snapshots and all its records
(`bayesfed.federated.engine.files.snapshots` describes its files).

All randomness is named by seed, round and client (`bayesfed.keys`), so the number of the next round
is the position of every random stream.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

from bayesfed.data.files import append, make_private, sweep, write_whole
from bayesfed.errors import CheckpointError, CheckpointWarning
from bayesfed.errors.checks import checked, whole
from bayesfed.federated.engine.files import snapshots
from bayesfed.federated.engine.files.records import lines, to_line
from bayesfed.federated.engine.reports import Record, RoundReport, Snapshot, Watch


@checked()
def load(path: str | Path) -> Snapshot:
    """Return the newest undamaged checkpoint of a folder. If newer ones are damaged, a
    `CheckpointWarning` says so.

    Returns
    -------
    Snapshot
        Snapshot to give to `run` as `resume`. Its `history` has the records of all rounds.

    Raises
    ------
    CheckpointError
        If there is no checkpoint, or all are damaged.
    """
    folder, problems = Path(path), list[str]()
    for number in snapshots.numbers(folder):
        try:
            snapshot = snapshots.read(folder, number)
        except CheckpointError as problem:
            problems.append(str(problem))
            continue
        if problems:
            warnings.warn(
                CheckpointWarning(f"{'; '.join(problems)}. The one of round {number} is used"),
                stacklevel=2,
            )
        return snapshot
    raise CheckpointError(
        str(folder),
        "a checkpoint",
        "; ".join(problems) or ("no checkpoint" if folder.is_dir() else "no such folder"),
        "a copy, or a new run in another folder",
    )


@checked()
def newest(path: str | Path) -> Snapshot | None:
    """Return what `load` returns, or None if the folder has no finished checkpoint:
    ``run(..., resume=newest(path))`` starts or continues a run.
    """
    folder = Path(path)
    return load(path) if folder.is_file() or any(folder.glob("*.json")) else None


class Checkpoints:
    """A callback that saves checkpoints, and of the history only what is new; made by
    `checkpoint`.
    """

    def __init__(self, path: str | Path, every: int, keep: int) -> None:
        self._folder, self._every, self._keep = Path(path), every, keep
        self._turns, self._watch = max(keep, 2), Watch()

    def __call__(self, report: RoundReport) -> None:
        """Collect the record of the round, and save a checkpoint if one is due."""
        snapshot = report.snapshot
        if self._watch.begins(report):
            _check_folder(self._folder, snapshot)
            self._begin(snapshot)
        for backlog in self._backlog:
            backlog.append(report.record)
        if snapshot.round % self._every == 0:
            self._write(snapshot)

    def save(self, snapshot: Snapshot) -> None:
        """Save a checkpoint of a run by itself, with its whole history."""
        _check_folder(self._folder, snapshot)
        self._begin(replace(snapshot, history=()))
        for backlog in self._backlog:
            backlog.extend(snapshot.history)
        self._write(snapshot)

    def _begin(self, snapshot: Snapshot) -> None:
        self._earlier = snapshot.history
        # Only what this run wrote into a history file counts, so each begins empty, whatever is in
        # the folder.
        self._backlog: list[list[Record]] = [[] for _ in range(self._turns)]
        self._written = [(0, blake2b(digest_size=32)) for _ in range(self._turns)]
        self._turn = snapshots.next_turn(self._folder) % self._turns

    def _write(self, snapshot: Snapshot) -> None:
        """Write history, tensors and, last of all, the file that makes them a checkpoint."""
        turn = self._turn
        try:
            make_private(self._folder)
            sweep(self._folder)
            history = self._extend(turn)
            written = snapshots.write(self._folder, snapshot, {"file": turn, **history})
            snapshots.prune(self._folder, self._keep, written)
        except OSError as problem:
            where = f"checkpoint of round {snapshot.round} in {self._folder}"
            hint = "another folder"
            if whole := snapshots.finished(self._folder):
                hint = f"room there: the checkpoint of round {whole[0]} is whole"
            raise CheckpointError(
                where, "a disk that can be written to", problem, hint
            ) from problem
        self._turn = (turn + 1) % self._turns

    def _extend(self, turn: int) -> dict[str, Any]:
        """Append new records to a history file. Its earlier bytes stay as they are, since an older
        checkpoint needs them.
        """
        path = snapshots.history_file(self._folder, turn)
        (length, hasher), added = self._written[turn], map(to_line, self._backlog[turn])
        if length:
            content = b"".join(added)
            append(path, length, content)
            hasher.update(content)
            length += len(content)
        else:
            # Nothing of an attempt that failed counts, so the digest begins anew as well.
            hasher = blake2b(digest_size=32)
            write_whole(path, _hashed(chain(lines(self._earlier), added), hasher), private=True)
            length = path.stat().st_size
        self._written[turn] = (length, hasher)
        self._backlog[turn].clear()
        return {"bytes": length, "blake2b": hasher.hexdigest()}


@checked(every=whole(1, "10"), keep=whole(1, "2"))
def checkpoint(path: str | Path, *, every: int = 1, keep: int = 2) -> Checkpoints:
    """Return a callback that saves checkpoints into a folder. `run` calls it after all other
    callbacks.

    During the run it raises `CheckpointError` if the disk is full or read-only (the earlier
    checkpoints remain), or if the folder has a checkpoint of another run or a later one of this
    run: it does not overwrite checkpoints that the run was not resumed from.

    Parameters
    ----------
    path
        Folder of checkpoints; made if it does not exist, for its owner alone (0700). Files can be
        read by their owner alone (0600), since they hold what clients keep.
    every
        Number of rounds between two checkpoints.
    keep
        Number of checkpoints to keep.

    Raises
    ------
    ArgumentError
        If `every` or `keep` is below 1.
    """
    return Checkpoints(path, every, keep)


def _hashed(parts: Iterable[bytes], hasher: Any) -> Iterator[bytes]:
    for part in parts:
        hasher.update(part)
        yield part


def _check_folder(folder: Path, snapshot: Snapshot) -> None:
    """Raise an error if a folder has an undamaged checkpoint that this run does not continue.
    Remove damaged ones of rounds still to come.
    """
    for number in snapshots.numbers(folder):
        try:
            saved = snapshots.read(folder, number)
        except CheckpointError:
            if number >= snapshot.round:
                snapshots.remove(folder, number)
            continue
        if number >= snapshot.round or _identity(saved) != _identity(snapshot):
            raise CheckpointError(
                f"checkpoints in {folder}",
                "those this run goes on from",
                f"one of {saved.algorithm!r}, seed {saved.seed}, round {saved.round}",
                "resume=load(...), or another folder",
            )
        return


def _identity(snapshot: Snapshot) -> tuple[str, int, str]:
    return snapshot.algorithm, snapshot.seed, snapshot.run
