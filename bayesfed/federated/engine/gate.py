"""The gate: checks on everything that arrives in a phase, before it reaches the sum.

A pool may pass on whatever it receives: second answers, answers to earlier rounds, answers of
clients that were not asked, and forged bytes. The gate lets one sound message per client through.
The link then decodes it and checks its contents (`bayesfed.federated.links.digital.opened`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from bayesfed.compress.wire import MAX_BYTES
from bayesfed.errors import UpdateError
from bayesfed.errors.checks import shown
from bayesfed.federated.clients import Outcome, Reply, Task, opened
from bayesfed.trees import Tree

# Bytes that an answer may have, as a message and decoded: LEAST for any answer, plus TIMES the
# bytes that the client was sent.
LEAST, TIMES = 1 << 20, 16
# Most figures that a client may return.
MOST_FIGURES = 64


@dataclass
class Gate:
    """The tasks of one phase of one round, and which clients have answered.

    Parameters
    ----------
    secrets
        Secrets by client, in keyed mode; else empty.
    """

    secrets: Mapping[str, bytes]
    _asked: dict[str, tuple[Task, int]] = field(default_factory=dict, repr=False)
    _answered: set[str] = field(default_factory=set)

    def __repr__(self) -> str:
        return (
            f"Gate({len(self._asked)} asked, {len(self._answered)} "
            f"answered{', keyed' if self.secrets else ''})"
        )

    def ask(self, task: Task, sent: Tree) -> None:
        """Expect an answer to a task, with a limit on its size in proportion to the tree that was
        sent.

        Parameters
        ----------
        task
            Task of a client, without its message, which may be as large as the model, for each of a
            thousand clients.
        sent
            The tree that its message encodes.
        """
        size = sum(leaf.numel() * max(leaf.element_size(), 4) for leaf in sent.values())
        self._asked[task.client] = task, min(LEAST + TIMES * size, MAX_BYTES)

    def turn(self, task: Task) -> None:
        """Raise an error unless an answer to this task is expected.

        Raises
        ------
        UpdateError
            With field "client" if the client was not asked; "run", "round" or "phase" for a stale
            answer; "duplicate" for a second answer.
        """
        if task.client not in self._asked:
            raise _refusal("client", "one that was asked", f"client {task.client!r}")
        expected, _ = self._asked[task.client]
        for name in ("run", "round", "phase", "seed"):
            if (claimed := getattr(task, name)) != (value := getattr(expected, name)):
                raise _refusal(
                    "run" if name == "seed" else name,
                    f"one of {name} {value!r}",
                    f"a stale one of {name} {claimed!r}",
                )
        if task.client in self._answered:
            raise _refusal("duplicate", "one answer a client", "a second one")

    def admit(self, task: Task, reply: Reply) -> bytes:
        """Return the message of an answer, taken out of its envelope, and note that the client has
        answered.

        Raises
        ------
        UpdateError, WireError
            As `turn` and `opened`; with field "info" if the client's figures are not numbers. The
            client may then still answer.
        """
        self.turn(task)
        expected, limit = self._asked[task.client]
        plain = opened(
            reply.packed, expected.envelope("up"), self.secrets.get(task.client), limit=limit
        )
        _check_figures(reply)
        self._answered.add(task.client)
        return plain

    def close(self, task: Task) -> None:
        """Note that a client has failed, which counts as its answer."""
        self._answered.add(task.client)

    def missing(self) -> list[Task]:
        """Return the tasks without an answer."""
        return [task for client, (task, _) in self._asked.items() if client not in self._answered]


def length(outcome: Outcome) -> int:
    """Return the length of an outcome's message in bytes; 0 if there is none."""
    packed = outcome.packed if isinstance(outcome, Reply) else b""
    return len(packed) if isinstance(packed, bytes) else 0


def _check_figures(reply: Reply) -> None:
    info = reply.info
    if not isinstance(info, dict):
        odd = shown(info)
    elif len(info) > MOST_FIGURES:
        odd = f"{len(info)} by name"
    else:
        odd = next(
            (
                f"{name!r} as {shown(value)}"
                for name, value in info.items()
                if not (isinstance(name, str) and isinstance(value, int | float))
            ),
            "",
        )
    if odd:
        expected, hint = f"at most {MOST_FIGURES} numbers by name", "float(figure) in Fit(info=...)"
        raise _refusal("info", expected, odd, hint)
    if not (isinstance(reply.seconds, int | float) and 0 <= reply.seconds < math.inf):
        raise _refusal("info", "seconds >= 0", reply.seconds)


def _refusal(
    field: str, expected: object, actual: object, hint: str = "this exchange's own"
) -> UpdateError:
    return UpdateError("answer", expected, actual, hint, field=field)
