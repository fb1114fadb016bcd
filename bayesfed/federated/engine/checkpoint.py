"""Checkpoints: a folder with a run's last snapshots and all its records, each written whole or not at all, digested, never unpickled.

::

    00000012-0f5c.safetensors    state and client memories after twelve rounds, with some of their digest in the name
    00000012.json                the rest of the snapshot, and digests; written last: without it a checkpoint was never finished
    history-0.jsonl              a record a line; files that take turns, so that damage to one leaves the other checkpoint whole

All randomness is named by seed, round and client (`bayesfed.keys`): the number of the next round is the position of every stream.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from bayesfed.errors import ArgumentError, CheckpointError, CheckpointWarning, WireError, complain
from bayesfed.federated.clients.serialisation import from_safetensors, to_safetensors
from bayesfed.federated.engine.records import from_line, to_line
from bayesfed.federated.engine.reports import Record, RoundReport, Snapshot
from bayesfed.files import append, digest, sweep, write_whole
from bayesfed.trees import Tree

FORMAT = 1
# Fields of a snapshot that are not written as JSON beside the digests.
APART = ("state", "memories", "history")


def save(path: str | Path, snapshot: Snapshot, *, keep: int = 2) -> None:
    """Write a snapshot into a folder of checkpoints, and remove all but the last `keep`.

    The records of its rounds are those in ``snapshot.history``: all of them in ``Result.snapshot``. `checkpoint` collects them.

    Raises
    ------
    CheckpointError
        If it cannot be written: what was there before still is.
    """
    _Writer(path, keep, snapshot).write(snapshot)


def load(path: str | Path) -> Snapshot:
    """Read the newest checkpoint of a folder that is not damaged, and warn with a `CheckpointWarning` of newer ones that are.

    Returns
    -------
    Snapshot
        Hand it to `run` as `resume`; its `history` has the records of all rounds.

    Raises
    ------
    CheckpointError
        If there is none, or all are damaged.
    """
    folder, problems = Path(path), list[str]()
    for number in _numbers(folder):
        try:
            snapshot = _read(folder, number)
        except CheckpointError as problem:
            problems.append(str(problem))
            continue
        if problems:
            warnings.warn(CheckpointWarning(f"{'; '.join(problems)}. The one of round {number} is used"), stacklevel=2)
        return snapshot
    actual = "; ".join(problems) or ("no checkpoint" if folder.is_dir() else "no such folder")
    raise CheckpointError(complain(str(folder), expected="a checkpoint", actual=actual, hint="a copy, or a new run in another folder"))


def newest(path: str | Path) -> Snapshot | None:
    """Return what `load` does, or None where no checkpoint was ever finished: ``run(..., resume=newest(path))`` starts or goes on."""
    return load(path) if any(Path(path).glob("*.json")) else None


class Checkpoints:
    """What `checkpoint` returns."""

    def __init__(self, path: str | Path, every: int, keep: int) -> None:
        if every < 1:
            raise ArgumentError(complain("checkpoint", expected="every >= 1", actual=every, hint="10"))
        if keep < 1:
            raise ArgumentError(complain("checkpoint", expected="keep >= 1", actual=keep, hint="2"))
        self._path, self._every, self._keep = Path(path), every, keep
        self._writer: _Writer | None = None

    def __call__(self, report: RoundReport) -> None:
        """Take the record, and save if it is time."""
        snapshot = report.snapshot
        if self._writer is None or not self._writer.continues(report):
            _check_folder(self._path, snapshot)
            self._writer = _Writer(self._path, self._keep, snapshot)
        self._writer.add(report)
        if snapshot.round % self._every == 0:
            self._writer.write(snapshot)


def checkpoint(path: str | Path, *, every: int = 1, keep: int = 2) -> Checkpoints:
    """Return a callback that saves into a folder every `every` rounds and keeps the last `keep`; `run` calls it after all others.

    It raises `CheckpointError` if the disk is full or read-only (the last checkpoints are whole and remain), or if the folder has a
    checkpoint of another run, or of this one and farther on: it does not write over what was not resumed from.
    """
    return Checkpoints(path, every, keep)


class _Writer:
    """Writes one run's checkpoints, and only what is new of its history."""

    def __init__(self, path: str | Path, keep: int, snapshot: Snapshot) -> None:
        if keep < 1:
            raise ArgumentError(complain("save", expected="keep >= 1", actual=keep, hint="2"))
        self._folder, self._keep, self._identity = Path(path), keep, _identity(snapshot)
        self._next: int | None = None
        # Each history file has what it was given; at first that is nothing, whatever is in the folder.
        self._turns = max(keep, 2)
        self._backlog: list[list[Record]] = [list(snapshot.history) for _ in range(self._turns)]
        self._written = [(0, blake2b(digest_size=32)) for _ in range(self._turns)]
        self._turn = _next_turn(self._folder) % self._turns

    def continues(self, report: RoundReport) -> bool:
        return self._next == report.round and self._identity == _identity(report.snapshot)

    def add(self, report: RoundReport) -> None:
        self._next = report.round + 1
        for backlog in self._backlog:
            backlog.append(report.record)

    def write(self, snapshot: Snapshot) -> None:
        """Write history, tensors and, last of all, the file that makes them a checkpoint."""
        number, turn = snapshot.round, self._turn
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            sweep(self._folder)
            history = self._extend(turn)
            tensors = to_safetensors(_flat(snapshot))
            found = digest(tensors)
            write_whole(_tensors(self._folder, number, found), tensors)
            content = {
                "format": FORMAT,
                "snapshot": {part.name: getattr(snapshot, part.name) for part in fields(snapshot) if part.name not in APART},
                "clients": list(snapshot.memories),
                "tensors": {"bytes": len(tensors), "blake2b": found},
                "history": {"file": turn, **history},
            }
            write_whole(_record(self._folder, number), _sealed(content))
            _prune(self._folder, self._keep, _tensors(self._folder, number, found))
        except OSError as problem:
            where, whole = f"checkpoint of round {number} in {self._folder}", _finished(self._folder)
            hint = f"room there: the checkpoint of round {whole[0]} is whole" if whole else "another folder"
            raise CheckpointError(complain(where, expected="a disk that can be written to", actual=problem, hint=hint)) from problem
        self._turn = (turn + 1) % self._turns

    def _extend(self, turn: int) -> dict[str, Any]:
        """Bring a history file up to date; its older bytes, which an older checkpoint counts on, stay as they are."""
        path = _history(self._folder, turn)
        (length, hasher), added = self._written[turn], b"".join(map(to_line, self._backlog[turn]))
        if length:
            append(path, length, added)
        else:
            write_whole(path, added)
        hasher.update(added)
        self._written[turn] = (length + len(added), hasher)
        self._backlog[turn].clear()
        return {"bytes": length + len(added), "blake2b": hasher.hexdigest()}


