"""Where clients live: `InProcess`, serially or over worker processes or threads, with the same bits.

The pool owns the data sets and what each client remembers; the engine sees neither.
"""

from __future__ import annotations

import copy
import math
import multiprocessing
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, Protocol, Self

import torch

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, DataError, complain
from bayesfed.errors.checks import shown
from bayesfed.federated.clients.cohorts import Cohort, Cohorts, Turn
from bayesfed.federated.clients.envelopes import check_secrets
from bayesfed.federated.clients.memories import ClientMemory, Slot
from bayesfed.federated.clients.turn import Outcome, Reply, Task, answer
from bayesfed.federated.clients.worker import StartMethod, default_start_method
from bayesfed.federated.clients.worker_loop import Site
from bayesfed.federated.clients.worker_processes import Workers
from bayesfed.federated.core.protocols import Local, Profile
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
        A data set for each client, by name. Some may be empty, but not all.
    workers
        Number of worker processes or threads. 0 runs clients one after another in this process.
    kind
        "process", or "thread" for local steps that draw only from their own key, not from torch's or Pyro's global state.
    devices
        Device figures by client name, for planners.
    deadline_s
        Seconds a client may take, counted from when a worker process starts on it. The worker of one that takes longer is killed, and the client
        fails with a `ClientError`. Seconds of the clock are not reproducible, so set this far above what an honest client takes.
    secrets
        Each client's own secret, by name, for a run in keyed mode.
    cohort
        Number of clients that take their gradient steps at once (`bayesfed.federated.clients.cohorts`); 1 trains clients one by one. "auto" batches
        those for which measurement says that it pays: small networks. Payloads then differ in their last bits from those of clients one by one.
        ``cohorts.turns`` says which clients were batched and why others were not, and so does ``report.clients[name]["cohort"]``.
    start
        Start method of worker processes, as in `multiprocessing`: "fork", "spawn" or "forkserver". Default: "fork" on Linux, "spawn" elsewhere.
        Results are the same under each. Forked workers start in milliseconds and inherit everything. Others import torch first, which takes
        seconds, and receive local steps, data and secrets by `cloudpickle`; a script then needs ``if __name__ == "__main__":``.

    Notes
    -----
    A client that raises is named in a `ClientError`, whatever the kind of worker. One that ends its process (``os._exit``, out of memory, a signal)
    costs a worker process, which is replaced; the client is tried once more, and named if its worker dies again. With threads or ``workers=0`` the
    process that ends is this one. A client that hangs is stopped if there is a deadline: its worker process is killed and replaced. A thread cannot
    be stopped from outside, so a deadline is refused there. Worker processes are gone after `close`, and end by themselves if this one is killed.
    Each computes on one thread.

    Raises
    ------
    DataError
        If there is no client, or no client has data.
    ArgumentError
        If there cannot be such workers, a secret is not one, or there are both workers and cohorts. While running, if workers do not start; if
        local steps, data, codecs or links cannot be pickled for them; if a local step cannot be batched, unless ``cohort`` is "auto".
    """

    def __init__(
        self,
        data: Mapping[str, Dataset],
        *,
        workers: int = 0,
        kind: Literal["process", "thread"] = "process",
        devices: Mapping[str, Mapping[str, float]] | None = None,
        deadline_s: float | None = None,
        secrets: Mapping[str, bytes] | None = None,
        cohort: Cohort = 1,
        start: StartMethod | None = None,
    ) -> None:
        if not isinstance(data, Mapping):
            raise ArgumentError(
                complain("InProcess, data", expected="a data set for each client by name", actual=shown(data), hint="{'name': data_set}")
            )
        if not data or not any(len(part) for part in data.values()):
            raise DataError(
                complain("InProcess", expected="a client with data", actual=f"{len(data)} clients, all empty", hint="federate(data, iid(...))")
            )
        if workers < 0 or kind not in ("process", "thread"):
            raise ArgumentError(
                complain("InProcess", expected="workers >= 0 and kind 'process' or 'thread'", actual=(workers, kind), hint="workers=2")
            )
        if start is not None and start not in (methods := multiprocessing.get_all_start_methods()):
            raise ArgumentError(complain("InProcess.start", expected=f"one of {methods}, those of this system", actual=start, hint="None"))
        if workers and kind == "process" and any(part.inputs.device.type != "cpu" for part in data.values()):
            raise ArgumentError(
                complain("InProcess", expected="data on the CPU for process workers", actual="data on an accelerator", hint="workers=0")
            )
        if deadline_s is not None and not (workers and kind == "process"):
            found = f"kind={kind!r}, workers={workers}"
            raise ArgumentError(
                complain("InProcess.deadline_s", expected="process workers, which can be stopped", actual=found, hint="workers=1, kind='process'")
            )
        if deadline_s is not None and not 0 < deadline_s < math.inf:
            raise ArgumentError(complain("InProcess.deadline_s", expected="seconds above 0", actual=deadline_s, hint="600.0"))
        if workers and cohort != 1:
            raise ArgumentError(complain("InProcess.cohort", expected="workers=0: a cohort is one process", actual=workers, hint="cohort=1"))
        self.cohorts = None if cohort == 1 and cohort is not True else Cohorts(cohort)
        self._data = {name: data[name] for name in sorted(data)}
        self._secrets = check_secrets("InProcess.secrets", secrets, self._data) if secrets is not None else {}
        devices = devices or {}
        self.profiles = tuple(Profile(name, len(part), dict(devices.get(name, {}))) for name, part in self._data.items())
        self._workers, self._kind = workers, kind
        self._memories = {name: ClientMemory() for name in self._data}
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        self._start = start or default_start_method()
        self._crew: Workers | tuple[ThreadPoolExecutor, Locals] | None = None

    @property
    def data(self) -> Mapping[str, Dataset]:
        """The rows of every client by name."""
        return dict(self._data)

    def map(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks in their order, at most two a worker ahead."""
        ways = {"process": self._processes, "thread": self._threads}
        way = ways[self._kind] if self._workers else self._together if self.cohorts else self._serial
        for task, outcome in way(locals, tasks):
            if isinstance(outcome, Reply):
                self._memories[task.client].pend(Slot(task.round, task.phase), outcome.memory)
            yield task, outcome

    def settle(self, client: str, accepted: bool) -> None:
        """Promote or drop the client's pending memory."""
        memory = self._memories[client]
        if slot := memory.pending:
            memory.promote(slot) if accepted else memory.drop(slot)

    def memories(self) -> dict[str, Tree]:
        """Return a copy of what each client remembers; clients that remember nothing are left out."""
        return {client: tree for client, memory in self._memories.items() if (tree := memory.read())}

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Replace all memories."""
        self._memories = {client: ClientMemory() for client in [*self._data, *memories]}
        for client, tree in memories.items():
            self._memories[client].replace(dict(tree))

    def close(self) -> None:
        """Stop the workers, and wait until they are gone."""
        if isinstance(self._crew, Workers):
            self._crew.close()
        elif self._crew:
            self._crew[0].shutdown(cancel_futures=True)
        self._crew = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _recall(self, client: str) -> Tree:
        return self._memories[client].read()

    def _serial(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        for task in tasks:
            yield task, answer(task, locals[task.phase], self._data[task.client], self._recall(task.client), self._secrets.get(task.client))

    def _together(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        asked = deque[Task]()

        def turns() -> Iterator[Turn]:
            for task in tasks:
                asked.append(task)
                yield Turn(task, self._data[task.client], self._recall(task.client), self._secrets.get(task.client))

        if self.cohorts:
            for outcome in self.cohorts.answers(locals, turns()):
                yield asked.popleft(), outcome

    def _processes(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        if not isinstance(self._crew, Workers) or self._crew.site.locals is not locals:
            self.close()
            self._crew = Workers(self._workers, Site(locals, self._data, self._secrets), self._deadline_s, self._start)
        return self._crew.map(tasks, self._recall)

    def _threads(self, locals: Locals, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        if not isinstance(self._crew, tuple) or self._crew[1] is not locals:
            self.close()
            self._crew = (_executor(self._workers, locals, self._data), locals)
        executor, waiting = self._crew[0], deque[tuple[Task, Future[Outcome]]]()
        for task in tasks:
            waiting.append((task, executor.submit(_work, task, self._recall(task.client), self._secrets.get(task.client))))
            if len(waiting) > 2 * self._workers:
                yield _finished(*waiting.popleft())
        while waiting:
            yield _finished(*waiting.popleft())


def _executor(workers: int, locals: Locals, data: Mapping[str, Dataset]) -> ThreadPoolExecutor:
    shared = [phase for phase, local in locals.items() if local.uses_global_randomness]
    if shared:
        expected = "locals with random streams of their own for threads"
        raise ArgumentError(complain("InProcess", expected=expected, actual=f"phases {shared}", hint="kind='process'"))
    return ThreadPoolExecutor(workers, initializer=_enter, initargs=(locals, data))


def _finished(task: Task, future: Future[Outcome]) -> tuple[Task, Outcome]:
    return task, future.result()


# What a worker thread holds: filled once when it starts.
_worker = threading.local()


def _enter(locals: Locals, data: Mapping[str, Dataset]) -> None:
    torch.set_num_threads(1)
    # A copy for each thread: functional_call swaps a module's parameters in place for the time of the call.
    _worker.locals, _worker.data = copy.deepcopy(dict(locals)), data


def _work(task: Task, memory: Tree, secret: bytes | None) -> Outcome:
    return answer(task, _worker.locals[task.phase], _worker.data[task.client], memory, secret)
