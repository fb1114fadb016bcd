"""The protocols of a federated algorithm: the parts that a published system is made of.

    state -publish-> view.restrict -[codec]-> local.fit -> payload -link-> lift, + -> server.step ->
    state
            server     per client     down     client               up       server

A system is a function that returns an `Algorithm`. It contains no loop over rounds or clients.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import torch

from bayesfed.compress import Cast, Codec
from bayesfed.data import Dataset
from bayesfed.errors import BayesfedError, RefusedError
from bayesfed.federated.core.costs import Cost
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.update import Kind, Reducer, Update
from bayesfed.keys import Key
from bayesfed.trees import Tree
from bayesfed.wireless import Load

Scalar = str | int | float | bool
Info = dict[str, float]
Direction = Literal["down", "up"]
# Longest reason for a refusal that a report quotes, in characters.
LONGEST_REASON = 500


@dataclass(frozen=True)
class Profile:
    """What the server knows about a client.

    Parameters
    ----------
    name
        Name of the client.
    samples
        Number of rows that the client holds.
    device
        Figures of its device by name, each with its unit: ``"memory_bytes"``.
    pool
        Number of rows of all clients of the pool, which a run fills in; 0 outside of a run.
    """

    name: str
    samples: int
    device: Mapping[str, float] = field(default_factory=dict)
    pool: int = 0


class View(Protocol):
    """The part of the model that a client gets, and how its payload fits back into the whole."""

    def restrict(self, tree: Tree) -> Tree:
        """Return the part of a published tree that this client receives."""

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Check a client's payload and return it as a weighted update in the shapes of the whole
        model.

        Parameters
        ----------
        payload
            Leaves as the client sent them, decoded.
        weight
            Weight of the client in the sum.
        kind
            What the numbers mean.

        Raises
        ------
        UpdateError
            If names, shapes or values are not what this view expects.
        """


class Fit(NamedTuple):
    """What a local step returns: the payload for the server, the memory that the client keeps, and
    figures for the report.
    """

    payload: Tree
    memory: Tree
    info: Info


class Local(Protocol):
    """What a client computes. It is deterministic given the key and changes no global state. The
    global generators are seeded by client, phase and round during a client's turn.
    """

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean."""

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return payload, memory and figures.

        Parameters
        ----------
        message
            What the client received, decoded.
        memory
            What this step returned as memory when its payload was last accepted. Empty in the first
            round, and always for most methods.
        data
            The client's rows.
        key
            Source of all random numbers.
        options
            Options that came with the message.
        """


class Link(Protocol):
    """How payloads reach the server: as bytes, one by one, or added by the radio channel."""

    def pack(self, payload: Tree, codec: Codec, meta: Mapping[str, Scalar], key: Key) -> bytes:
        """Return a payload as bytes. This runs at the client.

        Parameters
        ----------
        payload
            Leaves to send.
        codec
            Codec that was assigned to the client.
        meta
            Header of the message: client, round and phase.
        key
            Source of the codec's random numbers, which the server can rebuild.
        """

    def collect(self, arrivals: Iterable[Arrival], reducer: Reducer, key: Key) -> Iterator[Arrival]:
        """Receive, lift and add every arrival. Yield each one, in order and with its cost, once it
        is decided whether it is in the sum.

        An arrival that is refused or not heard carries the reason; the others are not affected.

        Parameters
        ----------
        arrivals
            Packed payloads in the order of the clients' names.
        reducer
            What the lifted payloads are added to.
        key
            Source of random numbers of the round, such as fading and noise.
        """


@dataclass(frozen=True)
class Assignment:
    """What one client is to do in this round.

    Parameters
    ----------
    view
        The part of the model that the client gets.
    weight
        Weight of the client in the sum; zero is allowed.
    down, up
        Codecs of the message to the client and of its payload back.
    options
        Options that are sent to the local step with the message: a factor on the learning rate, the
        likelihood scale, ...
    load
        Planned time and energy, for links that count seconds and joules (`Cell`); not sent to the
        client.
    """

    view: View
    weight: float
    down: Codec = Cast(32)
    up: Codec = Cast(32)
    options: LocalOptions = LocalOptions()
    load: Load | None = None


@dataclass(frozen=True)
class Skip:
    """A client that is left out of a round before anything is sent.

    Parameters
    ----------
    reason
        Reason for the report.
    """

    reason: str


@dataclass
class Arrival:
    """One client's packed payload on its way into the sum, and what became of it.

    Parameters
    ----------
    client, round, phase
        The exchange that the payload belongs to.
    packed
        The payload as `Link.pack` returned it.
    assignment
        What the client was told to do.
    kind
        What the payload's numbers mean.
    key
        Key that the payload was packed with.
    cost
        What it took to send. Set by the link.
    refusal
        Why the payload could not be added: an error of the client, which leaves it out of the
        round. Empty if there was none.
    silence
        Why the payload was not heard, through no fault of the client. Empty if it was.
    field
        What is wrong with a refused payload, in one word, as in `Row`.
    dtypes
        Types of the leaves that the client was sent, by name; None if they are not known.
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
    dtypes: Mapping[str, torch.dtype] | None = None

    def refuse(self, problem: Exception) -> None:
        """Leave this payload out of the sum because of `problem`. Only a `RefusedError` says which
        field is wrong.
        """
        text = (
            str(problem)
            if isinstance(problem, BayesfedError)
            else f"{type(problem).__name__}: {problem}"
        )
        self.refusal = abridged(text)
        self.field = problem.field if isinstance(problem, RefusedError) else RefusedError.field


def abridged(text: str) -> str:
    """Return a reason, which may quote a client, cut to the length that a report can hold."""
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + " ..."
