"""Workers of a site: processes, each of which answers for one client at a time, or threads, for
local steps that draw from no global generator. A process that dies or hangs is replaced, and costs
nobody but its own client.

The server unpickles nothing that comes back (`bayesfed.federated.clients.worker_loop`).
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path

import torch

from bayesfed.errors import ArgumentError
from bayesfed.federated.clients.serialisation import to_safetensors
from bayesfed.federated.clients.turn import Outcome, Reply, Task, answered
from bayesfed.federated.clients.worker import Job, Launcher, StartMethod, Worker, stop_all
from bayesfed.federated.clients.worker_loop import Site
from bayesfed.keys import alone, forked, stay_apart, streams
from bayesfed.trees import Tree

# Longest wait for threads that have answered their last client.
PATIENCE_S = 5.0


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
            late = f"no answer within {self._deadline_s:g} s; its worker process was stopped"
            reason = f"{late}; try a larger deadline_s"
            job.outcome = task.error("deadline", reason, public=reason)
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
        job.outcome = task.error("worker", reason, public=reason)

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


class WorkerThreads:
    """Worker threads of one site.

    Parameters
    ----------
    count
        Number of threads.
    site
        What every worker holds; each has a copy of the locals.
    """

    def __init__(self, count: int, site: Site) -> None:
        self.site, self._count, self._looked = site, count, set[str]()
        self._numbers, self._own = list[int](), threading.local()
        # A copy for each thread, since what a network has is lent to a client's turn.
        with alone():
            self._copies = [copy.deepcopy(dict(site.sides)) for _ in range(count)]
        self._executor = ThreadPoolExecutor(count, initializer=self._enter)

    def map(
        self, tasks: Iterable[Task], memory: Callable[[str], Tree]
    ) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks in their order, at most two a worker ahead; `memory` returns that of a
        client.

        Raises
        ------
        ArgumentError
            If a phase draws from a global generator, which threads share. Until a client of it has
            answered, its clients are alone, and looked at.
        """
        waiting = deque[tuple[Task, Future[Outcome]]]()
        for task in tasks:
            waiting.append((task, self._begun(task, memory(task.client))))
            if len(waiting) > 2 * self._count:
                first, future = waiting.popleft()
                yield first, future.result()
        for task, future in waiting:
            yield task, future.result()

    def close(self) -> None:
        """Stop all threads and wait until they are gone."""
        self._executor.shutdown(cancel_futures=True)
        wait_until_gone(self._numbers)

    def _enter(self) -> None:
        torch.set_num_threads(1)
        self._numbers.append(threading.get_native_id())
        self._own.site = self.site._replace(sides=self._copies.pop())
        stay_apart()

    def _begun(self, task: Task, memory: Tree) -> Future[Outcome]:
        if task.phase in self._looked:
            return self._executor.submit(self._answer, task, memory)
        with forked(task.key):
            own = self.site.sides[task.phase].generators
            state = streams(own)
            future = self._executor.submit(self._answer, task, memory)
            outcome, drew = future.result(), streams(own) != state
        if drew:
            expected = "local steps that draw from no global generator, which threads share"
            raise ArgumentError(
                "InProcess", expected, f"phase {task.phase!r}, which does", "kind='process'"
            )
        if isinstance(outcome, Reply) and outcome.info.get("samples", 1.0):
            self._looked.add(task.phase)
        return future

    def _answer(self, task: Task, memory: Tree) -> Outcome:
        site: Site = self._own.site
        return answered(site.sides, site.turn(task, memory))


def wait_until_gone(numbers: Collection[int]) -> None:
    """Wait until the system has no threads of these native numbers.

    Python's `join` returns before the libraries of a thread have cleaned up behind it. A process
    that is forked meanwhile inherits their locks as they are, and waits for ever in its first
    matrix product (MKL's allocator).
    """
    end = time.monotonic() + PATIENCE_S
    while (
        any(Path(f"/proc/self/task/{number}").exists() for number in numbers)
        and time.monotonic() < end
    ):
        time.sleep(1e-3)
