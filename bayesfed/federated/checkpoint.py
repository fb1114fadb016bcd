"""Checkpoints: a snapshot as one file, written whole or not at all, digested, never unpickled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from bayesfed.compress.wire import pack, unpack
from bayesfed.errors import ArgumentError, CheckpointError, WireError, complain
from bayesfed.federated.engine import RoundReport, Snapshot
from bayesfed.trees import Tree


def save(path: str | Path, snapshot: Snapshot) -> None:
    """Write a snapshot; a crash half way leaves the file that was there before."""
    path = Path(path)
    tree = {f"state/{name}": leaf for name, leaf in snapshot.state.items()}
    for client, memory in snapshot.memories.items():
        tree |= {f"memory/{json.dumps(client)}/{name}": leaf for name, leaf in memory.items()}
    meta: dict[str, str | int] = {
        "algorithm": snapshot.algorithm,
        "seed": snapshot.seed,
        "round": snapshot.round,
        "versions": json.dumps(dict(snapshot.versions)),
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(partial, "wb") as file:
            file.write(pack(tree, meta))
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | Path) -> Snapshot:
    """Read a snapshot back.

    Raises
    ------
    CheckpointError
        If the file is missing, damaged or not a checkpoint.
    """
    try:
        tree, meta = unpack(Path(path).read_bytes())
        state, memories = {}, dict[str, Tree]()
        for name, leaf in tree.items():
            kind, _, rest = name.partition("/")
            if kind == "state":
                state[rest] = leaf
            else:
                client, end = json.JSONDecoder().raw_decode(rest)
                memories.setdefault(client, {})[rest[end + 1 :]] = leaf
        return Snapshot(meta["algorithm"], meta["seed"], meta["round"], state, json.loads(meta["versions"]), memories)
    except (OSError, WireError, KeyError, ValueError) as problem:
        raise CheckpointError(complain(str(path), expected="a checkpoint", actual=problem, hint="an older one")) from problem


def checkpoint(path: str | Path, *, every: int = 1) -> Callable[[RoundReport], None]:
    """Return a callback that saves every `every` rounds."""
    if every < 1:
        raise ArgumentError(complain("checkpoint", expected="every >= 1", actual=every, hint="10"))

    def callback(report: RoundReport) -> None:
        if report.snapshot.round % every == 0:
            save(path, report.snapshot)

    return callback
