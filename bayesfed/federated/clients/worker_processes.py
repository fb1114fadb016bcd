"""Worker processes: forked, one client at a time; one that dies or hangs is replaced, and costs nobody but its own client.

Nothing that comes back from a worker is unpickled: figures are JSON, tensors safetensors.
"""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import NamedTuple

import torch

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, ClientError, complain
from bayesfed.federated.clients.serialisation import from_safetensors, to_safetensors
from bayesfed.federated.clients.turn import Outcome, Reply, Task, answer
from bayesfed.federated.core.protocols import Local
from bayesfed.trees import Tree

LENGTHS = struct.Struct("<QQQ")


class Site(NamedTuple):
    """What a worker process holds from the moment it is forked."""

    locals: Mapping[str, Local]
    data: Mapping[str, Dataset]
    secrets: Mapping[str, bytes]


@dataclass
class _Job:
    task: Task
    frames: tuple[bytes, ...] = ()
    tried: bool = False
    outcome: Outcome | None = None


class _Worker:
    """One process, the socket to it, and the job it is at."""

    def __init__(self, site: Site, others: list[socket.socket]) -> None:
        self.socket, theirs = socket.socketpair()
        # Forked, not spawned: networks, priors and data sets reach the worker without pickling.
        context = multiprocessing.get_context("fork")
        self.process = context.Process(target=_serve, args=(theirs, [self.socket, *others], site), daemon=True)
        self.process.start()
        theirs.close()
        self.job: _Job | None = None
        self.until = math.inf
        self.heard = bytearray()

    def send(self, frames: tuple[bytes, ...], deadline_s: float) -> None:
        """Hand over a job; raises OSError if the process is gone or does not listen."""
        self.until = time.monotonic() + deadline_s
        self.socket.settimeout(deadline_s if math.isfinite(deadline_s) else None)
        _send(self.socket, frames)
        self.socket.setblocking(False)

    def hear(self) -> tuple[bytes, ...] | None:
        """Take what has come; return the answer once it is whole. Raises EOFError if the process is gone."""
        try:
            while chunk := self.socket.recv(1 << 20):
                self.heard += chunk
                if len(self.heard) >= LENGTHS.size and len(self.heard) == LENGTHS.size + sum(lengths := LENGTHS.unpack_from(self.heard)):
                    frames, self.heard = _cut(bytes(memoryview(self.heard)[LENGTHS.size :]), lengths), bytearray()
                    return frames
        except BlockingIOError:
            if self.process.is_alive():
                return None
        except OSError as problem:
            raise EOFError from problem
        raise EOFError

    def stop(self) -> str:
        """Kill the process, wait until it is gone, and say how it ended."""
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        self.socket.close()
        return f"exit code {code}" if code >= 0 else f"signal {-code}; out of memory?"


