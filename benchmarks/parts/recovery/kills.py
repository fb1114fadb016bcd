"""Runs that are killed and resumed, for `recovery.py`."""

from __future__ import annotations

import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

import bayesfed as bf
from bayesfed.errors import CheckpointWarning
from bayesfed.federated import checkpoint, newest
from bayesfed.federated.engine.files.records import to_line
from bayesfed.running.result import Result
from tests.support.records import untimed

ROUNDS, CLIENTS = 8, 4
WRITES = ("open", "write", "fsync", "replace", "ftruncate")
KINDS = ("at a call", "at a call", "in a write", "with workers")


def kills(folder: Path, number: int) -> dict[str, list[int]]:
    """Return how many runs of each kind were killed and resumed, and how many of them ended in the
    same bits.
    """
    train, _ = bf.digits()
    clients = bf.federate(train, bf.iid(len(train), CLIENTS, bf.Key(0, "partition")))
    # STC's clients keep what their messages left out.
    algorithm = bf.stc(
        bf.mlp([64, 16, 10], bf.Key(0, "net")),
        share=0.05,
        training=bf.Training(steps=3, batch_size=16),
    )

    def run(here: Path, workers: int = 0) -> None:
        """Start or go on, and leave a digest of all there is at the end."""
        with bf.InProcess(clients, workers=workers) as pool, warnings.catch_warnings():
            # Tensors whose record was not written yet: said each time, and as it should be.
            warnings.simplefilter("ignore", CheckpointWarning)
            result = bf.run(
                algorithm,
                pool,
                rounds=ROUNDS,
                progress=False,
                callbacks=[checkpoint(here)],
                resume=newest(here),
            )
        here.with_suffix(".digest").write_text(digest(result))

    folder.mkdir()
    # What is imported and set up at first use is no part of the instants to come.
    run(folder / "warm")
    calls, writes, start = Counter(), Writes(), time.perf_counter()
    with calls, writes:
        run(folder / "whole")
    seconds, wanted = time.perf_counter() - start, (folder / "whole.digest").read_text()
    counts = {kind: [0, 0] for kind in dict.fromkeys(KINDS)}
    for trial in tqdm(range(number), desc="kills"):
        random, kind, here = (
            bf.Key(trial, "kill").numpy(),
            KINDS[trial % len(KINDS)],
            folder / str(trial),
        )
        if kind == "with workers":
            status = forked(
                lambda here=here: run(here, 2),  # type: ignore[misc]
                after=float(random.uniform(0.02, 1)) * seconds,
            )
        else:
            at = int(random.integers(calls.count if kind == "at a call" else writes.count))
            killer = Counter(at) if kind == "at a call" else Writes(at)
            status = forked(lambda here=here, killer=killer: killed_by(killer, run, here))  # type: ignore[misc]
        if status != -signal.SIGKILL and kind != "with workers":
            continue
        ended = forked(lambda here=here: run(here))  # type: ignore[misc]
        counts[kind][0] += 1
        counts[kind][1] += ended == 0 and here.with_suffix(".digest").read_text() == wanted
    return counts


def digest(result: Result) -> str:
    """Return one digest of parameters, client memories, versions and history."""
    found = blake2b()
    trees = {
        "state": result.snapshot.state,
        **{f"memory {name}": tree for name, tree in result.snapshot.memories.items()},
    }
    for owner, tree in trees.items():
        for name, leaf in tree.items():
            found.update(f"{owner} {name} {leaf.dtype} {tuple(leaf.shape)}".encode())
            found.update(
                leaf.contiguous().view(torch.uint8).numpy().tobytes()
                if leaf.dim()
                else str(leaf.item()).encode()
            )
    found.update(repr((sorted(result.snapshot.versions.items()), result.snapshot.round)).encode())
    for record in result.history:
        found.update(to_line(untimed(record)))
    return found.hexdigest()


def forked(work: Callable[[], None], after: float | None = None) -> int:
    """Run in a child and return its exit code, killed after so many seconds if any; no process of
    its group stays.
    """
    child = os.fork()
    if not child:
        os.setpgid(0, 0)
        try:
            work()
            os._exit(0)
        except BaseException as problem:
            print(f"{type(problem).__name__}: {problem}", file=sys.stderr)
            os._exit(1)
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    patience = time.monotonic() + 60.0
    while orphans(child):
        if time.monotonic() > patience:
            raise RuntimeError(f"workers outlived their server: {orphans(child)}")
        time.sleep(0.01)
    return code


def orphans(group: int) -> list[int]:
    """Return the living processes of a group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its = path.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its) == group and state != "Z":
            found.append(int(path.parent.name))
    return found


def killed_by(killer: Counter | Writes, run: Callable[[Path], None], here: Path) -> None:
    with killer:
        run(here)


class Counter:
    """Counts Python's and C's calls inside a block, and kills the process at one of them."""

    def __init__(self, at: int = -1) -> None:
        self.count, self.at = 0, at

    def __enter__(self) -> None:
        sys.setprofile(self._called)

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            if self.count == self.at:
                os.kill(os.getpid(), signal.SIGKILL)
            self.count += 1


class Writes:
    """Counts the calls that write files, and kills the process at one of them: half of the bytes
    have gone out.
    """

    def __init__(self, at: int = -1) -> None:
        self.count, self.at = 0, at

    def __enter__(self) -> None:
        self._real = {name: getattr(os, name) for name in WRITES}
        for name, real in self._real.items():
            setattr(
                os,
                name,
                lambda *arguments, name=name, real=real: self._called(name, real, *arguments),
            )

    def __exit__(self, *error: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def _called(self, name: str, real: Callable[..., Any], *arguments: Any) -> Any:
        if self.count == self.at:
            if name == "write":
                real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return real(*arguments)
