"""One client's turn: decode the message, run the local step, pack the payload. A pure function.

The same function runs in the server's process, in a worker or on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, TypeVar

import torch

from bayesfed.compress import Codec
from bayesfed.compress.codecs import in_types
from bayesfed.compress.wire import forget
from bayesfed.data import Dataset
from bayesfed.errors import (
    ArgumentError,
    BayesfedError,
    ClientError,
    DataError,
    RefusedError,
    public_text,
)
from bayesfed.errors.checks import shown
from bayesfed.federated.clients.envelopes import Envelope, masked, opened
from bayesfed.federated.clients.side import ClientSide, Opened, Sides
from bayesfed.federated.core import Direction, Fit, Info, Link, LocalOptions, Scalar, read_options
from bayesfed.keys import Key, forked, seeded
from bayesfed.models.calling import check_norms
from bayesfed.models.live import untouched
from bayesfed.models.misfits import misfit
from bayesfed.trees import Tree, to

Result = TypeVar("Result")


@dataclass
class Task:
    """What one client is asked: the message and how to read and answer it; `run` and the fields
    before the message make the envelope. `read` takes the message, which may be as large as the
    model, out of the task, and notes the types of its leaves.
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
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict, repr=False)

    def envelope(self, direction: Direction) -> Envelope:
        """Return what the message to this client, or its answer, is bound to."""
        return Envelope(self.run, self.seed, direction, self.client, self.round, self.phase)

    @property
    def address(self) -> dict[str, Scalar]:
        """The fields of a message's header that say which exchange it belongs to."""
        return {"client": self.client, "round": self.round, "phase": self.phase}

    def error(self, stage: str, reason: str, field: str = "", public: str = "") -> ClientError:
        """Return the failure of this client at a stage."""
        return ClientError(self.client, self.round, stage, reason, field, public)

    @cached_property
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


class Turn(NamedTuple):
    """One client's turn: its task, all clients' rows by name, its memory, and in keyed mode its
    secret.
    """

    task: Task
    data: Mapping[str, Dataset]
    memory: Tree
    secret: bytes | None = None


class Ready(NamedTuple):
    """A client that is ready to train: its turn and side, the turn as the core gets it, and the
    seconds that this took.
    """

    turn: Turn
    side: ClientSide
    opened: Opened
    seconds: float


def answered(sides: Sides, turn: Turn) -> Outcome:
    """Load a client's rows and run it; a failure comes back as a `ClientError` that names the
    stage, never as a raise.

    In keyed mode, a message that was not sealed with the client's own secret is not trained on.
    """
    ready = begun(sides, turn)
    if isinstance(ready, ClientError):
        return ready
    fit, seconds = trained(ready)
    side, seconds = ready.side, ready.seconds + seconds
    # As large as the model.
    del ready
    return packed(turn, side, fit, seconds)


def begun(sides: Sides, turn: Turn) -> Ready | ClientError:
    """Load a client's rows, read its message, and let its layers open it, on the device of the
    rows.
    """
    task, stage = turn.task, "load"
    try:
        side, data = sides[task.phase], turn.data[task.client]
        stage, start = "decode", time.perf_counter()
        with gradients():
            message, options = read(task, side, turn.secret)
        stage, there = "fit", to(message, data.inputs.device)
        # Without layers nothing is run yet.
        with _alone(task, side) if side.layers else nullcontext():
            opened = side.opened(there, turn.memory, data, task.key.child("fit"), options)
    except (Exception, SystemExit) as problem:
        return failure(task, stage, problem)
    return Ready(turn, side, opened, time.perf_counter() - start)


def trained(client: Ready) -> tuple[Fit | ClientError, float]:
    """Run the local step; return its result, and the seconds that it took."""
    start, (task, _, memory, _) = time.perf_counter(), client.turn
    fit: Fit | ClientError
    try:
        # A run may be started where torch takes no gradients.
        with _alone(task, client.side), rows_that_fit(client.opened.data), gradients():
            fit = client.side.run(client.opened, memory, task.key.child("fit"))
    except (Exception, SystemExit) as problem:
        fit = failure(task, "fit", problem)
    return fit, time.perf_counter() - start


