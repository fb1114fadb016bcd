"""The files of a folder of checkpoints: their names, how they are read, and which of them are
removed.

Every file is written whole or not at all, has a digest, and is never unpickled::

    00000012-0f5c.safetensors    state and client memories after twelve rounds; the name has a part
                                 of their digest
    00000012-1b2a.memories       client memories if some of them are on disk, copied one by one
    00000012.json                the rest of the snapshot, and digests; written last, since without
                                 it a checkpoint is not finished
    history-0.jsonl              a record per line; several files take turns, so that damage to one
                                 leaves another checkpoint whole
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bayesfed.data.files import digest, digest_of_file, write_whole
from bayesfed.errors import BayesfedError, CheckpointError
from bayesfed.federated.clients import Numbers, from_safetensors, to_safetensors
from bayesfed.federated.clients.memory.table import StoredMemories
from bayesfed.federated.core import of
from bayesfed.federated.engine.files.records import RecordFile
from bayesfed.federated.engine.reports import Snapshot
from bayesfed.trees import Tree

# Formats 1 and 2 are those of 0.2, whose leaves have no owners; in 1 to 3 the versions may be JSON.
FORMAT = 4
# Longest history in bytes that is read as a whole.
SHORT = 1 << 24
# Fields of a snapshot that are not written as JSON beside the digests.
APART = ("state", "versions", "memories", "history", "in_flight", "owned")


def write(folder: Path, snapshot: Snapshot, history: dict[str, Any]) -> set[Path]:
    """Write the tensors of a snapshot and, last of all, the file that makes them a checkpoint.
    Return the paths of the tensors.

    Parameters
    ----------
    folder
        Folder of checkpoints.
    snapshot
        Snapshot to write, without its history.
    history
        Number of the history file, and the length and digest of the part of it that belongs to this
        checkpoint.
    """
    number, memories = snapshot.round, snapshot.memories
    stored = isinstance(memories, StoredMemories)
    tensors = to_safetensors(_flat(snapshot))
    tensors_digest = digest(tensors)
    path = _file(folder, number, tensors_digest, "safetensors")
    # Memories of clients are among them.
    write_whole(path, tensors, private=True)
    content: dict[str, Any] = {
        "format": FORMAT,
        "snapshot": {
            part.name: getattr(snapshot, part.name)
            for part in fields(snapshot)
            if part.name not in APART
        },
        "clients": [] if stored else list(memories),
        "tensors": {"bytes": len(tensors), "blake2b": tensors_digest},
        "history": history,
    }
    paths = {path}
    if isinstance(memories, StoredMemories):
        # The name has a part of a digest that is known once the file is written.
        unnamed = folder / f"{number:08d}-unnamed.memories"
        write_whole(unnamed, memories.entries(), private=True)
        length, found = digest_of_file(unnamed)
        paths.add(unnamed.replace(_file(folder, number, found, "memories")))
        content["memories"] = {"bytes": length, "blake2b": found}
    write_whole(_record(folder, number), _sealed(content), private=True)
    return paths


def read(folder: Path, number: int) -> Snapshot:
    """Return the snapshot of one checkpoint.

    Raises
    ------
    CheckpointError
        Unless every byte of the checkpoint is as it was written.
    """
    path = _record(folder, number)
    try:
        if not path.exists():
            raise ValueError("no record: writing it was cut short")
        content = _unsealed(path.read_bytes())
        tensors, kept, past = content["tensors"], content.get("memories"), content["history"]
        path_of = partial(_file, folder, number)
        raw = _checked(path_of(tensors["blake2b"], "safetensors"), tensors).read_bytes()
        path_of_history = history_file(folder, past["file"])
        history = RecordFile(_checked(path_of_history, past, prefix=True), past["bytes"])
        parts = {kind: Tree() for kind in ("state", "versions", "flight", "memory")}
        for name, leaf in from_safetensors(raw).items():
            kind, _, rest = name.partition("/")
            parts[kind][rest] = leaf
        memories = {client: Tree() for client in content["clients"]}
        for name, leaf in parts["memory"].items():
            index, _, rest = name.partition("/")
            memories[content["clients"][int(index)]][rest] = leaf
        if content["snapshot"]["round"] != number:
            raise ValueError(f"one of round {content['snapshot']['round']}")
        given = content["snapshot"]
        if parts["versions"]:
            given["versions"] = _versions_of(parts["versions"])
        known: Mapping[str, Tree] = memories
        if kept:
            known = StoredMemories.of(_checked(path_of(kept["blake2b"], "memories"), kept))
        return Snapshot(
            **given,
            state=parts["state"],
            memories=known,
            history=tuple(history) if past["bytes"] <= SHORT else history,
            in_flight=parts["flight"],
            owned=content["format"] > 2,
        )
    except (OSError, BayesfedError, LookupError, ValueError, TypeError, RecursionError) as problem:
        raise CheckpointError(
            str(path), "an undamaged checkpoint", problem, "an older one"
        ) from problem


def numbers(folder: Path) -> list[int]:
    """Return the rounds of all checkpoints, newest first, finished or not."""
    return sorted(
        {int(path.stem[:8]) for path in folder.glob("[0-9]*") if path.stem[:8].isdecimal()},
        reverse=True,
    )


def finished(folder: Path) -> list[int]:
    """Return the rounds of finished checkpoints, newest first."""
    return [number for number in numbers(folder) if _record(folder, number).exists()]


def next_turn(folder: Path) -> int:
    """Return the number of a history file that the newest undamaged checkpoint does not need."""
    for number in finished(folder):
        try:
            return int(_unsealed(_record(folder, number).read_bytes())["history"]["file"]) + 1
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return 0


def prune(folder: Path, keep: int, newest: set[Path]) -> None:
    """Remove all but the last `keep` finished checkpoints, and older tensors of the round whose
    newest ones are in the files `newest`.
    """
    kept = finished(folder)[:keep]
    for number in numbers(folder):
        if number not in kept:
            remove(folder, number)
    for path in folder.glob(f"{next(iter(newest)).name[:8]}-*"):
        if path not in newest:
            path.unlink(missing_ok=True)


def remove(folder: Path, number: int) -> None:
    """Remove the checkpoint of a round."""
    # The record first, so that a crash between the two leaves an unfinished checkpoint.
    for path in (_record(folder, number), *folder.glob(f"{number:08d}-*")):
        path.unlink(missing_ok=True)


def history_file(folder: Path, turn: int) -> Path:
    """Return the path of a history file."""
    return folder / f"history-{int(turn)}.jsonl"


def _record(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.json"


def _file(folder: Path, number: int, found: str, suffix: str) -> Path:
    """Return the path of a file with a part of its digest in its name."""
    return folder / f"{number:08d}-{bytes.fromhex(found).hex()[:16]}.{suffix}"


def _versions_of(leaves: Tree) -> Numbers:
    names: list[str] = json.loads(leaves["names"].numpy().tobytes())
    if names != sorted(names):
        raise ValueError("versions that are not in the order of their names")
    return Numbers(names, leaves["rounds"].numpy())


def _flat(snapshot: Snapshot) -> Tree:
    tree = of("state", snapshot.state) | of("flight", snapshot.in_flight)
    # The names as JSON, and the rounds.
    names = sorted(snapshot.versions)
    text = bytearray(json.dumps(names).encode())
    tree["versions/names"] = torch.frombuffer(text, dtype=torch.uint8)
    rounds = (snapshot.versions[name] for name in names)
    tree["versions/rounds"] = torch.from_numpy(np.fromiter(rounds, np.int32, len(names)))
    if isinstance(snapshot.memories, StoredMemories):
        return tree
    for index, memory in enumerate(snapshot.memories.values()):
        tree |= of(f"memory/{index}", memory)
    return tree


def _checked(path: Path, promised: dict[str, Any], *, prefix: bool = False) -> Path:
    """Return the path of a file after comparing length and digest, of the file or of as much of its
    beginning as was promised.
    """
    length, found = promised["bytes"], promised["blake2b"]
    if digest_of_file(path, length if prefix else None) != (length, found):
        raise ValueError(f"another digest, or length, of {path.name}")
    return path


def _sealed(content: dict[str, Any]) -> bytes:
    """Return a record as JSON with a digest of itself."""
    text = json.dumps(content, indent=1, default=dict)
    return json.dumps({**json.loads(text), "blake2b": digest(text.encode())}, indent=1).encode()


def _unsealed(raw: bytes) -> dict[str, Any]:
    """Return the record that `_sealed` wrote, after comparing every byte."""
    record = json.loads(raw)
    if not isinstance(record, dict):
        raise ValueError("no record")
    content = {name: value for name, value in record.items() if name != "blake2b"}
    if _sealed(content) != raw:
        raise ValueError("another digest of itself")
    if content["format"] not in range(1, FORMAT + 1):
        raise ValueError(f"format {content['format']}, not one of 1 to {FORMAT}")
    return content
