"""Pools between the clients and the server, which change what the clients answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from bayesfed.federated.clients.pools import ClientPool
from bayesfed.federated.clients.side import Sides
from bayesfed.federated.clients.turn import Outcome, Task
from bayesfed.federated.core.protocols import Profile
from bayesfed.trees import Tree

Arrivals = Iterable[tuple[Task, Outcome]]


@dataclass(frozen=True)
class Between:
    """A pool that passes each outcome of another pool through a function, which may return none,
    one or several outcomes.

    Parameters
    ----------
    pool
        The pool that answers.
    act
        ``(task, outcome) -> outcomes that reach the server``.
    """

    pool: ClientPool
    act: Callable[[Task, Outcome], Arrivals]

    @property
    def profiles(self) -> Sequence[Profile]:
        """The profiles of the inner pool."""
        return self.pool.profiles

    def map(self, sides: Sides, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Yield what the function makes of each outcome, given the task with its message."""
        asked = deque[Task]()

        def noted() -> Iterator[Task]:
            for task in tasks:
                asked.append(replace(task))
                yield task

        for _, outcome in self.pool.map(sides, noted()):
            yield from self.act(asked.popleft(), outcome)

    def settle(self, client: str, accepted: bool) -> None:
        """Settle the memory in the inner pool."""
        self.pool.settle(client, accepted)

    def memories(self) -> Mapping[str, Tree]:
        """Return the memories of the inner pool."""
        return self.pool.memories()

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Restore the memories of the inner pool."""
        self.pool.restore(memories)


@dataclass(frozen=True)
class Remembering(Between):
    """A pool that trains once for each message and repeats its answer afterwards. It keeps no
    memories of clients.

    Parameters
    ----------
    seen
        Outcomes so far, by client and message.
    """

    seen: dict[tuple[str, bytes], Outcome] = field(default_factory=dict)

    def map(self, sides: Sides, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Yield what the function makes of each outcome, new or repeated."""
        for task in tasks:
            place = (task.client, task.message)
            if place not in self.seen:
                ((_, self.seen[place]),) = self.pool.map(sides, [task])
            yield from self.act(task, self.seen[place])