class Workers:
    """So many worker processes of one site.

    Parameters
    ----------
    deadline_s
        Seconds a worker may take for one client before it is killed.
    """

    def __init__(self, count: int, site: Site, deadline_s: float = math.inf) -> None:
        self.site, self._count, self._deadline_s = site, count, deadline_s
        self._workers: list[_Worker] = []
        self._finalizer = weakref.finalize(self, _stop_all, self._workers, os.getpid())

    def map(self, tasks: Iterable[Task], memory: Callable[[str], Tree]) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks in their order, at most two a worker ahead; `memory` returns that of a client."""
        # Those still at work are at the tasks of a round that was given up.
        for left in [worker for worker in self._workers if worker.job]:
            self._remove(left)
        source, waiting, queued = iter(tasks), deque[_Job](), deque[_Job]()
        more = True
        while more or waiting:
            while more and len(waiting) <= 2 * self._count:
                task = next(source, None)
                if more := task is not None:
                    waiting.append(_Job(task))
                    queued.append(waiting[-1])
            while queued and (worker := self._idle()):
                job = queued.popleft()
                job.frames = (_pickled(job.task), to_safetensors(memory(job.task.client)), b"")
                self._start(worker, job)
            if waiting and (outcome := waiting[0].outcome) is not None:
                yield waiting.popleft().task, outcome
            elif waiting:
                self._listen()

    def close(self) -> None:
        """Stop all processes and wait until they are gone."""
        self._finalizer()

    def _idle(self) -> _Worker | None:
        if found := next((worker for worker in self._workers if not worker.job), None):
            return found
        if len(self._workers) < self._count:
            return self._hire()
        return None

    def _hire(self) -> _Worker:
        self._workers.append(_Worker(self.site, [worker.socket for worker in self._workers]))
        return self._workers[-1]

    def _start(self, worker: _Worker, job: _Job) -> None:
        worker.job = job
        try:
            worker.send(job.frames, self._deadline_s)
        except OSError:
            self._died(worker, job)

    def _died(self, worker: _Worker, job: _Job) -> None:
        """Try a client once more: it may have been another's fault (memory), and a second time it was this one's."""
        how = self._remove(worker)
        if not job.tried:
            job.tried = True
            self._start(self._hire(), job)
            return
        reason = f"its worker process died, and so did a fresh one ({how}); try workers=0 to see why"
        job.outcome = ClientError(job.task.client, job.task.round, "worker", reason)

    def _listen(self) -> None:
        """Wait for an answer, a death or a deadline, and enter what came."""
        busy = [worker for worker in self._workers if worker.job]
        until = min(worker.until for worker in busy)
        doors = {door: worker for worker in busy for door in (worker.socket, worker.process.sentinel)}
        ready = wait(doors, None if math.isinf(until) else max(0.0, until - time.monotonic()))
        called = [worker for worker in busy if worker.socket in ready or worker.process.sentinel in ready]
        for worker in busy:
            job = worker.job
            if not job:
                continue
            try:
                if worker in called and (frames := worker.hear()):
                    job.outcome, worker.job = _outcome(job.task, frames), None
                elif time.monotonic() >= worker.until:
                    task = job.task
                    self._remove(worker)
                    job.outcome = ClientError(
                        task.client, task.round, "deadline", f"no answer within {self._deadline_s:g} s; its worker process was stopped"
                    )
            except EOFError:
                self._died(worker, job)

    def _remove(self, worker: _Worker) -> str:
        self._workers.remove(worker)
        return worker.stop()


def _stop_all(workers: list[_Worker], owner: int) -> None:
    # A forked child has this object too, but not these children.
    if os.getpid() == owner:
        while workers:
            workers.pop().stop()


def _serve(server: socket.socket, inherited: list[socket.socket], site: Site) -> None:
    """Answer until the server goes."""
    for other in inherited:
        other.close()
    # An interrupt is for the server, which stops its workers; without one, a hanging worker would outlive it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    torch.set_num_threads(1)
    with contextlib.suppress(ConnectionError):
        _answer_all(server, site)


def _answer_all(server: socket.socket, site: Site) -> None:
    while frames := _receive(server):
        task: Task = pickle.loads(frames[0])
        try:
            memory, secret = from_safetensors(frames[1]), site.secrets.get(task.client)
            sent = _frames(answer(task, site.locals[task.phase], site.data[task.client], memory, secret))
        except Exception as problem:
            sent = _frames(ClientError(task.client, task.round, "reply", f"{type(problem).__name__}: {problem}"))
        _send(server, sent)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _pickled(task: Task) -> bytes:
    try:
        return pickle.dumps(task)
    except Exception as problem:
        raise ArgumentError(
            complain("InProcess", expected="codecs and links that reach a process", actual=problem, hint="kind='thread', or workers=0")
        ) from problem


def _frames(outcome: Outcome) -> tuple[bytes, ...]:
    if isinstance(outcome, Reply):
        figures = {"info": outcome.info, "seconds": outcome.seconds}
        return json.dumps(figures, default=float).encode(), to_safetensors(outcome.memory), outcome.packed
    return json.dumps({"stage": outcome.stage, "reason": outcome.reason, "field": outcome.field}).encode(), b"", b""


def _outcome(task: Task, frames: tuple[bytes, ...]) -> Outcome:
    figures = json.loads(frames[0])
    if "stage" in figures:
        return ClientError(task.client, task.round, figures["stage"], figures["reason"], figures["field"])
    return Reply(frames[2], from_safetensors(frames[1]), figures["info"], figures["seconds"])


def _send(door: socket.socket, frames: tuple[bytes, ...]) -> None:
    door.sendall(b"".join([LENGTHS.pack(*map(len, frames)), *frames]))


def _receive(door: socket.socket) -> tuple[bytes, ...] | None:
    head = _exactly(door, LENGTHS.size)
    if not head:
        return None
    lengths = LENGTHS.unpack(head)
    return _cut(_exactly(door, sum(lengths)), lengths)


def _exactly(door: socket.socket, length: int) -> bytes:
    """Return so many bytes; none at all if the other end is gone."""
    found = bytearray()
    while len(found) < length:
        if not (chunk := door.recv(min(length - len(found), 1 << 20))):
            return b""
        found += chunk
    return bytes(found)


def _cut(content: bytes, lengths: tuple[int, ...]) -> tuple[bytes, ...]:
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return tuple(content[end - length : end] for end, length in zip(ends, lengths, strict=True))
