"""The seams of a federated algorithm: what a published system is made of.

    state -publish-> view.restrict -[codec]-> local.fit -> payload -link-> lift, + -> server.step -> state
            server     per client     down     client               up       server

A system is a function that returns an `Algorithm`. It never contains a loop over rounds or clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from bayesfed.compress.codecs import Cast, Codec
from bayesfed.data.dataset import Dataset
from bayesfed.errors import BayesfedError, RefusedError
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.update import Kind, Reducer, Update
from bayesfed.keys import Key
from bayesfed.trees import Tree
from bayesfed.wireless.energy import Load

Scalar = str | int | float | bool
Info = dict[str, float]
Direction = Literal["down", "up"]
LONGEST_REASON = 500
# Ends the name of a leaf that says what changed since the client last heard.
CHANGE = ".change"


@dataclass(frozen=True)
class Profile:
    """What the server knows of a client: its name, how many rows it holds, and any device figures."""

    name: str
    samples: int
    device: Mapping[str, float] = field(default_factory=dict)


class View(Protocol):
    """Which part of the model a client gets, and how what it returns fits back."""

    def restrict(self, tree: Tree) -> Tree:
        """Return the part of a published tree that this client receives."""
        ...

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Check a client's payload and return it as a weighted update of full shape.

        Raises
        ------
        UpdateError
            If names, shapes or values are not what this view expects.
        """
        ...


class Fit(NamedTuple):
    """What a local step returns: what travels, what stays with the client, what a human reads."""

    payload: Tree
    memory: Tree
    info: Info


class Local(Protocol):
    """What a client computes. Deterministic given the key; touches no global state."""

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""
        ...

    @property
    def uses_global_randomness(self) -> bool:
        """True if it draws from torch's global generator, which threads would share."""
        ...

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Return payload, memory and info. Memory is empty in the first round, and for most methods always."""
        ...


class Link(Protocol):
    """How payloads reach the server: as bytes one by one, or added on the air."""

    def pack(self, payload: Tree, codec: Codec, meta: Mapping[str, Scalar], key: Key) -> bytes:
        """Turn a payload into what is sent; runs at the client. `codec` is the client's own."""
        ...

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Receive, lift and add every arrival; yield each, in order, once it is in the sum or out of it, with what it cost.

        One that is refused or not heard says why, and the rest go on. `key` is the round's own.
        """
        ...


@dataclass(frozen=True)
class Assignment:
    """What one client is told to do this round.

    Parameters
    ----------
    view
        The part of the model it gets.
    weight
        Its weight in the sum; zero is legal.
    down, up
        Codecs of the message to it and of its payload back.
    options
        What travels with the message to the local step: a factor on the learning rate, the likelihood scale, ...
    load
        What it is asked to spend, for links that count seconds and joules (`Cell`); stays with the server.
    """

    view: View
    weight: float
    down: Codec = Cast(32)
    up: Codec = Cast(32)
    options: LocalOptions = LocalOptions()
    load: Load | None = None


@dataclass(frozen=True)
class Skip:
    """Leave a client out of a round before anything is sent; the report has the reason."""

    reason: str


@dataclass(frozen=True)
class Cost:
    """What one payload took to send.

    Parameters
    ----------
    bits
        Of messages, headers included.
    channel_uses
        Sub-carriers of an analog link, shared by all clients of a round.
    mean_power_w, peak_power_w
        Of an analog link's symbols: their mean and the largest.
    compute_s, uplink_s, compute_j, uplink_j
        Of a client under a `Load`: its training and its sending.
    macs
        Multiply-accumulates of that training.
    alpha, beta
        Share of the network's work and of the update's bits that were planned.
    overrun_bits
        By how much the message is longer than planned.
    """

    bits: int = 0
    channel_uses: int = 0
    mean_power_w: float = 0.0
    peak_power_w: float = 0.0
    compute_s: float = 0.0
    uplink_s: float = 0.0
    compute_j: float = 0.0
    uplink_j: float = 0.0
    macs: float = 0.0
    alpha: float = 0.0
    beta: float = 0.0
    overrun_bits: int = 0

    @property
    def latency_s(self) -> float:
        """Training, then sending."""
        return self.compute_s + self.uplink_s

    @property
    def energy_j(self) -> float:
        """Of both."""
        return self.compute_j + self.uplink_j

    @property
    def learning_gain(self) -> float:
        """``alpha^4 beta`` (AnycostFL (19)), 0 of what was not planned."""
        return self.alpha**4 * self.beta


@dataclass
class Arrival:
    """One client's packed payload on its way into the sum, and what the link makes of it.

    Parameters
    ----------
    cost
        What was sent.
    refusal
        Why the payload was not fit to be added: an error of the client's, which leaves it out of the round.
    silence
        Why the payload was never heard, through no fault of the client's.
    field
        Of the refusal, as in `Row`.
    """

    client: str
    round: int
    packed: bytes
    assignment: Assignment
    kind: Kind
    key: Key
    cost: Cost = Cost()
    refusal: str = ""
    silence: str = ""
    phase: str = ""
    field: str = ""

    def refuse(self, problem: Exception) -> None:
        """Leave this client's payload out of the sum for what went wrong with it; only an error of ours knows the field."""
        text = str(problem) if isinstance(problem, BayesfedError) else f"{type(problem).__name__}: {problem}"
        self.refusal = abridged(text)
        self.field = problem.field if isinstance(problem, RefusedError) else RefusedError.field


def abridged(text: str) -> str:
    """Return a reason that may quote a client, cut to what a report can hold."""
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + " ..."
