"""Worker processes: each answers for one client at a time; one that dies or hangs is replaced, and
costs nobody but its own client.

The server unpickles nothing that comes back (`bayesfed.federated.clients.worker_loop`).
"""

from __future__ import annotations

import math
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing.connection import wait

from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated.clients.serialisation import to_safetensors
from bayesfed.federated.clients.turn import Outcome, Task
from bayesfed.federated.clients.worker import Job, Launcher, StartMethod, Worker, stop_all
from bayesfed.federated.clients.worker_loop import Site
from bayesfed.trees import Tree


class Workers:
    """Worker processes of one site.

    Parameters
    ----------
    count
        Number of processes. No more are started than there are clients.
    site
        What every worker holds. Forked processes inherit it; others receive it once, when they
        start.
    deadline_s
        Seconds a worker may take for one client before it is killed.
    start
        Start method of `multiprocessing`.
    """

    def __init__(
        self, count: int, site: Site, deadline_s: float = math.inf, start: StartMethod = "fork"
    ) -> None:
        self.site, self._deadline_s, self._count = site, deadline_s, min(count, len(site.data))
        self._launcher = Launcher(site, start)
        self._workers: list[Worker] = []
        self._finalizer = weakref.finalize(self, stop_all, self._workers, os.getpid())

    def map(
        self, tasks: Iterable[Task], memory: Callable[[str], Tree]
    ) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks in their order, at most two a worker ahead; `memory` returns that of a
        client.
        """
        # Workers that are still busy are at tasks of a round that was given up.
        for worker in [worker for worker in self._workers if worker.job]:
            self._remove(worker)
        source, waiting, queued = iter(tasks), deque[Job](), deque[Job]()
        more = True
        while more or waiting:
            while more and len(waiting) <= 2 * self._count:
                task = next(source, None)
                if more := task is not None:
                    waiting.append(Job(task))
                    queued.append(waiting[-1])
            while queued and (idle := self._idle()):
                job = queued.popleft()
                job.frames = (
                    self._launcher.pickled(job.task, "codecs and links that reach a process"),
                    to_safetensors(memory(job.task.client)),
                )
                self._begin(idle, job)
            if waiting and (outcome := waiting[0].outcome) is not None:
                yield waiting.popleft().task, outcome
            elif waiting:
                self._listen()

    def close(self) -> None:
        """Stop all processes and wait until they are gone."""
        self._finalizer()

    def _idle(self) -> Worker | None:
        if len(self._workers) < self._count:
            self._hire(self._count - len(self._workers))
        return next((worker for worker in self._workers if not worker.job), None)

    def _hire(self, count: int) -> list[Worker]:
        fresh = self._launcher.launch(count)
        self._workers += fresh
        return fresh

    def _begin(self, worker: Worker, job: Job) -> None:
        try:
            worker.give(job, self._deadline_s)
        except OSError:
            self._lost(worker, job)

    def _lost(self, worker: Worker, job: Job) -> None:
        """Replace a worker that is past its deadline or gone, and try the client of the latter once
        more.

        The first death may have been another client's fault (memory); the second was this one's.
        """
        task, how = job.task, self._remove(worker)
        if worker.late:
            job.outcome = ClientError(
                task.client,
                task.round,
                "deadline",
                f"no answer within {self._deadline_s:g} s; its worker process was stopped",
            )
            return
        if not job.tried:
            job.tried = True
            # Where no fresh worker can be had, the client is named, and the next one finds out
            # whether that lasts.
            with suppress(ArgumentError):
                self._begin(self._hire(1)[0], job)
                return
        reason = (
            f"its worker process died, and so did a fresh one ({how}); try workers=0 to see why"
        )
        job.outcome = ClientError(task.client, task.round, "worker", reason)

    def _listen(self) -> None:
        """Wait for an answer, a death or a deadline, and enter what came."""
        busy = {worker: worker.job for worker in self._workers if worker.job}
        until = min(worker.until for worker in busy)
        wait(
            [door for worker in busy for door in (worker.pipe, worker.process.sentinel)],
            None if math.isinf(until) else max(0.0, until - time.monotonic()),
        )
        for worker, job in busy.items():
            if worker.calls():
                try:
                    job.outcome, worker.job = worker.take(job.task), None
                except (EOFError, OSError):
                    self._lost(worker, job)
            elif time.monotonic() >= worker.until:
                worker.late = True
                self._lost(worker, job)

    def _remove(self, worker: Worker) -> str:
        self._workers.remove(worker)
        return worker.stop()
