"""Where clients live: `InProcess`, serially or over worker processes or threads, with the same bits.

The pool owns the data sets and what each client remembers; the engine sees neither.
"""

from __future__ import annotations

import copy
import multiprocessing
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Literal, Protocol, Self

import torch

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, ClientError, DataError, complain
from bayesfed.federated.client import Outcome, Reply, Task, answer
from bayesfed.federated.protocols import Local, Profile
from bayesfed.trees import Tree

Locals = Mapping[str, Local]


class ClientPool(Protocol):
    """The seam between the engine and wherever clients run."""

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Every client, in the order of their names."""
        ...

    def map(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks, in their order; `locals` holds a local step for each phase."""
        ...

    def settle(self, client: str, accepted: bool) -> None:
        """Keep the client's new memory if the server accepted its payload, else the old one."""
        ...

    def memories(self) -> dict[str, Tree]:
        """Return what each client remembers, for a checkpoint."""
        ...

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Put memories back."""
        ...


class InProcess:
    """Run clients on this machine.

    Parameters
    ----------
    data
        A data set for each client, by name; empty ones are legal, all of them empty is not.
    workers
        0 runs clients one after another in this process.
    kind
        "process" (forked workers; anything that draws from torch's or Pyro's global state) or
        "thread" (locals that draw only from their own key).
    devices
        Device figures by client name, for planners.

    Raises
    ------
    DataError
        If there is no client, or no client has data.
    ArgumentError
        If the workers cannot be had.
    """

    def __init__(
        self,
        data: Mapping[str, Dataset],
        *,
        workers: int = 0,
        kind: Literal["process", "thread"] = "process",
        devices: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        if not data or not any(len(part) for part in data.values()):
            raise DataError(
                complain("InProcess", expected="a client with data", actual=f"{len(data)} clients, all empty", hint="federate(data, iid(...))")
            )
        if workers < 0 or kind not in ("process", "thread"):
            raise ArgumentError(
                complain("InProcess", expected="workers >= 0 and kind 'process' or 'thread'", actual=(workers, kind), hint="workers=2")
            )
        if workers and kind == "process":
            if "fork" not in multiprocessing.get_all_start_methods():
                raise ArgumentError(
                    complain("InProcess", expected="a system that can fork", actual="one that cannot", hint="workers=0, or kind='thread'")
                )
            if any(part.inputs.device.type != "cpu" for part in data.values()):
                raise ArgumentError(
                    complain("InProcess", expected="data on the CPU for process workers", actual="data on an accelerator", hint="workers=0")
                )
        self._data = {name: data[name] for name in sorted(data)}
        devices = devices or {}
        self.profiles = tuple(Profile(name, len(part), dict(devices.get(name, {}))) for name, part in self._data.items())
        self._workers, self._kind = workers, kind
        self._memory: dict[str, Tree] = {}
        self._pending: dict[str, Tree] = {}
        self._executor: tuple[Executor, Locals] | None = None

    def map(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks in their order, at most two a worker ahead."""
        for task, outcome in self._parallel(locals, tasks) if self._workers else self._serial(locals, tasks):
            if isinstance(outcome, Reply):
                self._pending[task.client] = outcome.memory
            yield task, outcome

    def settle(self, client: str, accepted: bool) -> None:
        """Promote or drop the client's pending memory."""
        pending = self._pending.pop(client, None)
        if accepted and pending is not None:
            self._memory[client] = pending

    def memories(self) -> dict[str, Tree]:
        """Return a copy of what each client remembers; clients that remember nothing are left out."""
        return {client: dict(memory) for client, memory in self._memory.items() if memory}

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Replace all memories."""
        self._memory, self._pending = {client: dict(memory) for client, memory in memories.items()}, {}

    def close(self) -> None:
        """Stop the workers."""
        if self._executor:
            self._executor[0].shutdown(cancel_futures=True)
            self._executor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _serial(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            yield task, answer(task, locals[task.phase], self._data[task.client], self._memory.get(task.client, {}))

    def _parallel(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        waiting = deque[tuple[Task, Future[Outcome]]]()
        for task in tasks:
            waiting.append((task, self._submit(locals, task)))
            if len(waiting) > 2 * self._workers:
                yield self._finished(locals, *waiting.popleft())
        while waiting:
            yield self._finished(locals, *waiting.popleft())

    def _submit(self, locals: Locals, task: Task) -> Future[Outcome]:
        memory = self._memory.get(task.client, {})
        try:
            return self._start(locals).submit(_work, task, memory)
        except BrokenProcessPool:
            self.close()
            return self._start(locals).submit(_work, task, memory)

    def _finished(self, locals: Locals, task: Task, future: Future[Outcome]) -> tuple[Task, Outcome]:
        try:
            return task, future.result()
        except BrokenProcessPool:
            # One worker's death takes the whole executor along; alone, it is this client's or it was another's.
            return task, self._alone(locals, task)

    def _alone(self, locals: Locals, task: Task) -> Outcome:
        with self._executor_for(locals, workers=1) as executor:
            try:
                future: Future[Outcome] = executor.submit(_work, task, self._memory.get(task.client, {}))
                return future.result()
            except BrokenProcessPool:
                return ClientError(task.client, task.round, "worker", "its worker process died (out of memory?); try workers=0 to see why")

    def _start(self, locals: Locals) -> Executor:
        if self._executor is None or self._executor[1] is not locals:
            self.close()
            self._executor = (self._executor_for(locals, self._workers), locals)
        return self._executor[0]

    def _executor_for(self, locals: Locals, workers: int) -> Executor:
        if self._kind == "process":
            # Forked, not spawned: networks, priors and data sets reach the workers without pickling.
            return ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _enter, (locals, self._data))
        shared = [phase for phase, local in locals.items() if local.uses_global_randomness]
        if shared:
            raise ArgumentError(
                complain(
                    "InProcess",
                    expected="locals with random streams of their own for threads",
                    actual=f"phases {shared}",
                    hint="kind='process'",
                )
            )
        return ThreadPoolExecutor(workers, initializer=_enter, initargs=(locals, self._data))


# What a worker thread or process holds: filled once when it starts.
_worker = threading.local()


def _enter(locals: Locals, data: Mapping[str, Dataset]) -> None:
    torch.set_num_threads(1)
    # A copy for each thread: functional_call swaps a module's parameters in place for the time of the call.
    _worker.locals, _worker.data = copy.deepcopy(dict(locals)), data


def _work(task: Task, memory: Tree) -> Any:
    return answer(task, _worker.locals[task.phase], _worker.data[task.client], memory)
