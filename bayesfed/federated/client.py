"""One client's turn: decode the message, run the local step, pack the payload. A pure function.

The same function runs in the server's process, in a worker or on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from bayesfed.compress.codecs import Codec
from bayesfed.compress.feedback import ErrorFeedback
from bayesfed.data.dataset import Dataset
from bayesfed.errors import BayesfedError, ClientError
from bayesfed.federated.protocols import Info, Link, Local
from bayesfed.keys import Key
from bayesfed.trees import Tree, to


@dataclass(frozen=True)
class Task:
    """What one client is asked: the message and how to read and answer it."""

    client: str
    round: int
    phase: str
    seed: int
    message: bytes
    down: Codec
    up: Codec
    link: Link

    @property
    def key(self) -> Key:
        """The stream of this client, round and phase; both ends can rebuild it."""
        return Key(self.seed, self.phase, self.round, self.client)


@dataclass(frozen=True)
class Reply:
    """What comes back: packed payload, the memory to keep if it is accepted, figures, seconds."""

    packed: bytes
    memory: Tree
    info: Info
    seconds: float


Outcome = Reply | ClientError


def answer(task: Task, local: Local, data: Dataset, memories: Tree) -> Outcome:
    """Run one client; a failure comes back as a `ClientError` that names the stage, never as a raise."""
    start, stage = time.perf_counter(), "decode"
    try:
        message, meta = task.down.decode(task.message, task.key.child("down"))
        stage = "fit"
        with one_thread():
            fit = local.fit(to(message, data.inputs.device), memories, data, task.key.child("fit"), meta)
        stage, payload, memory = "encode", fit.payload, fit.memory
        meta = {"client": task.client, "round": task.round, "phase": task.phase}
        key = task.key.child("up")
        if isinstance(task.up, ErrorFeedback):
            payload = task.up.corrected(payload, memories)
        packed = task.link.pack(payload, task.up, meta, key)
        if isinstance(task.up, ErrorFeedback):
            memory = memory | task.up.residual(payload, packed, key)
    except BayesfedError as problem:
        return ClientError(task.client, task.round, stage, str(problem))
    except Exception as problem:
        # Whatever a user's network, likelihood or local step raises belongs to this client alone.
        return ClientError(task.client, task.round, stage, f"{type(problem).__name__}: {problem}")
    return Reply(packed, to(memory, "cpu"), fit.info, time.perf_counter() - start)


@contextmanager
def one_thread() -> Iterator[None]:
    """Pin one intra-op thread: BLAS sums differ in their last bits between thread counts."""
    before = torch.get_num_threads()
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)
