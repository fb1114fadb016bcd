"""Worker threads: the workers of one process, for locals that draw from streams of their own."""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from bayesfed.errors import ArgumentError
from bayesfed.federated.clients.turn import Outcome, Task
from bayesfed.federated.clients.worker_loop import Site
from bayesfed.trees import Tree

# Longest wait for threads that have answered their last client.
PATIENCE_S = 5.0


class WorkerThreads:
    """Worker threads of one site.

    Parameters
    ----------
    count
        Number of threads.
    site
        What every worker holds; each has a copy of the locals.

    Raises
    ------
    ArgumentError
        If a local draws from torch's global generator, which threads share.
    """

    def __init__(self, count: int, site: Site) -> None:
        shared = [phase for phase, side in site.sides.items() if side.uses_global_randomness]
        if shared:
            expected = "locals with random streams of their own for threads"
            raise ArgumentError("InProcess", expected, f"phases {shared}", "kind='process'")
        self.site, self._count = site, count
        self._numbers, self._own = list[int](), threading.local()
        self._executor = ThreadPoolExecutor(count, initializer=self._enter)

    def map(
        self, tasks: Iterable[Task], memory: Callable[[str], Tree]
    ) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks in their order, at most two a worker ahead; `memory` returns that of a
        client.
        """
        waiting = deque[tuple[Task, Future[Outcome]]]()
        for task in tasks:
            waiting.append((task, self._executor.submit(self._answer, task, memory(task.client))))
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
        # A copy for each thread: functional_call swaps a module's parameters in place for the time
        # of the call.
        self._own.site = self.site._replace(sides=copy.deepcopy(dict(self.site.sides)))

    def _answer(self, task: Task, memory: Tree) -> Outcome:
        site: Site = self._own.site
        return site.answered(task, memory)


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
