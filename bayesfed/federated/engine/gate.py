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

    secrets: Mapping[str, bytes] = field(repr=False)
    _asked: dict[str, tuple[Task, int]] = field(default_factory=dict, repr=False)
    _answered: set[str] = field(default_factory=set)

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

    def take(self, task: Task, outcome: Outcome) -> bytes:
        """Return the message of an answer, taken out of its envelope, and note that the client has
        answered. For a client that failed, which counts as its answer, the message is empty.

        Raises
        ------
        UpdateError, WireError
            With field "client" if the client was not asked; "run", "round" or "phase" for a stale
            answer; "duplicate" for a second answer; as `opened`; with "info" if the client's
            figures are not numbers. The client may then still answer.
        """
        if task.client not in self._asked:
            raise _refusal("client", "one that was asked", f"client {task.client!r}")
        expected, limit = self._asked[task.client]
        for name in ("run", "round", "phase", "seed"):
            if (claimed := getattr(task, name)) != (value := getattr(expected, name)):
                raise _refusal(
                    "run" if name == "seed" else name,
                    f"one of {name} {value!r}",
                    f"a stale one of {name} {claimed!r}",
                )
        if task.client in self._answered:
            raise _refusal("duplicate", "one answer a client", "a second one")
        plain = b""
        if isinstance(outcome, Reply):
            envelope, secret = expected.envelope("up"), self.secrets.get(task.client)
            plain = opened(outcome.packed, envelope, secret, limit=limit)
            _check_figures(outcome)
        self._answered.add(task.client)
        return plain

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
        expected = f"at most {MOST_FIGURES} numbers by name"
        raise _refusal("info", expected, odd, "Fit(info={'loss': float(loss)})")
    if not (isinstance(reply.seconds, int | float) and 0 <= reply.seconds < math.inf):
        raise _refusal("info", "seconds >= 0", reply.seconds, "time.perf_counter() - start")


def _refusal(
    field: str, expected: object, actual: object, hint: str = "this exchange's own"
) -> UpdateError:
    return UpdateError("answer", expected, actual, hint, field=field)
