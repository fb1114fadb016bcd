"""One worker process as the server sees it, and how workers start: forked, spawned, or from a fork
server.

Each is a `multiprocessing.Process` with a pipe of its own, whose far end the server closes. A
worker that is killed in the middle of an answer is then the end of its pipe and of nothing else.
`pebble` and `concurrent.futures` keep both ends of their pipes open: after such a death they wait
forever for the rest of the answer, and pebble cannot end that by a deadline, since stopping a
worker needs the lock that the dead one held.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import cloudpickle

from bayesfed.errors import ArgumentError
from bayesfed.federated.clients import worker_loop
from bayesfed.federated.clients.turn import Outcome, Task
from bayesfed.federated.clients.worker_loop import READY, Settings, Site, receive_outcome, serve

if TYPE_CHECKING:
    # Not all of them exist on every system.
    from multiprocessing.context import ForkContext, ForkServerContext, SpawnContext

    Context = ForkContext | SpawnContext | ForkServerContext

StartMethod = Literal["fork", "spawn", "forkserver"]
# MacOS can fork too, but its system libraries do not survive it.
DEFAULT: StartMethod = "fork" if sys.platform == "linux" else "spawn"
# Seconds that a worker with a deadline has at least to send an answer it has begun.
GRACE_S = 10.0


@dataclass
class Job:
    """A task on its way: what is sent of it, whether a worker died of it, and its outcome."""

    task: Task
    frames: tuple[bytes, ...] = ()
    tried: bool = False
    outcome: Outcome | None = None


class Worker:
    """One process, the pipe to it, and the job it is at."""

    def __init__(self, context: Context, site: Site | None) -> None:
        self.pipe, far_end = context.Pipe()
        self.process = context.Process(target=serve, args=(far_end, site), daemon=True)
        try:
            self.process.start()
        finally:
            far_end.close()
        self.job: Job | None = None
        self.until, self.late = math.inf, False

    def give(self, job: Job, deadline_s: float) -> None:
        """Hand over a job. Raises OSError if the process is gone or does not read."""
        self.job, self.until, self.late = job, time.monotonic() + deadline_s, False
        with self._killed_after(deadline_s):
            for frame in job.frames:
                self.pipe.send_bytes(frame)

    def calls(self) -> bool:
        """Return whether there is an answer to take, or the process is gone."""
        try:
            return self.pipe.poll() or not self.process.is_alive()
        except OSError:
            return True

    def take(self, task: Task) -> Outcome:
        """Receive the answer. Raises EOFError or OSError if the process is gone."""
        if not self.pipe.poll():
            raise EOFError
        # An answer that has begun is read to its end: the server may have been late, not the
        # worker.
        with self._killed_after(max(GRACE_S, self.until - time.monotonic())):
            return receive_outcome(self.pipe, task)

    def stop(self) -> str:
        """Kill the process, wait until it is gone, and return how it ended."""
        self.process.kill()
        self.process.join()
        code = self.process.exitcode or 0
        self.process.close()
        self.pipe.close()
        return f"exit code {code}" if code >= 0 else f"signal {-code}; out of memory?"

    @contextmanager
    def _killed_after(self, seconds: float) -> Iterator[None]:
        """Do not wait forever for a process that stops in the middle of a message: kill it, which
        ends the pipe.
        """
        if math.isinf(seconds):
            yield
            return
        watchdog = threading.Timer(seconds, self._kill_late)
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()
            watchdog.join()

    def _kill_late(self) -> None:
        self.late = True
        self.process.kill()


class Launcher:
    """What starts the workers of one site.

    Parameters
    ----------
    site
        What every worker holds. Forked processes inherit it; others receive it once, when they
        start.
    method
        Start method of `multiprocessing`.
    """

    def __init__(self, site: Site, method: StartMethod) -> None:
        self.site, self._forks = site, method == "fork"
        self._context = cast("Context", multiprocessing.get_context(method))
        if method == "forkserver":
            # The fork server imports torch once, and every worker starts from there.
            self._context.set_forkserver_preload(
                ["__main__", worker_loop.__name__, "torch._dynamo"]
            )

    def launch(self, count: int) -> list[Worker]:
        """Start so many workers side by side: a spawned one imports torch first, which takes
        seconds.
        """
        content = (
            b""
            if self._forks
            else self.pickled(
                (Settings.current(), self.site), "clients' local steps and data that can be pickled"
            )
        )
        fresh: list[Worker] = []
        try:
            for _ in range(count):
                fresh.append(Worker(self._context, self.site if self._forks else None))
            if not self._forks:
                _send_site(content, fresh)
        except BaseException as problem:
            stop_all(fresh, os.getpid())
            if isinstance(problem, OSError):
                raise ArgumentError(
                    "InProcess", "worker processes that start", problem, "fewer workers"
                ) from problem
            raise
        return fresh

    def pickled(self, content: object, expected: str) -> bytes:
        """Pickle what goes to a worker. One that was not forked does not have the classes and
        functions of a notebook or of a function's body.
        """
        ways = (pickle.dumps,) if self._forks else (cloudpickle.dumps, pickle.dumps)
        problem: Exception | None = None
        for dumps in ways:
            try:
                return dumps(content)
            except Exception as error:
                problem = problem or error
        raise ArgumentError(
            "InProcess",
            expected,
            problem,
            (
                "kind='thread', or workers=0"
                if self._forks
                else "start='fork' on Linux, kind='thread', or workers=0"
            ),
        ) from problem


def _send_site(content: bytes, fresh: list[Worker]) -> None:
    """Send the site to workers that were not forked, and wait until all have it."""
    worker = fresh[0]
    try:
        for worker in fresh:
            worker.pipe.send_bytes(content)
        for worker in fresh:
            if (answer := worker.pipe.recv_bytes()) != READY:
                raise ArgumentError(
                    "InProcess",
                    "clients' local steps and data that a worker process can unpickle",
                    answer.decode(),
                    "define their classes in a module that can be imported, or workers=0",
                )
    except (EOFError, OSError) as problem:
        fresh.remove(worker)
        raise ArgumentError(
            "InProcess",
            "worker processes that start",
            f"one that ended while it started ({worker.stop()})",
            "run the script's work under `if __name__ == '__main__':`, or workers=0",
        ) from problem


def stop_all(workers: list[Worker], owner: int) -> None:
    """Stop workers, in the process that started them: a forked child has copies of these objects,
    but not these children.
    """
    if os.getpid() == owner:
        for worker in workers:
            worker.process.kill()
        while workers:
            workers.pop().stop()
