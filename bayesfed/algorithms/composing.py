"""`compose`: an algorithm from a local step and a server, with a view, weights, codecs and a
schedule that most methods share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from torch import nn

from bayesfed.algorithms.surveys import Bounded, Limits
from bayesfed.algorithms.wrappers.chosen_prior import chosen_prior
from bayesfed.compress import Codec
from bayesfed.compress.codecs import exact
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import Role, checked
from bayesfed.federated import (
    Add,
    Algorithm,
    Assignment,
    Average,
    Buffers,
    Capacity,
    Digital,
    Layer,
    Link,
    Local,
    LocalOptions,
    Model,
    Personal,
    Phase,
    Posterior,
    Predictor,
    Profile,
    Reducer,
    Server,
    Sized,
    Sum,
    Training,
    View,
    Whole,
    feedback,
)
from bayesfed.federated.core import MODEL, Conditions, check_order, owned
from bayesfed.federated.core.layering import of_core
from bayesfed.federated.core.seams import inner_codec
from bayesfed.federated.core.settings import with_settings
from bayesfed.federated.training.batch_norm import predicting, travelling
from bayesfed.federated.training.observations import counting
from bayesfed.keys import Key
from bayesfed.trees import Shapes, Tree, shapes, trainable


class Turn(NamedTuple):
    """One client's turn in a round, from which its view is chosen; `size` is the number of the size
    that it trains, 0 where there is one.
    """

    state: Tree
    round: int
    profile: Profile
    key: Key
    size: int


def within(expected: Shapes, limits: Limits) -> Callable[[Turn], View]:
    """Return the view of clients that send these leaves, within what rows can make of them."""

    @with_settings(expected=expected, limits=limits)
    def view(turn: Turn) -> View:
        return Bounded(expected, float(turn.profile.samples), limits)

    return view


def by_rows(profile: Profile, size: int) -> float:
    """Weigh a client by its rows."""
    return float(profile.samples)


def alike(profile: Profile, size: int) -> float:
    """Weigh every client that has rows by 1."""
    return float(profile.samples > 0)


def weighing(rows: bool) -> Callable[[Profile, int], float]:
    """Return the weights of clients: their rows, or 1 for each that has any."""
    return by_rows if rows else alike


@checked(
    local=Role(
        lambda local: not isinstance(local, type), "a local step", "an instance of its class"
    )
)
def compose(
    name: str,
    net: nn.Module,
    local: Local | Sequence[Local] | None = None,
    server: Server | None = None,
    *,
    training: Training | None = None,
    initial: Tree | None = None,
    predictor: Callable[[Tree], Predictor] | None = None,
    posterior: Callable[[Tree], Posterior] | None = None,
    sizes: Mapping[str, Callable[[Tree], Predictor]] | None = None,
    view: View | Callable[[Turn], View] | None = None,
    capacity: Capacity | None = None,
    weight: Callable[[Profile, int], float] = by_rows,
    options: Callable[[Turn], LocalOptions] | None = None,
    codec: Codec | None = None,
    up: Codec | None = None,
    link: Link | None = None,
    reducer: Callable[[], Reducer] = Sum,
    buffers: Buffers = "static",
    personal: Callable[[Tree, Tree], Personal] | None = None,
    unfinished: Callable[[Tree, int], str] | None = None,
    checks: Sequence[Callable[[Conditions], None]] = (),
    owner: str = MODEL,
    layers: Sequence[Layer] = (),
) -> Algorithm:
    """Make a method of one exchange a round. What is not given is FedAvg's.

    Parameters
    ----------
    name
        Name of the method, for tables and checkpoints.
    net
        The network. Its trained parameters are the state before round 0, and the state's parameters
        in it are the model that counts.
    local
        What a client computes: a `Local`, or one for each size with `capacity`. Default:
        ``training.fitting(net)``.
    server
        What the sum does to the state. Default: `Average` of values; `Add` where the local's kind
        is "delta".
    training
        Local work, whose schedule and epochs become the options of a turn. Default: `Training()`.
    initial, predictor, posterior, sizes
        As in `Algorithm`, where the state is more than the network's parameters.
    view
        The part of the state that a client gets, or ``turn -> view``. Default: all of it.
    capacity
        Which size a client trains in a round, for methods with several.
    weight
        ``(profile, size) -> weight`` in the sum. Default: the client's rows.
    options
        ``turn -> options`` of the local step. Default: those of `training`.
    codec, up
        Codec of the down-link, by default numbers as they are; codec of the up-link, by default
        the same.
    link
        How payloads reach the server. Default: `Digital()`.
    reducer
        What arriving updates are gathered in. Default: their sum.
    buffers
        Policy of running statistics, as in `fed_avg`.
    personal
        ``(state, memory) -> Personal``, for methods in which every client has a model of its own,
        as in `Algorithm`.
    unfinished, checks
        As in `Algorithm`.
    owner
        Owner of the core's leaves, as in `Phase`. All functions that are given here are functions
        of the core's leaves. A core with several kinds of leaves has the network's under "model".
    layers
        Layers around the core, outermost first. Error feedback of `up` is around them.

    Raises
    ------
    ArgumentError
        If the network has running statistics and `buffers` is "static", or there are several locals
        and no capacity.

    Examples
    --------
    FedProx is a proximal objective in the place of FedAvg's:

    >>> def fed_prox(net, strength, training=Training()):
    ...     objective = Proximal(MaximumLikelihood(net, Categorical()), strength)
    ...     return compose("fed_prox", net, training.descent(objective, net), training=training)
    """
    work = training or Training()
    begin = travelling(net, buffers, where=name) if initial is None else initial
    chosen = Whole(shapes(begin)) if view is None else view
    step = _step(name, work.fitting(net, buffers=buffers) if local is None else local, capacity)
    adds = step.kind == "delta"
    as_is = exact(trainable(net))
    up, feeds = inner_codec(up or codec or as_is)
    down, _ = inner_codec(codec or as_is)

    @with_settings(
        capacity=capacity,
        chosen=chosen,
        down=down,
        options=options,
        up=up,
        weight=weight,
        work=work,
    )
    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment:
        turn = Turn(state, round, profile, key, capacity(profile, round, key) if capacity else 0)
        told = options(turn) if options else work.options(round, profile.samples, size=turn.size)
        return Assignment(
            chosen(turn) if callable(chosen) else chosen, weight(profile, turn.size), down, up, told
        )

    phase = Phase(
        "train",
        assign,
        step,
        server or (Add() if adds else Average()),
        link or Digital(),
        reducer,
        owner=owner,
        layers=(*((feedback(),) if feeds else ()), *layers),
    )
    check_order(phase, name)
    served = predicting(net, buffers)
    made = of_core(
        name,
        begin,
        (phase,),
        predictor
        or with_settings(owner=owner, served=served)(
            lambda state: Model(served, state if owner else owned(state, MODEL))
        ),
        posterior,
        sizes=sizes,
        personal=personal,
        unfinished=unfinished,
        checks=checks,
    )
    made = counting(made, work.observations)
    return chosen_prior(made) if work.prior_precision == "auto" else made


def _step(name: str, local: Local | Sequence[Local], capacity: Capacity | None) -> Local:
    if not isinstance(local, Sequence):
        return local
    if capacity is None:
        raise ArgumentError(
            name, "a capacity for several locals", "none", "fixed(sorted(clients), 2)"
        )
    return Sized(tuple(local))
