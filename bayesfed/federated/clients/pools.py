"""Where clients live: `InProcess`, serially or over worker processes or threads, with the same
bits.

The pool owns the data sets and what each client remembers; the engine sees neither.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Literal, Protocol, Self

import numpy as np

from bayesfed.data import Dataset, Population
from bayesfed.data.population import check_classes, check_names
from bayesfed.errors import ArgumentError, DataError
from bayesfed.errors.checks import ITSELF, checked, number, one_of, whole
from bayesfed.errors.plurals import plural
from bayesfed.federated.clients.cohorts import Cohort, Cohorts
from bayesfed.federated.clients.envelopes import check_secrets
from bayesfed.federated.clients.memory.table import Memories
from bayesfed.federated.clients.rosters import Devices, Profiles
from bayesfed.federated.clients.side import Sides
from bayesfed.federated.clients.turn import Outcome, Reply, Task, answered
from bayesfed.federated.clients.worker import DEFAULT, StartMethod
from bayesfed.federated.clients.worker_loop import Site
from bayesfed.federated.clients.workers import Workers, WorkerThreads
from bayesfed.federated.core import Profile
from bayesfed.trees import Tree

# Bytes of memories that the clients of a population hold before the disk is used.
MEMORY_BYTES = 1 << 29


class ClientPool(Protocol):
    """The seam between the engine and wherever clients run."""

    @property
    def profiles(self) -> Sequence[Profile]:
        """Every client, in the order of their names."""

    def map(self, sides: Sides, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks, in their order; `sides` holds the client's half of each phase."""

    def settle(self, client: str, accepted: bool) -> None:
        """Keep the client's new memory if the server accepted its payload, else the old one."""

    def memories(self) -> Mapping[str, Tree]:
        """Return what each client remembers, for a checkpoint."""

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Put memories back."""


class InProcess:
    """Run clients on this machine.

    Parameters
    ----------
    data
        A data set for each client, by name, or a `Population`. Some may be empty, but not all.
    samples
        Number of rows of each client by name. If it is given, nothing of `data` is read before a
        client is asked, as with a `Population`.
    workers
        Number of worker processes or threads. 0 runs clients one after another in this process.
    kind
        "process", or "thread" for local steps that draw only from their own key, not from torch's
        or Pyro's global state.
    devices
        Device figures by client name, for planners, or a function ``(name) -> figures``.
    deadline_s
        Seconds a client may take, counted from when a worker process starts on it. The worker of
        one that takes longer is killed, and the client fails with a `ClientError`. Seconds of the
        clock are not reproducible, so set this far above what an honest client takes.
    secrets
        Each client's own secret, by name, for a run in keyed mode.
    cohort
        Number of clients that take their gradient steps at once
        (`bayesfed.federated.clients.cohorts`); 1 trains clients one by one. "auto" batches those
        for which measurement says that it pays: small networks. Payloads then differ in their last
        bits from those of clients one by one. ``cohorts.turns`` says which clients were batched and
        why others were not, and so does ``report.clients[name]["cohort"]``.
    start
        Start method of worker processes, as in `multiprocessing`: "fork", "spawn" or "forkserver".
        Default: "fork" on Linux, "spawn" elsewhere. Results are the same under each. Forked workers
        start in milliseconds and inherit everything. Others import torch first, which takes
        seconds, and receive local steps, data and secrets by `cloudpickle`; a script then needs
        ``if __name__ == "__main__":``.
    memory_bytes
        Bytes of what clients keep between rounds that this process holds. Beyond it, the clients
        that were not heard for longest have theirs on disk. Default: 512 MiB for a population, no
        bound otherwise.
    memory_folder
        Folder of that file, which is gone when the process ends. Default: the folder of temporary
        files.

    Notes
    -----
    A client that raises is named in a `ClientError`, whatever the kind of worker. One that ends its
    process (``os._exit``, out of memory, a signal) costs a worker process, which is replaced; the
    client is tried once more, and named if its worker dies again. With threads or ``workers=0`` the
    process that ends is this one. A client that hangs is stopped if there is a deadline: its worker
    process is killed and replaced. A thread cannot be stopped from outside, so a deadline is
    refused there. Worker processes are gone after `close`, and end by themselves if this one is
    killed. Each computes on one thread.

    Raises
    ------
    DataError
        If there is no client, or no client has data.
    CheckpointError
        While running, if memories cannot be written to the disk.
    ArgumentError
        If there cannot be such workers, a secret is not one, or there are both workers and cohorts.
        While running, if workers do not start; if local steps, data, codecs or links cannot be
        pickled for them; if a local step cannot be batched, unless ``cohort`` is "auto".
    """

    @checked(
        secrets=ITSELF,
        workers=whole(0, "workers=2"),
        start=one_of(multiprocessing.get_all_start_methods()),
        deadline_s=number("(0, inf)", "600.0"),
        memory_bytes=number("[0, inf]", "2**30"),
    )
    def __init__(
        self,
        data: Mapping[str, Dataset],
        *,
        samples: Mapping[str, int] | None = None,
        workers: int = 0,
        kind: Literal["process", "thread"] = "process",
        devices: Devices | None = None,
        deadline_s: float | None = None,
        secrets: Mapping[str, bytes] | None = None,
        cohort: Cohort = 1,
        start: StartMethod | None = None,
        memory_bytes: float | None = None,
        memory_folder: str | Path | None = None,
    ) -> None:
        if samples is not None and len(data):
            data = Population(list(data), samples, data.__getitem__)
        if isinstance(data, Population):
            names, rows, bound = data.names, data.samples, float(MEMORY_BYTES)
        else:
            data = {name: data[name] for name in sorted(data)}
            check_names("clients", data)
            check_classes("clients", data)
            names, rows, bound = list(data), np.array([*map(len, data.values())]), math.inf
            if (
                workers
                and kind == "process"
                and any(part.inputs.device.type != "cpu" for part in data.values())
            ):
                raise ArgumentError(
                    "InProcess",
                    "data on the CPU for process workers",
                    "data on an accelerator",
                    "workers=0",
                )
        if not rows.any():
            raise DataError(
                "InProcess",
                "a client with data",
                f"{plural(len(data), 'client')}, all empty",
                "federate(data, iid(...))",
            )
        if deadline_s is not None and not (workers and kind == "process"):
            raise ArgumentError(
                "InProcess.deadline_s",
                "process workers, which can be stopped",
                f"kind={kind!r}, workers={workers}",
                "workers=1, kind='process'",
            )
        if workers and cohort != 1:
            raise ArgumentError(
                "InProcess.cohort", "workers=0: a cohort is one process", workers, "cohort=1"
            )
        self.cohorts = None if cohort == 1 and cohort is not True else Cohorts(cohort)
        self._data: Mapping[str, Dataset] = data
        self._secrets = {} if secrets is None else check_secrets("InProcess.secrets", secrets, data)
        self.profiles: Sequence[Profile] = Profiles(names, rows, devices or {})
        self._workers, self._kind = workers, kind
        self.memory_bytes = bound if memory_bytes is None else memory_bytes
        self.memory_folder = memory_folder
        self._memories = Memories(names, self.memory_bytes, memory_folder)
        self._deadline_s = math.inf if deadline_s is None else deadline_s
        self._start = start or DEFAULT
        self._crew: Workers | WorkerThreads | None = None

    @property
    def data(self) -> Mapping[str, Dataset]:
        """The rows of every client by name; those of a population are loaded when they are read."""
        return self._data if isinstance(self._data, Population) else dict(self._data)

    def map(self, sides: Sides, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Answer tasks in their order, at most two a worker ahead."""
        site, read = Site(sides, self._data, self._secrets), self._memories.read
        if self._workers:
            answers = self._hired(site).map(tasks, read)
        elif self.cohorts:
            turns = (site.turn(task, read(task.client)) for task in tasks)
            answers = self.cohorts.answers(sides, turns)
        else:
            answers = (
                (task, answered(sides, site.turn(task, read(task.client)))) for task in tasks
            )
        # A generator would keep each answer while the next client works.
        return starmap(self._noted, answers)

    def settle(self, client: str, accepted: bool) -> None:
        """Promote or drop the client's pending memory."""
        self._memories.settle(client, accepted)

    def memories(self) -> Mapping[str, Tree]:
        """Return what each client remembers now; clients that remember nothing are left out."""
        return self._memories.taken()

    @checked()
    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Replace all memories."""
        self._memories.restore(memories)

    def close(self) -> None:
        """Stop the workers, and wait until they are gone."""
        if self._crew:
            self._crew.close()
        self._crew = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _noted(self, task: Task, outcome: Outcome) -> tuple[Task, Outcome]:
        if isinstance(outcome, Reply):
            self._memories.pend(task.client, outcome.memory)
        return task, outcome

    def _hired(self, site: Site) -> Workers | WorkerThreads:
        if self._crew is None or self._crew.site.sides is not site.sides:
            self.close()
            self._crew = (
                Workers(self._workers, site, self._deadline_s, self._start)
                if self._kind == "process"
                else WorkerThreads(self._workers, site)
            )
        return self._crew
