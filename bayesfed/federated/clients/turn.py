"""One client's turn: decode the message, run the local step, pack the payload. A pure function.

The same function runs in the server's process, in a worker or on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import torch

from bayesfed.compress.codecs import Codec
from bayesfed.compress.feedback import ErrorFeedback
from bayesfed.data.dataset import Dataset
from bayesfed.errors import BayesfedError, ClientError, DataError, RefusedError
from bayesfed.errors.checks import shown
from bayesfed.federated.clients.envelopes import Envelope, masked
from bayesfed.federated.core.options import LocalOptions, options_of, read_options
from bayesfed.federated.core.protocols import Direction, Fit, Info, Link, Local, Scalar
from bayesfed.keys import Key
from bayesfed.trees import Tree, to

Result = TypeVar("Result")
# Fields of a message's header that say whom it is for.
ADDRESS = ("client", "round", "phase")


@dataclass(frozen=True)
class Task:
    """What one client is asked: the message and how to read and answer it; `run` and the fields
    before the message make the envelope.
    """

    client: str
    round: int
    phase: str
    seed: int
    message: bytes
    down: Codec
    up: Codec
    link: Link
    run: str = ""

    def envelope(self, direction: Direction) -> Envelope:
        """Return what the message to this client, or its answer, is bound to."""
        return Envelope(self.run, self.seed, direction, self.client, self.round, self.phase)

    @property
    def key(self) -> Key:
        """The stream of this client, round and phase; both ends can rebuild it."""
        return Key(self.seed, self.phase, self.round, self.client)


@dataclass(frozen=True)
class Reply:
    """What comes back: packed payload, the memory to keep if it is accepted, figures, seconds."""

    packed: bytes
    memory: Tree
    info: Info
    seconds: float


Outcome = Reply | ClientError


def answer(
    task: Task, local: Local, data: Dataset, memories: Tree, secret: bytes | None = None
) -> Outcome:
    """Run one client; a failure comes back as a `ClientError` that names the stage, never as a
    raise.

    Parameters
    ----------
    secret
        The client's own, in keyed mode: a message that was not sealed with it is not trained on.
    """
    start = time.perf_counter()
    received = attempt(task, "decode", lambda: read(task, local, secret))
    if isinstance(received, ClientError):
        return received
    fit = attempt(task, "fit", lambda: fitted(task, local, data, memories, *received))
    if isinstance(fit, ClientError):
        return fit
    return attempt(task, "encode", lambda: reply(task, fit, memories, secret, start))


def answered(
    task: Task,
    locals: Mapping[str, Local],
    data: Mapping[str, Dataset],
    memories: Tree,
    secret: bytes | None = None,
) -> Outcome:
    """Load a client's rows and run it; rows that cannot be loaded are a failure of that client at
    stage "load".
    """
    rows = loaded(task, data)
    return (
        rows
        if isinstance(rows, ClientError)
        else answer(task, locals[task.phase], rows, memories, secret)
    )


def loaded(task: Task, data: Mapping[str, Dataset]) -> Dataset | ClientError:
    """Return the rows of the client of a task, or its failure."""
    return attempt(task, "load", lambda: data[task.client])


def attempt(task: Task, stage: str, work: Callable[[], Result]) -> Result | ClientError:
    """Do one stage of a client's turn; a failure comes back as a `ClientError`."""
    try:
        return work()
    except BayesfedError as problem:
        field = problem.field if stage == "decode" and isinstance(problem, RefusedError) else ""
        return ClientError(task.client, task.round, stage, str(problem), field)
    except (Exception, SystemExit) as problem:
        # Whatever a user's network, likelihood or local step raises belongs to this client alone,
        # leaving among it.
        return ClientError(task.client, task.round, stage, f"{type(problem).__name__}: {problem}")


def read(task: Task, local: Local, secret: bytes | None) -> tuple[Tree, LocalOptions]:
    """Decode the message to a client as (tree, options), the options as the record that its local
    step reads.
    """
    tree, header = task.down.decode(
        masked(task.message, task.envelope("down"), secret), task.key.child("down")
    )
    return tree, read_options(
        options_of(local), {name: value for name, value in header.items() if name not in ADDRESS}
    )


def fitted(
    task: Task, local: Local, data: Dataset, memories: Tree, message: Tree, options: LocalOptions
) -> Fit:
    """Run the local step, on the device of the data."""
    with one_thread():
        try:
            fit = local.fit(
                to(message, data.inputs.device), memories, data, task.key.child("fit"), options
            )
        except RuntimeError as problem:
            # Torch says which of its shapes differ, not whose they are.
            if not any(
                word in str(problem) for word in ("mat1", "dtype", "shape", "size", "result type")
            ):
                raise
            actual = (
                f"inputs {shown(data.inputs)}, targets {shown(data.targets)}: "
                f"{str(problem).splitlines()[0]}"
            )
            hint = "rows of the width and type that the network takes"
            if "result type" in str(problem):
                hint = (
                    "obs=targets.float() in a model whose distribution has fractions or "
                    "Bernoulli's zeros and ones"
                )
            raise DataError("local step", "rows that the network takes", actual, hint) from problem
    if (
        not isinstance(fit, Fit)
        or not isinstance(fit.payload, dict)
        or not isinstance(fit.memory, dict)
    ):
        actual = (
            shown(fit)
            if not isinstance(fit, Fit)
            else f"payload {shown(fit.payload)}, memory {shown(fit.memory)}"
        )
        raise DataError(
            f"{type(local).__name__}.fit",
            "Fit(payload, memory, info) of dictionaries",
            actual,
            "Fit(tree, {}, {})",
        )
    return fit


def reply(task: Task, fit: Fit, memories: Tree, secret: bytes | None, start: float) -> Reply:
    """Pack what the local step returned; its seconds count from `start`, of `time.perf_counter`."""
    payload, memory, key = fit.payload, fit.memory, task.key.child("up")
    meta: dict[str, Scalar] = {"client": task.client, "round": task.round, "phase": task.phase}
    if isinstance(task.up, ErrorFeedback):
        # A local step may have moved the residuals, as `Holding` does where a support has changed.
        payload = task.up.corrected(payload, memories | memory)
    packed = task.link.pack(payload, task.up, meta, key)
    if isinstance(task.up, ErrorFeedback):
        memory = memory | task.up.residual(payload, packed, key)
    packed = masked(packed, task.envelope("up"), secret)
    return Reply(packed, to(memory, "cpu"), fit.info, time.perf_counter() - start)


@contextmanager
def one_thread() -> Iterator[None]:
    """Pin one intra-op thread: BLAS sums differ in their last bits between thread counts."""
    before = torch.get_num_threads()
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)
