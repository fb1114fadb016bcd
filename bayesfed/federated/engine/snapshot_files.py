"""The files of a folder of checkpoints: their names, how they are read, and which of them are removed.

Every file is written whole or not at all, has a digest, and is never unpickled::

    00000012-0f5c.safetensors    state and client memories after twelve rounds; the name has a part of their digest
    00000012.json                the rest of the snapshot, and digests; written last, since without it a checkpoint is not finished
    history-0.jsonl              a record per line; several files take turns, so that damage to one leaves another checkpoint whole
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from bayesfed.data.files import digest, write_whole
from bayesfed.errors import CheckpointError, WireError, complain
from bayesfed.federated.clients.serialisation import from_safetensors, to_safetensors
from bayesfed.federated.engine.records import from_line
from bayesfed.federated.engine.reports import Snapshot
from bayesfed.trees import Tree

FORMAT = 1
# Fields of a snapshot that are not written as JSON beside the digests.
APART = ("state", "memories", "history")


def write(folder: Path, snapshot: Snapshot, history: dict[str, Any]) -> Path:
    """Write the tensors of a snapshot and, last of all, the file that makes them a checkpoint. Return the path of the tensors.

    Parameters
    ----------
    folder
        Folder of checkpoints.
    snapshot
        Snapshot to write, without its history.
    history
        Number of the history file, and the length and digest of the part of it that belongs to this checkpoint.
    """
    number, tensors = snapshot.round, to_safetensors(_flat(snapshot))
    tensors_digest = digest(tensors)
    path = _tensors(folder, number, tensors_digest)
    write_whole(path, tensors)
    content = {
        "format": FORMAT,
        "snapshot": {part.name: getattr(snapshot, part.name) for part in fields(snapshot) if part.name not in APART},
        "clients": list(snapshot.memories),
        "tensors": {"bytes": len(tensors), "blake2b": tensors_digest},
        "history": history,
    }
    write_whole(_record(folder, number), _sealed(content))
    return path


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
        raw = _checked(_tensors(folder, number, content["tensors"]["blake2b"]), content["tensors"])
        lines = _checked(history_file(folder, content["history"]["file"]), content["history"], prefix=True)
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


def numbers(folder: Path) -> list[int]:
    """Return the rounds of all checkpoints, newest first, finished or not."""
    return sorted({int(path.stem[:8]) for path in folder.glob("[0-9]*") if path.stem[:8].isdecimal()}, reverse=True)


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


def prune(folder: Path, keep: int, tensors: Path) -> None:
    """Remove all but the last `keep` finished checkpoints, and older tensors of the round whose newest ones are `tensors`."""
    kept = finished(folder)[:keep]
    for number in numbers(folder):
        if number not in kept:
            remove(folder, number)
    for path in folder.glob(f"{tensors.name[:8]}-*.safetensors"):
        if path != tensors:
            path.unlink(missing_ok=True)


def remove(folder: Path, number: int) -> None:
    """Remove the checkpoint of a round."""
    # The record first, so that a crash between the two leaves an unfinished checkpoint.
    for path in (_record(folder, number), *folder.glob(f"{number:08d}-*.safetensors")):
        path.unlink(missing_ok=True)


def history_file(folder: Path, turn: int) -> Path:
    """Return the path of a history file."""
    return folder / f"history-{int(turn)}.jsonl"


def _record(folder: Path, number: int) -> Path:
    return folder / f"{number:08d}.json"


def _tensors(folder: Path, number: int, tensors_digest: str) -> Path:
    return folder / f"{number:08d}-{bytes.fromhex(tensors_digest).hex()[:16]}.safetensors"


def _flat(snapshot: Snapshot) -> Tree:
    tree = {f"state/{name}": leaf for name, leaf in snapshot.state.items()}
    for index, memory in enumerate(snapshot.memories.values()):
        tree |= {f"memory/{index}/{name}": leaf for name, leaf in memory.items()}
    return tree


def _checked(path: Path, promised: dict[str, Any], *, prefix: bool = False) -> bytes:
    """Return a file, or as much of its beginning as was promised, after comparing length and digest."""
    content = path.read_bytes()
    if prefix:
        content = content[: promised["bytes"]]
    if len(content) != promised["bytes"] or digest(content) != promised["blake2b"]:
        raise ValueError(f"another digest, or length, of {path.name}")
    return content


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
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}, not {FORMAT}")
    return content
