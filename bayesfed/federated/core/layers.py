"""`Layer`: one idea around the core of a method, with the client's and the server's half in one
object.

A method is a core, that is, what a client computes and what the server does with the sum, and a
list of layers around it, outermost first. A layer has leaves of its own in the server's state and
in each client's memory, under its own name. The engine walks the list; no layer knows another, and
a hook that a layer does not define changes nothing.

=============  ======  =============================================================================
hook           where   when
=============  ======  =============================================================================
`start`        server  once, before round 0: the layer's leaves of the state
`plan`         server  for each client that is asked, before anything is sent
`publish`      server  what clients are to see
`receive`      client  before the local step
`send`         client  after it
`kept`         client  once the payload is coded: what a codec left out can be kept
`admit`        server  for each update, before it is added
`combine`      server  in place of the sum, for layers that need every update
`step`         server  around the core's step
`predict`      server  the model that counts
=============  ======  =============================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple

from bayesfed.data import Dataset
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Assignment, Fit, Info, Link, Profile, Skip
from bayesfed.federated.core.update import Kind, Update
from bayesfed.keys import Key
from bayesfed.trees import Tree

Late = Literal["kept", "as changes", "refused"]
Stale = Literal["rebased", "scaled", "as sent"]
"""How a server takes an answer that was begun from an older state: values as the change from that
state; changes with a factor; changes unchanged.
"""


@dataclass(frozen=True)
class Traits:
    """What the engine must know of a layer, to combine it with others or to refuse them.

    Parameters
    ----------
    silent
        Whether the layer acts in rounds in which nobody was heard.
    late
        What becomes of answers that were begun from an older state (`FedBuff`): "kept" takes them
        as the core does, "as changes" as changes of the model, and "refused" refuses such runs.
    needs
        "sum", if the layer needs the sum of the updates; "each", if it needs every update; "" if
        either will do.
    apart
        Whether updates must arrive one by one, and not added by a channel.
    bounds
        Whether the layer bounds what one client moves. Nothing may change single updates after it,
        or their sum before it.
    noises
        What gets the layer's noise for privacy: the "sum" of the updates, or what is "sent" by each
        client; "" without noise.
    blind
        Whether a client's half reads neither rows nor a memory of them, so that it may be around
        what is sent with noise.
    takes
        Kinds of updates that the layer takes from the step within it; empty for any.
    gives
        Kind of the updates that it hands on by the kind that it takes; kinds that are not listed
        stay.
    averages
        Whether the server must average, leaf by leaf, parameters that may take any value.
    holds
        Whether clients hold what they received, to be sent the changes of it.
    """

    silent: bool = False
    late: Late = "kept"
    needs: Literal["", "sum", "each"] = ""
    apart: bool = False
    bounds: bool = False
    noises: Literal["", "sum", "sent"] = ""
    blind: bool = False
    takes: tuple[Kind, ...] = ()
    gives: Mapping[Kind, Kind] = field(default_factory=dict)
    averages: bool = False
    holds: bool = False


class Turn(NamedTuple):
    """One client's turn in a round, as it is planned."""

    model: Tree
    round: int
    profile: Profile
    key: Key


@dataclass(frozen=True)
class Moment:
    """The round in which a hook of the server is called.

    Parameters
    ----------
    round
        Number of the round.
    model
        The core's leaves of the state at its beginning.
    shown
        ``(model, round, version) -> leaves``: what the core publishes of a model in a round to a
        client that last heard from the server in round `version`, or never.
    """

    round: int
    model: Tree
    shown: Callable[[Tree, int, int | None], Tree]


@dataclass(frozen=True)
class Visit:
    """A client's turn, as a layer sees it.

    Parameters
    ----------
    message
        What the client received of the core's leaves.
    told
        What it received of the layer's own leaves.
    memory
        What the layer keeps at this client, by the client's last accepted answer.
    data
        The client's rows.
    key
        Source of random numbers of the local step.
    options
        Options that came with the message.
    kind
        What the numbers of the payload that the layer is given mean.
    """

    message: Tree
    told: Tree
    memory: Tree
    data: Dataset
    key: Key
    options: LocalOptions
    kind: Kind


class Sent(NamedTuple):
    """What a layer makes of a local step: the result that it hands on, and its memory.

    A memory of None is the one from before.
    """

    fit: Fit
    memory: Tree | None = None


Inner = Callable[[Update | None], tuple[Tree, Info]]
"""The step of all that is within a layer: ``total -> (model, figures)``. Without a total the model
stays as it is, unless something within steps alone.
"""


@dataclass(frozen=True)
class Layer:
    """A layer that changes nothing: the base of all others.

    A layer is a frozen dataclass with no state. Its leaves in the server's state and in a client's
    memory are handed to its hooks, and returned by them.

    Parameters
    ----------
    owner
        Name of the layer's leaves, without a slash; each layer of a method has one of its own.
    """

    owner: str
    traits: ClassVar[Traits] = Traits()

    @property
    def client_bound(self) -> float:
        """Norm to which clients clip their changes by themselves; infinity if they do not."""
        return math.inf

    def tightened(self, slack: float) -> Layer:
        """Return the layer with a bound at clients that is so much lower."""
        return self

    def start(self, moment: Moment) -> Tree:
        """Return the layer's leaves of the state before round 0."""
        return {}

    def plan(self, own: Tree, turn: Turn, assignment: Assignment) -> Assignment | Skip:
        """Return what a client is to do: its weight, options and codecs, or the reason why it is
        left out.
        """
        return assignment

    def link(self, link: Link) -> Link:
        """Return how payloads reach the server."""
        return link

    def publish(
        self, own: Tree, message: Tree, moment: Moment, version: int | None
    ) -> tuple[Tree, Tree]:
        """Return what a client sees of the core's leaves, and of the layer's own.

        Parameters
        ----------
        own
            The layer's leaves of the state.
        message
            What the core, and the layers within, publish of the core's leaves.
        moment
            The round.
        version
            Round in which the client last heard from the server; None if it never has.
        """
        return message, {}

    def receive(self, visit: Visit) -> Visit:
        """Return the turn with the message, rows and options that the local step gets."""
        return visit

    def send(self, visit: Visit, fit: Fit) -> Sent:
        """Return what is sent of the local step's result, and what the layer keeps at the client.

        Parameters
        ----------
        visit
            The turn as the layer's `receive` returned it.
        fit
            Result of the local step, and of the layers within.
        """
        return Sent(fit)

    def kept(self, memory: Tree, payload: Tree, decoded: Tree) -> Tree:
        """Return the layer's memory, as `send` returned it, once it is known what the server will
        decode of the core's leaves that were sent.
        """
        return memory

    def admit(self, own: Tree, update: Update, moment: Moment) -> Update:
        """Return one client's update as it is to be added.

        Raises
        ------
        UpdateError
            If it must not be; the client is then refused.
        """
        return update

    def combine(
        self, own: Tree, updates: Mapping[str, Update], moment: Moment
    ) -> tuple[Update, Info]:
        """Return what takes the place of the sum, and figures, if every update is needed."""
        raise NotImplementedError

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Return the layer's next leaves, the core's next leaves, and figures.

        A layer that draws takes children of `bayesfed.keys.forked_key`, the key of run, phase and
        round.

        Parameters
        ----------
        own
            The layer's leaves of the state.
        moment
            The round.
        total
            Sum of the updates; None if nobody was heard.
        inner
            The step within. It is to be called exactly once.
        """
        model, info = inner(total)
        return own, model, info

    def predict(self, own: Tree, model: Tree) -> Tree:
        """Return the core's leaves of the model that counts."""
        return model
