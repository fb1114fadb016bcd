"""Cohorts: clients of one shape take their gradient steps at once (`bayesfed.federated.clients.vmap_training`).

Only the steps are batched. Message, payload, memory, codec and failures stay each client's own, so links, gate, ledger, error feedback and refusals
are as without; the last bits of payloads are not.

When it pays was measured by `benchmarks/cohorts.py`: seconds of a round with a cohort over those without, one thread, on a busy machine, so that
they are about so much::

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

Four clients of 64-32-10 take 1.1 to 1.2. Hence "auto": 8 clients or more of at most 65,536 parameters each, those times rows at most two million.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Literal, NamedTuple

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, ClientError, complain
from bayesfed.federated.clients.turn import Outcome, Task, attempt, fitted, read, reply
from bayesfed.federated.clients.vmap_training import Member, obstacle, rows_of, shape_of, together
from bayesfed.federated.core.protocols import Fit, Local
from bayesfed.federated.training.descent import Descent
from bayesfed.trees import Tree, size

Cohort = int | Literal["auto"]
BATCHED = "batched"
# The choice by measurement: clients at most and at least, parameters of one at most, and those times rows of its step.
MOST, LEAST, PARAMETERS, WORK = 128, 8, 1 << 16, 1 << 21


class Turn(NamedTuple):
    """One client's turn: what it is asked, and what it has."""

    task: Task
    data: Dataset
    memory: Tree
    secret: bytes | None = None


@dataclass
class Cohorts:
    """Answer turns, those of clients of one shape together.

    Parameters
    ----------
    size
        Clients at most in a cohort; "auto" batches those of which measurement says that something is won, and no others.
    turns
        What was done so far, counted by phase: ``"batched"``, or ``"one by one: REASON"``.

    Raises
    ------
    ArgumentError
        If `size` is neither. While answering, if a number was given and the local cannot be batched; "auto" goes on one by one.
    """

    size: Cohort
    turns: dict[str, Counter[str]] = field(default_factory=dict)
    _obstacles: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.size != "auto" and (not isinstance(self.size, int) or isinstance(self.size, bool) or self.size < 2):
            raise ArgumentError(complain("cohort", expected="a number of clients >= 2, or 'auto'", actual=repr(self.size), hint="'auto'"))

    def answers(self, locals: Mapping[str, Local], turns: Iterable[Turn]) -> Iterator[Outcome]:
        """Yield every client's outcome, in order; as many as a cohort may have are asked ahead."""
        turns = iter(turns)
        while chunk := list(islice(turns, MOST if self.size == "auto" else self.size)):
            yield from self._chunk(locals, chunk)

    def _chunk(self, locals: Mapping[str, Local], chunk: Sequence[Turn]) -> list[Outcome]:
        outcomes, groups = dict[int, Outcome](), dict[Hashable, dict[int, tuple[Turn, Member, float]]]()
        for number, turn in enumerate(chunk):
            start = time.perf_counter()
            received = attempt(turn.task, "decode", partial(read, turn.task, locals[turn.task.phase], turn.secret))
            if isinstance(received, ClientError):
                outcomes[number] = received
                continue
            member = Member(turn.task, turn.data, *received)
            shape = shape_of(locals[turn.task.phase], member)
            groups.setdefault(shape, {})[number] = (turn, member, time.perf_counter() - start)
        for group in groups.values():
            turns, members, seconds = zip(*group.values(), strict=True)
            for number, turn, read_s, (fit, fit_s) in zip(group, turns, seconds, self._fits(locals, turns, members), strict=True):
                outcomes[number] = _packed(turn, fit, read_s + fit_s)
        return [outcomes[number] for number in range(len(chunk))]

    def _fits(self, locals: Mapping[str, Local], turns: Sequence[Turn], members: Sequence[Member]) -> list[tuple[Fit | ClientError, float]]:
        """Return what the local step makes of clients of one shape, and the seconds of each."""
        phase = members[0].task.phase
        local, done = locals[phase], self.turns.setdefault(phase, Counter())
        reason = self._obstacle(phase, local) or self._no_gain(local, members)
        if not reason and isinstance(local, Descent):
            start = time.perf_counter()
            try:
                fits = together(local, members)
            except Exception as problem:
                # Rows were checked client by client: what fails here is what cannot be batched.
                self._obstacles[phase] = f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"
                reason = self._obstacle(phase, local)
            else:
                done[BATCHED] += len(members)
                share = (time.perf_counter() - start) / len(members)
                return [(_noted(fit, len(members)), share) for fit in fits]
        done[f"one by one: {reason}"] += len(members)
        return [_alone(local, turn, member) for turn, member in zip(turns, members, strict=True)]

    def _obstacle(self, phase: str, local: Local) -> str:
        reason = self._obstacles.get(phase) or obstacle(local)
        if reason and self.size != "auto":
            raise ArgumentError(complain(f"cohort, phase {phase!r}", expected="a local that can be batched", actual=reason, hint="cohort='auto'"))
        return reason

    def _no_gain(self, local: Local, members: Sequence[Member]) -> str:
        rows, parameters = rows_of(local, members[0]), size(members[0].message)
        if not rows or len(members) == 1:
            return "no others of its shape" if rows else "no rows"
        if self.size != "auto" or pays(parameters, rows, len(members)):
            return ""
        return f"nothing is won by batching {len(members)} clients of {parameters:,} parameters and {rows} rows a step"


def pays(parameters: int, rows: int, clients: int) -> bool:
    """Say whether so many clients win something together, by measurement: of their parameters, and rows a step of each."""
    return clients >= LEAST and parameters <= PARAMETERS and parameters * rows <= WORK


def _alone(local: Local, turn: Turn, member: Member) -> tuple[Fit | ClientError, float]:
    start = time.perf_counter()
    work = partial(fitted, turn.task, local, turn.data, turn.memory, member.message, member.options)
    return attempt(turn.task, "fit", work), time.perf_counter() - start


def _noted(fit: Fit | ClientError, clients: int) -> Fit | ClientError:
    return fit if isinstance(fit, ClientError) else fit._replace(info={**fit.info, "cohort": float(clients)})


def _packed(turn: Turn, fit: Fit | ClientError, seconds: float) -> Outcome:
    if isinstance(fit, ClientError):
        return fit
    return attempt(turn.task, "encode", partial(reply, turn.task, fit, turn.memory, turn.secret, time.perf_counter() - seconds))
