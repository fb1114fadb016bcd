"""What a part may leave out: members of servers, local steps, links and codecs that have a default;
and `Around`, a local step that says of itself what another one does.

Whoever writes a server needs to write no more than `step`. This is the only file that asks whether
a part has a member or is of a class; everything else calls these functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from bayesfed.compress import Codec, ErrorFeedback
from bayesfed.federated.core.algorithm import Phase, Server
from bayesfed.federated.core.layers import Stale
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Link, Local, View
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.core.update import Kind, Reducer, Update
from bayesfed.trees import Shapes, Tree

Gathered = TypeVar("Gathered")


@runtime_checkable
class Publisher(Protocol):
    """A server that decides what clients see of its state."""

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what a client sees in round `round` if it last heard from the server in round
        `version`, or never.
        """


@runtime_checkable
class TakesMomentum(Protocol):
    """A server whose step is no average leaf by leaf, and that says itself what momentum is: of
    products of adapters, of merged weights.
    """

    def with_momentum(self, phase: Phase, optimiser: Any, initial: Tree) -> tuple[Phase, Tree]:
        """Return the server's phase with momentum, whose core has several kinds of leaves (owner
        ""), and further leaves of its state before round 0, by owner and name.

        Parameters
        ----------
        phase
            Phase of the server.
        optimiser
            Rate and momentum.
        initial
            The core's leaves before round 0.
        """


def published(server: Server, state: Tree, round: int, version: int | None) -> Tree:
    """Return what a server publishes: the state itself, unless the server is a `Publisher`."""
    return server.publish(state, round, version) if isinstance(server, Publisher) else state


def steps_alone(server: Server) -> bool:
    """Return whether a server steps even if nobody was heard: its attribute ``steps_alone``."""
    return bool(getattr(server, "steps_alone", False))


def averages(server: Server) -> bool:
    """Return whether a step is a mean, leaf by leaf, of parameters that may take any value: the
    attribute ``averages``.
    """
    return bool(getattr(server, "averages", False))


def takes_momentum(server: Server) -> TakesMomentum | None:
    """Return a server that says itself what momentum is; None for others."""
    return server if isinstance(server, TakesMomentum) else None


def momentum_alone(optimiser: object) -> bool:
    """Return whether an optimiser of the server is momentum and nothing else: its attribute
    ``momentum_alone``.
    """
    return bool(getattr(optimiser, "momentum_alone", False))


def stale(server: Server) -> Stale | None:
    """Return how a server takes answers that were begun from an older state: its attribute
    ``stale``; None if it cannot.
    """
    found: Stale | None = getattr(server, "stale", None)
    return found


def fusion_of(server: Server) -> Any:
    """Return the rule by which a server fuses posteriors: its attribute ``fusion``, or that of the
    server that it is around, its attribute ``server``; or None.
    """
    rule = getattr(server, "fusion", None)
    inner = getattr(server, "server", None)
    return fusion_of(inner) if rule is None and inner is not None else rule


def options_of(local: object) -> type[LocalOptions]:
    """Return the record of options that a local step reads: its attribute ``options``, or
    `LocalOptions`.
    """
    record = getattr(local, "options", LocalOptions)
    return record if isinstance(record, type) and issubclass(record, LocalOptions) else LocalOptions


def descent_of(local: Local) -> Any:
    """Return the gradient steps (`Descent`) that are all that a local step does: its attribute
    ``descent``; None if it does more.
    """
    return getattr(local, "descent", None)


def objective_of(local: object) -> Any:
    """Return the objective of a local step's gradient steps: its attribute ``objective``, or that
    of the step that it is around, its attribute ``local``; None without one.
    """
    found = getattr(local, "objective", None)
    inner = getattr(local, "local", None)
    return objective_of(inner) if found is None and inner is not None else found


def asks(local: Local) -> bool:
    """Return whether a local step asks what rows say of a model, and leaves the client's memory as
    it is: its attribute ``asks``.
    """
    return bool(getattr(local, "asks", False))


def one_by_one(link: Link) -> bool:
    """Return whether a link receives payloads one by one: its attribute ``one_by_one``. A channel
    that adds does not.
    """
    return bool(getattr(link, "one_by_one", False))


def deadline_s(link: Link) -> float:
    """Return the seconds after which a link leaves out an answer: its attribute ``deadline_s``;
    infinity without one.
    """
    return float(getattr(link, "deadline_s", float("inf")))


def adds(phase: Phase) -> bool:
    """Return whether a phase needs no more than the sum of the updates."""
    return phase.reducer is Sum


def total_of(reducer: Reducer) -> Update | None:
    """Return the sum of a reducer; None if there is none, or the reducer is no sum."""
    return reducer.total if isinstance(reducer, Sum) else None


def gathered(reducer: Reducer, kind: type[Gathered]) -> Gathered | None:
    """Return a reducer if it is of a kind; None if it is another."""
    return reducer if isinstance(reducer, kind) else None


def leaves_of(view: View) -> tuple[Shapes, bool] | None:
    """Return the leaves of the updates that a view makes, and whether it covers leading entries
    only: its attribute ``leaves``; None if clients cannot make them by themselves.
    """
    found: tuple[Shapes, bool] | None = getattr(view, "leaves", None)
    return found


def inner_codec(codec: Codec) -> tuple[Codec, bool]:
    """Return a codec without error feedback, and whether it had any."""
    return (codec.codec, True) if isinstance(codec, ErrorFeedback) else (codec, False)


@dataclass(frozen=True)
class Around:
    """A local step around another, with the same kind of payload and the same options.

    Parameters
    ----------
    local
        The wrapped local step.
    """

    local: Local

    @property
    def kind(self) -> Kind:
        """What the payload's numbers mean, as for the wrapped step."""
        return self.local.kind

    @property
    def options(self) -> type[LocalOptions]:
        """The record of options that the wrapped step reads."""
        return options_of(self.local)
