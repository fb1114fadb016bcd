"""Cohorts: clients whose work has the same shape take their gradient steps at once
(`bayesfed.federated.clients.vmap_training`).

Only the steps are batched. Every client keeps its own message, payload, memory, codec and failures,
so links, gate, ledger, error feedback and refusals are the same as without cohorts. Payloads may
differ in their last bits.

`benchmarks/speed.py --only cohorts` measured when this is faster. The table has the seconds of a
round with a cohort divided by the seconds without, with one thread on a busy machine, so the
figures are approximate::

    network          parameters   rows a step   8 clients   16 clients   64 clients
    64-32-10              2,410             8        0.59         0.37         0.22
    64-32-10              2,410            32        0.85         0.47         0.27
    64-128-64-10         17,226            16        0.65         0.44         0.45
    64-128-64-10         17,226            64        0.58         0.44         0.44
    784-32-10            25,450            16        0.77         0.53         0.51
    784-32-10            25,450            64        0.68         0.51         0.54
    784-64-10            50,890            16        1.10         0.60         0.70
    784-64-10            50,890            64        0.86         0.95         0.76
    784-256-10          203,530            16        1.10         1.18         1.53
    784-256-256-10      269,322            16        1.18         0.98         1.31
    784-256-256-10      269,322            64        0.98         1.04         1.18

Four clients of 64-32-10 take 1.1 to 1.2. Therefore "auto" batches 8 clients or more, of at most
65,536 parameters each, if parameters times rows is at most two million.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Literal

from bayesfed.data.packed import Packed
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.errors.checks import Role, checked_class, whole
from bayesfed.errors.plurals import plural
from bayesfed.federated.clients.side import ClientSide, Sides
from bayesfed.federated.clients.turn import (
    Outcome,
    Ready,
    Task,
    Turn,
    attempt,
    begun,
    packed,
    trained,
)
from bayesfed.federated.clients.vmap_training import Member, obstacle, rows_of, shape_of, together
from bayesfed.federated.core import Fit, Local, seams
from bayesfed.trees import size

Cohort = int | Literal["auto"]
"""Largest number of clients that are batched, or "auto"."""
BATCHED, SEVERAL = "batched", whole(2, "8")
# Limits of "auto", from the measurements above: most and fewest clients, most parameters of a
# client, and most parameters times rows of a step.
MOST, LEAST, PARAMETERS, WORK = 128, 8, 1 << 16, 1 << 21


@checked_class(
    {},
    size=Role(
        lambda size: size == "auto" or SEVERAL.fits(size),
        "a number of clients >= 2, or 'auto'",
        "cohort='auto'",
    ),
)
@dataclass
class Cohorts:
    """Answers turns of clients, together if their work has the same shape.

    Parameters
    ----------
    size
        Largest number of clients in a cohort. "auto" batches only where measurements say that it is
        faster.
    turns
        Number of turns so far, by phase and by how they were answered: ``"batched"`` or
        ``"one by one: REASON"``.

    Raises
    ------
    ArgumentError
        If `size` is neither "auto" nor a number from 2. While answering, if `size` is a number and
        the local step cannot be batched; under "auto" such clients train one by one.
    """

    size: Cohort
    turns: dict[str, Counter[str]] = field(default_factory=dict)
    _obstacles: dict[str, str] = field(default_factory=dict, repr=False)

    def answers(self, sides: Sides, turns: Iterable[Turn]) -> Iterator[tuple[Task, Outcome]]:
        """Yield every client's task and outcome, in the order of the turns. As many turns are read
        ahead as fit in a cohort.
        """
        turns = iter(turns)
        while chunk := list(islice(turns, MOST if self.size == "auto" else self.size)):
            tasks = [turn.task for turn in chunk]
            yield from zip(tasks, self._chunk(sides, chunk), strict=True)

    def _chunk(self, sides: Sides, chunk: Sequence[Turn]) -> list[Outcome]:
        outcomes, groups = dict[int, Outcome](), dict[Hashable, dict[int, Ready]]()
        for number, turn in enumerate(chunk):
            ready = begun(sides, turn)
            if isinstance(ready, ClientError):
                outcomes[number] = ready
            else:
                groups.setdefault(shape_of(ready.side.core, _member(ready)), {})[number] = ready
        for group in groups.values():
            ended = self._fits(list(group.values()))
            for (number, client), (fit, seconds) in zip(group.items(), ended, strict=True):
                outcomes[number] = packed(client.turn, client.side, fit, client.seconds + seconds)
        return [outcomes[number] for number in range(len(chunk))]

    def _fits(self, clients: Sequence[Ready]) -> list[tuple[Fit | ClientError, float]]:
        """Return the result of the local step, and its seconds, for each client of a group of one
        shape.
        """
        members, side = [*map(_member, clients)], clients[0].side
        phase, local, count = members[0].task.phase, side.core, len(clients)
        done = self.turns.setdefault(phase, Counter())
        reason = self._obstacle(phase, side) or self._no_gain(local, members)
        if not reason:
            start = time.perf_counter()
            try:
                fits = together(seams.descent_of(local), members)
            except Exception as problem:
                # Rows were checked client by client, so a failure here means that the network
                # cannot be batched.
                first = str(problem).partition("\n")[0]
                self._obstacles[phase] = f"{type(problem).__name__}: {first}"
                reason = self._obstacle(phase, side)
            else:
                done[BATCHED] += count
                share = (time.perf_counter() - start) / count
                ended = zip(clients, fits, strict=True)
                return [(_closed(client, fit, count), share) for client, fit in ended]
        done[f"one by one: {reason}"] += count
        return [trained(client) for client in clients]

    def _obstacle(self, phase: str, side: ClientSide) -> str:
        reason = self._obstacles.get(phase) or obstacle(side.core)
        if reason and self.size != "auto":
            raise ArgumentError(
                f"cohort, phase {phase!r}", "a local that can be batched", reason, "cohort='auto'"
            )
        return reason

    def _no_gain(self, local: Local, members: Sequence[Member]) -> str:
        if isinstance(members[0].data.inputs, Packed):
            return "rows are dicts or tuples"
        rows, parameters = rows_of(local, members[0]), size(members[0].message)
        if not rows or len(members) == 1:
            return "no others of its shape" if rows else "no rows"
        if self.size != "auto" or pays(parameters, rows, len(members)):
            return ""
        return (
            f"nothing is won by batching {plural(len(members), 'client')} "
            f"of {plural(parameters, 'parameter', ',')} "
            f"and {plural(rows, 'row')} a step"
        )


def pays(parameters: int, rows: int, clients: int) -> bool:
    """Return whether measurements say that batching is faster.

    Parameters
    ----------
    parameters, rows
        Number of parameters, and of rows per step, of each client.
    clients
        Number of clients.
    """
    return clients >= LEAST and parameters <= PARAMETERS and parameters * rows <= WORK


def _member(client: Ready) -> Member:
    opened = client.opened
    return Member(client.turn.task, opened.data, opened.message, opened.options)


def _closed(client: Ready, fit: Fit | ClientError, clients: int) -> Fit | ClientError:
    if isinstance(fit, ClientError):
        return fit
    work = partial(client.side.closed, client.opened, fit, client.turn.memory)
    closed = attempt(client.turn.task, "fit", work)
    if isinstance(closed, ClientError):
        return closed
    return closed._replace(info={**closed.info, "cohort": float(clients)})