def _read(folder: Path, number: int) -> Snapshot:
    """Read one checkpoint; raise `CheckpointError` unless every byte of it is as it was written."""
    path = _record(folder, number)
    try:
        if not path.exists():
            raise ValueError("no record: writing it was cut short")
        content = _unsealed(path.read_bytes())
        raw = _checked(_tensors(folder, number, content["tensors"]["blake2b"]), content["tensors"])
        lines = _checked(_history(folder, content["history"]["file"]), content["history"], prefix=True)
        state, memories = Tree(), {client: Tree() for client in content["clients"]}
        for name, leaf in from_safetensors(raw).items():
            kind, _, rest = name.partition("/")
            if kind == "state":
                state[rest] = leaf
            else:
                index, _, rest = rest.partition("/")
                memories[content["clients"][int(index)]][rest] = leaf
        if content["snapshot"]["round"] != number:
            raise ValueError(f"one of round {content['snapshot']['round']}")
        history = tuple(map(from_line, lines.splitlines()))
        return Snapshot(**content["snapshot"], state=state, memories=memories, history=history)
    except (OSError, WireError, KeyError, ValueError, TypeError, IndexError, RecursionError) as problem:
        raise CheckpointError(complain(str(path), expected="an undamaged checkpoint", actual=problem, hint="an older one")) from problem


