"""What runs in a worker process: hold the site, answer the tasks of one client after another until
the server goes.

Tasks reach a worker pickled. Nothing that it sends back is unpickled by the server: figures are
JSON, tensors safetensors, payloads bytes.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, Self

import torch

from bayesfed.data import Dataset
from bayesfed.errors import public_text
from bayesfed.federated.clients.serialisation import from_safetensors, to_safetensors
from bayesfed.federated.clients.side import Sides
from bayesfed.federated.clients.turn import Outcome, Reply, Task, Turn, answered, reason_of
from bayesfed.trees import Tree

READY = b"ready"


class Site(NamedTuple):
    """What a worker process holds from its start."""

    sides: Sides
    data: Mapping[str, Dataset]
    secrets: Mapping[str, bytes]

    def turn(self, task: Task, memory: Tree) -> Turn:
        """Return the turn of the client of a task."""
        return Turn(task, self.data, memory, self.secrets.get(task.client))


class Settings(NamedTuple):
    """The global settings of torch that change results. A forked process has them; a spawned one
    starts with torch's defaults.
    """

    dtype: torch.dtype
    matmul_precision: str
    deterministic: bool
    warn_only: bool

    @classmethod
    def current(cls) -> Self:
        """Return the settings of this process."""
        return cls(
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )

    def apply(self) -> None:
        """Make them those of this process."""
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.matmul_precision)
        # Setting this one imports torch's compiler, which takes seconds.
        if self.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=self.warn_only)


def serve(server: Connection, site: Site | None) -> None:
    """Answer tasks until the server goes.

    Parameters
    ----------
    server
        This process's end of the pipe.
    site
        None in a process that was not forked: the site is then the first message, and is answered
        by `READY` or by what is wrong.
    """
    # An interrupt is for the server, which stops its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A worker whose client hangs does not notice a closed pipe, so a thread of its own waits for
    # the server's end.
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, ConnectionError):
        if site := site or _received_site(server):
            while True:
                _answer_one(server, site)


def frames(outcome: Outcome) -> tuple[bytes, ...]:
    """Return what is sent of an answer: its figures, and if it is a reply, the client's new memory
    and the payload.
    """
    if isinstance(outcome, Reply):
        figures = json.dumps({"info": outcome.info, "seconds": outcome.seconds}, default=float)
        return figures.encode(), to_safetensors(outcome.memory), outcome.packed
    return _failure(outcome.stage, outcome.reason, outcome.field, outcome.public)


def _failure(stage: str, reason: str, field: str = "", public: str = "") -> tuple[bytes, ...]:
    said = {"stage": stage, "reason": reason, "field": field, "public": public}
    return (json.dumps(said).encode(),)


def receive_outcome(door: Connection, task: Task) -> Outcome:
    """Receive the answer to a task; EOFError or OSError if the worker is gone."""
    figures = json.loads(door.recv_bytes())
    if "stage" in figures:
        return task.error(**figures)
    memory = from_safetensors(door.recv_bytes())
    return Reply(door.recv_bytes(), memory, figures["info"], figures["seconds"])


def _received_site(server: Connection) -> Site | None:
    content = server.recv_bytes()
    try:
        received: tuple[Settings, Site] = pickle.loads(content)
    except Exception as problem:
        server.send_bytes(reason_of(problem).encode())
        return None
    settings, site = received
    settings.apply()
    server.send_bytes(READY)
    return site


def _answer_one(server: Connection, site: Site) -> None:
    content, memory = server.recv_bytes(), server.recv_bytes()
    try:
        task: Task = pickle.loads(content)
        sent = frames(answered(site.sides, site.turn(task, from_safetensors(memory))))
    except Exception as problem:
        # The server knows the client and the round, even of a task that could not be read here.
        sent = _failure("reply", reason_of(problem), public=public_text(problem))
    for frame in sent:
        server.send_bytes(frame)


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
