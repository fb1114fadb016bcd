"""`Ranks`: clients over the processes of a job under ``torchrun``, on one machine or many, with the
bits of one process.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from itertools import starmap
from typing import Self, TypeVar

import torch

from bayesfed.data import Dataset, Population
from bayesfed.data.population import place_of
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.errors.checks import checked, number
from bayesfed.federated.clients.memory.table import Memories
from bayesfed.federated.clients.pools import ClientPool, InProcess
from bayesfed.federated.clients.process_group import Group, gpu, log, machine
from bayesfed.federated.clients.rosters import Roster
from bayesfed.federated.clients.serialisation import from_safetensors, to_safetensors
from bayesfed.federated.clients.side import Sides
from bayesfed.federated.clients.turn import Outcome, Task, one_thread
from bayesfed.federated.core import Profile
from bayesfed.trees import Tree

Result = TypeVar("Result")


class Ranks:
    """A pool whose clients are shared among the processes (ranks) of a job.

    Every rank runs the same script with the same arguments, and answers the clients that it owns.
    Sums are added over ranks as integers, so that the state, the memories and the records are those
    of one process, bit for bit. Rank 0 takes the server's step, calls callbacks, draws progress and
    writes checkpoints; it alone needs the folder that a run is resumed from. An error of any rank
    is raised on every rank.

    Parameters
    ----------
    clients
        A data set for each client by name, or a pool; the same on every rank.
    timeout_s
        Seconds that a rank waits for the others before the run fails with a `RankError`. A round
        must not take longer.
    mixed
        Accept ranks with other builds of torch, processors or GPUs, whose training differs in last
        bits.

    Notes
    -----
    Without ``torchrun`` there is one rank. On machines with GPUs each rank uses one, number
    ``LOCAL_RANK``: it becomes the current device, and rows that are on a GPU are moved to it.
    Snapshots have the memories of all clients on rank 0, and on other ranks those of the rank's own
    clients.

    Raises
    ------
    ArgumentError
        If ranks differ in their build of torch, their processor, their GPU or a short training,
        unless `mixed`; if clients are trained in cohorts, whose bits depend on who is in them; if
        restarts of the job would fail.
    RankError
        During a run, if a rank is lost, or is silent for too long.
    """

    @checked(timeout_s=number("(0, inf]", "1800.0"))
    def __init__(
        self,
        clients: Mapping[str, Dataset] | ClientPool,
        *,
        timeout_s: float = 1800.0,
        mixed: bool = False,
    ) -> None:
        self.group = Group.join(timeout_s)
        atexit.register(self._leave)
        if not mixed:
            with one_thread():
                described = machine()
            self.group.alike(
                described, "machines of one kind with one build of torch, or mixed=True"
            )
        self.pool: ClientPool = (
            InProcess(self._placed(clients)) if isinstance(clients, Mapping) else clients
        )
        if self.group.size > 1 and getattr(self.pool, "cohorts", None) is not None:
            raise ArgumentError(
                "Ranks",
                "clients that train one by one",
                "cohorts",
                "cohort=1, which is the same on any number of ranks",
            )
        self._names = Roster(self.pool.profiles).ordered
        # On rank 0: what the clients of all ranks keep.
        bound = getattr(self.pool, "memory_bytes", math.inf)
        folder = getattr(self.pool, "memory_folder", None)
        self._memories = Memories(self._names, bound, folder)
        self._changed, self._verdicts = set[str](), list[tuple[str, bool]]()

    @property
    def profiles(self) -> Sequence[Profile]:
        """Every client, in the order of their names."""
        return self.pool.profiles

    @property
    def data(self) -> Mapping[str, Dataset] | None:
        """The rows of every client by name; None if the pool does not have them."""
        return self.pool.data if isinstance(self.pool, InProcess) else None

    def owner(self, client: str) -> int:
        """Return the rank that answers for a client; rank 0 for one that is not in the pool."""
        return (place_of(self._names, client) or 0) % self.group.size

    def owns(self, client: str) -> bool:
        """Return whether this rank answers for a client."""
        return self.owner(client) == self.group.rank

    def map(self, sides: Sides, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Answer the tasks of this rank's clients, in their order. Of a machine that is not rank
        0's, failures have the texts that may leave it (`bayesfed.errors.public_text`); the full
        ones are in the log "bayesfed.site".
        """
        answers = self.pool.map(sides, (task for task in tasks if self.owns(task.client)))
        return starmap(_without_rows, answers) if self.group.remote else answers

    def settle(self, client: str, accepted: bool) -> None:
        """Keep the client's new memory if the server accepted its payload, else the old one. The
        owner of the client is told by `settle_others`.
        """
        if self.owns(client):
            self.pool.settle(client, accepted)
            self._changed |= {client} if accepted else set()
        else:
            self._verdicts.append((client, accepted))

    def settle_others(self) -> None:
        """Settle on every rank what rank 0 settled for it. Every rank has to call this."""
        verdicts, self._verdicts = self.group.broadcast(self._verdicts), []
        for client, accepted in verdicts:
            if self.owns(client):
                self.settle(client, accepted)

    def memories(self) -> Mapping[str, Tree]:
        """Return what clients remember: all of them on rank 0, this rank's own elsewhere. Every
        rank has to call this.
        """
        # The pool only knows clients of this rank: no others were answered, settled or restored
        # here.
        own = self.pool.memories()
        if self.group.size == 1:
            return own
        changed = {
            client: to_safetensors(own[client]) if client in own else None
            for client in self._changed
        }
        self._changed = set()
        for rank, several in enumerate(self.group.gather(changed)):
            for client, content in several.items():
                tree = {} if content is None else from_safetensors(content)
                self._memories.pend(client, own.get(client, {}) if rank == 0 else tree)
                self._memories.settle(client, True)
        return self._memories.taken() if self.group.rank == 0 else own

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Put memories of clients back, on every rank those of its own."""
        self._changed, self._verdicts = set(), []
        if self.group.size == 1:
            self.pool.restore(memories)
            return
        if self.group.rank == 0:
            self._memories.restore(memories)
        self.pool.restore({client: memories[client] for client in memories if self.owns(client)})

    def close(self) -> None:
        """Wait for the other ranks, stop the pool and leave the group."""
        self.group.wait()
        if isinstance(self.pool, InProcess):
            self.pool.close()
        self._leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        # After an error the others may never come.
        if error[0] is None:
            self.close()

    def _leave(self) -> None:
        self.group.leave()
        self.group = replace(self.group, handle=None)
        atexit.unregister(self._leave)

    def _placed(self, clients: Mapping[str, Dataset]) -> Mapping[str, Dataset]:
        if (device := gpu()) is None:
            return clients
        torch.cuda.set_device(device)

        def placed(part: Dataset) -> Dataset:
            return part.to(device) if part.inputs.device.type == "cuda" else part

        if isinstance(clients, Population):
            return Population(clients.names, clients.samples, lambda name: placed(clients[name]))
        return {name: placed(part) for name, part in clients.items()}


def _without_rows(task: Task, outcome: Outcome) -> tuple[Task, Outcome]:
    if not isinstance(outcome, ClientError):
        return task, outcome
    log.warning("%s", outcome, exc_info=outcome.__cause__)
    return task, outcome.without_rows()


def led(pool: object, work: Callable[[], Result]) -> Result:
    """Return the result of `work`. With `Ranks`, rank 0 alone does it, and all ranks return its
    result or raise its error.
    """
    return pool.group.led(work) if isinstance(pool, Ranks) else work()


def alike(pool: object, settings: Mapping[str, str], initial: Tree) -> None:
    """With `Ranks`, raise `ArgumentError` unless all ranks have the same settings of the run and
    the same state before it.
    """
    if isinstance(pool, Ranks):
        digest = blake2b(to_safetensors(initial), digest_size=8).hexdigest()
        pool.group.alike(
            {**settings, "first state": digest},
            "one script with the same arguments and seeds on every rank",
        )