def _check_folder(folder: Path, snapshot: Snapshot) -> None:
    """Raise if a folder has undamaged checkpoints that this run does not go on from; remove damaged ones that are in its way."""
    for number in _numbers(folder):
        try:
            found = _read(folder, number)
        except CheckpointError:
            if number >= snapshot.round:
                _remove(folder, number)
            continue
        if number >= snapshot.round or _identity(found) != _identity(snapshot):
            where, actual = f"checkpoints in {folder}", f"one of {found.algorithm!r}, seed {found.seed}, round {found.round}"
            raise CheckpointError(complain(where, expected="those this run goes on from", actual=actual, hint="resume=load(...), or another folder"))
        return


def _identity(snapshot: Snapshot) -> tuple[str, int, str]:
    return snapshot.algorithm, snapshot.seed, snapshot.run


def _numbers(folder: Path) -> list[int]:
    """Return the rounds of checkpoints, newest first, finished or not."""
    return sorted({int(path.stem[:8]) for path in folder.glob("[0-9]*") if path.stem[:8].isdecimal()}, reverse=True)


def _finished(folder: Path) -> list[int]:
    return [number for number in _numbers(folder) if _record(folder, number).exists()]


def _next_turn(folder: Path) -> int:
    """Return a history file that the newest undamaged checkpoint does not count on."""
    for number in _finished(folder):
        try:
            return int(_unsealed(_record(folder, number).read_bytes())["history"]["file"]) + 1
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return 0


def _prune(folder: Path, keep: int, new: Path) -> None:
    """Remove what is neither one of the last finished checkpoints nor theirs."""
    kept = _finished(folder)[:keep]
    for number in _numbers(folder):
        if number not in kept:
            _remove(folder, number)
    for path in folder.glob(f"{new.name[:8]}-*.safetensors"):
        if path != new:
            path.unlink(missing_ok=True)


def _remove(folder: Path, number: int) -> None:
    # Its record first: what is left by a crash between the two was never finished.
    for path in (_record(folder, number), *folder.glob(f"{number:08d}-*.safetensors")):
        path.unlink(missing_ok=True)


def _record(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.json"


def _tensors(folder: Path, number: int, found: str) -> Path:
    return folder / f"{number:08d}-{bytes.fromhex(found).hex()[:16]}.safetensors"


def _history(folder: Path, turn: int) -> Path:
    return folder / f"history-{int(turn)}.jsonl"


def _flat(snapshot: Snapshot) -> Tree:
    tree = {f"state/{name}": leaf for name, leaf in snapshot.state.items()}
    for index, memory in enumerate(snapshot.memories.values()):
        tree |= {f"memory/{index}/{name}": leaf for name, leaf in memory.items()}
    return tree


def _checked(path: Path, promised: dict[str, Any], *, prefix: bool = False) -> bytes:
    """Read a file, or as much of its beginning as was promised, and compare digests."""
    found = path.read_bytes()
    if prefix:
        found = found[: promised["bytes"]]
    if len(found) != promised["bytes"] or digest(found) != promised["blake2b"]:
        raise ValueError(f"another digest, or length, of {path.name}")
    return found


def _sealed(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, indent=1, default=dict)
    return json.dumps({**json.loads(text), "blake2b": digest(text.encode())}, indent=1).encode()


def _unsealed(raw: bytes) -> dict[str, Any]:
    """Read what `_sealed` wrote, byte for byte."""
    found = json.loads(raw)
    if not isinstance(found, dict):
        raise ValueError("no record")
    content = {name: value for name, value in found.items() if name != "blake2b"}
    if _sealed(content) != raw:
        raise ValueError("another digest of itself")
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}, not {FORMAT}")
    return content