def packed(turn: Turn, side: ClientSide, fit: Fit | ClientError, seconds: float) -> Outcome:
    """Pack what the local step returned, `seconds` after the turn began."""
    task, start = turn.task, time.perf_counter() - seconds
    if isinstance(fit, ClientError):
        return fit
    return attempt(task, "encode", lambda: reply(task, side, fit, turn.secret, start))


def attempt(task: Task, stage: str, work: Callable[[], Result]) -> Result | ClientError:
    """Do one stage of a client's turn; a failure comes back as a `ClientError`."""
    try:
        return work()
    except (Exception, SystemExit) as problem:
        # Whatever a user's network, likelihood or local step raises belongs to this client alone,
        # leaving among it.
        return failure(task, stage, problem)


def failure(task: Task, stage: str, problem: BaseException) -> ClientError:
    """Return the failure of a client at a stage of its turn."""
    field = problem.field if stage == "decode" and isinstance(problem, RefusedError) else ""
    made = task.error(stage, reason_of(problem), field, public_text(problem))
    # Of a client in this process, the traceback too.
    made.__cause__ = problem
    return made


def reason_of(problem: BaseException) -> str:
    """Return what went wrong: of errors that are not of this package, their class as well. It may
    hold cells of rows, so it stays on this machine (`bayesfed.errors.public_text`).
    """
    if isinstance(problem, BayesfedError):
        return str(problem)
    notes = "".join(f" ({note})" for note in vars(problem).get("__notes__", ()))
    return f"{type(problem).__name__}: {problem}{notes}"


def read(task: Task, side: ClientSide, secret: bytes | None) -> tuple[Tree, LocalOptions]:
    """Take the message out of a task and decode it as (tree, options), the options as the record
    that the client's local step reads.
    """
    message, task.message = opened(task.message, task.envelope("down"), secret), b""
    tree, header = task.down.decode(message, task.key.child("down"))
    forget()
    task.dtypes = {name: leaf.dtype for name, leaf in tree.items()}
    own = {name: value for name, value in header.items() if name not in task.address}
    return tree, read_options(side.options, own)


@contextmanager
def _alone(task: Task, side: ClientSide) -> Iterator[None]:
    """Lend the networks and the global generators, seeded by client, round and phase, to a part of
    a turn.
    """
    key = task.key.child("global")
    with ExitStack() as stack:
        stack.enter_context(one_thread())
        stack.enter_context(forked(key))
        changed = stack.enter_context(untouched(side.networks))
        stack.enter_context(seeded(side.generators, key))
        yield
    if changed:
        hint = 'buffers="mean" or "local" where the method has them (fed_avg, fed_hm, hetero_fl)'
        actual = f"{changed}, changed by a forward pass in training mode"
        raise ArgumentError("network", "no running statistics", actual, hint)


@contextmanager
def rows_that_fit(data: Dataset) -> Iterator[None]:
    """Say what to do where a cause is known: a layer that was given another width or type than it
    takes, whole numbers in the place of fractions. Other errors are the user's own, and are left.
    """
    try:
        yield
    except (RuntimeError, ValueError) as problem:
        check_norms(problem)
        if layer := misfit(problem):
            hint = "rows of the width and type that the network takes"
        elif "result type" in str(problem):
            hint = (
                "obs=targets.float() in a model whose distribution has fractions or "
                "Bernoulli's zeros and ones"
            )
        else:
            raise
        said = "; ".join(filter(None, (str(problem).splitlines()[0], layer)))
        actual = f"inputs {shown(data.inputs)}, targets {shown(data.targets)}: {said}"
        raise DataError("local step", "rows that the network takes", actual, hint) from problem


def reply(task: Task, side: ClientSide, fit: Fit, secret: bytes | None, start: float) -> Reply:
    """Pack what the local step returned; its seconds count from `start`, of `time.perf_counter`."""
    key = task.key.child("up")
    payload = in_types(fit.payload, task.dtypes, task.up)
    packed = task.link.pack(payload, task.up, task.address, key)
    memory = side.coded(fit.memory, payload, lambda: task.up.decode(packed, key)[0])
    packed = masked(packed, task.envelope("up"), secret)
    return Reply(packed, to(memory, "cpu"), fit.info, time.perf_counter() - start)


@contextmanager
def gradients() -> Iterator[None]:
    """Let torch take gradients, also under `torch.no_grad` or `torch.inference_mode`."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


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
