"""`Algorithm`: a federated method as data, made of its phases, its servers and the model that it
trains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyro.distributions import TorchDistribution
from torch import Tensor, nn

from bayesfed.errors import ArgumentError
from bayesfed.federated.core.layers import Layer
from bayesfed.federated.core.owners import MODEL, Scope
from bayesfed.federated.core.protocols import Assignment, Info, Link, Local, Profile, Skip
from bayesfed.federated.core.sums import Sum
from bayesfed.federated.core.update import Reducer
from bayesfed.keys import Key
from bayesfed.models.modules import outputs
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Model:
    """A `Predictor`: a network with given parameters, in evaluation mode. Call it on inputs
    ``(B, ...)``.

    Parameters
    ----------
    net
        Network; never changed. Where `parameters` lacks one of its parameters or buffers, the
        network's own is used.
    parameters
        Parameters by name, and buffers for methods that send them (running statistics).
    """

    net: nn.Module
    parameters: Tree

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs, without gradients.

        Raises
        ------
        DataError
            If the network does not take the inputs.
        """
        return outputs(self.net, self.parameters, inputs)


class Predictor(Protocol):
    """The model after a round."""

    @property
    def parameters(self) -> Tree:
        """Tensors of the model by name."""

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return outputs, ``(B, ...)``: logits or probabilities of classes, or a
        regression's mean.
        """


Assign = Callable[[Tree, int, Profile, Key], Assignment | Skip]
"""``(state, round, profile, key) -> Assignment | Skip``: plans one client's round, or says why the
client has none.
"""


class Server(Protocol):
    """The step that takes the state and the sum of the updates to the next state.

    A server sees the core's leaves alone, and may draw: during its step the global generators are
    seeded by a key of run, phase and round, which `bayesfed.keys.forked_key` returns. What else it
    may have, with a default (`bayesfed.federated.core.seams`): `publish`, if it shows clients
    something other than its state; ``steps_alone = True``, if it steps even if no client was heard,
    with a reducer to which nothing was added; ``averages = True``, if a step is a mean, leaf by
    leaf; and ``stale``, how it takes answers that were begun from an older state.
    """

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state, and figures for the report."""


@dataclass(frozen=True)
class Phase:
    """One exchange with the clients. Most methods have one per round.

    Parameters
    ----------
    name
        Name of the phase; part of the name of every random stream.
    assign
        ``(state, round, profile, key) -> Assignment | Skip``: plans each client's turn.
    local
        What clients compute.
    server
        Step from the sum to the next state.
    link
        How payloads reach the server.
    reducer
        Makes what arriving updates are added to: `Sum`, or `Keep` for rules that need every update.
    owner
        Owner of the leaves that the core works on (`bayesfed.federated.core.owners`). "" for cores
        with several kinds of leaves, which name them ``owner/name`` themselves.
    layers
        What is around the core, outermost first.
    within
        Owner of all leaves of this phase, where a method is a part of another; their names begin
        with it.

    Raises
    ------
    ArgumentError
        If two layers have one owner, or an owner has a slash or no name.
    """

    name: str
    assign: Assign
    local: Local
    server: Server
    link: Link
    reducer: Callable[[], Reducer] = Sum
    owner: str = MODEL
    layers: tuple[Layer, ...] = ()
    within: str = ""

    def __post_init__(self) -> None:
        owners = [layer.owner for layer in self.layers]
        if len({self.owner, *owners}) <= len(owners) or any(
            not owner or "/" in owner for owner in owners
        ):
            raise ArgumentError(
                f"phase {self.name!r}, owners",
                "distinct names",
                [self.owner, *owners],
                "one name without a slash for each",
            )

    @property
    def noisy(self) -> Layer | None:
        """The layer that adds noise for privacy; None without one."""
        return next((layer for layer in self.layers if layer.traits.noises), None)

    @property
    def scope(self) -> Scope:
        """The leaves of a state, or of a client's memory, that are this phase's."""
        return Scope(self.owner, tuple(layer.owner for layer in self.layers), self.within)


@dataclass(frozen=True)
class Personal:
    """What one client predicts with.

    Parameters
    ----------
    model
        Predictor of the client.
    posterior
        Posterior of the client; None for methods without one.
    """

    model: Predictor
    posterior: Posterior | None = None


@dataclass(frozen=True)
class Algorithm:
    """A federated method as data.

    Parameters
    ----------
    name
        Name in tables and checkpoints.
    initial
        State before round 0: every leaf by owner and name, ``owner/name``. The functions below are
        given such a state.
    phases
        Exchanges of a round, in order.
    predictor
        ``(state) -> Predictor``: the model to evaluate, as it is transmitted.
    posterior
        ``(state) -> Posterior``, for `to_arviz`; None for methods without a posterior.
    sizes
        Predictors by the name of their size, largest first, for methods with models of several
        sizes.
    checks
        Functions that are called before every round with what it is run with; each raises an error
        if the method must not be run so.
    personal
        ``(state, memory) -> Personal``: the model of one client, from the server's state and from
        what the client keeps; an empty memory is that of a client that never took part. None for
        methods in which all clients share the transmitted model.
    unfinished
        ``(state, rounds) -> str``: what a run that ends here lacks, and what to try, of which
        `bayesfed.run` warns; empty if it lacks nothing.
    finished
        ``(state) -> bool``: whether a method that ends by itself has ended. None for methods that
        go on for as many rounds as they are given.
    origin
        What the algorithm was made of, as data that JSON can hold: the formula, design and model of
        a regression, under "regression". Snapshots carry it, so that `bayesfed.open` needs no
        algorithm, and clients over Flower must have the same. Empty for other methods.

    Raises
    ------
    ArgumentError
        If there is no phase, or two have the same name; or one has noise for privacy, and another,
        which asks the same clients, has none.
    """

    name: str
    initial: Tree
    phases: tuple[Phase, ...]
    predictor: Callable[[Tree], Predictor]
    posterior: Callable[[Tree], Posterior] | None = None
    sizes: Mapping[str, Callable[[Tree], Predictor]] = field(default_factory=dict)
    checks: tuple[Callable[[Conditions], None], ...] = ()
    personal: Callable[[Tree, Tree], Personal] | None = None
    unfinished: Callable[[Tree, int], str] | None = None
    finished: Callable[[Tree], bool] | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def ended(self, state: Tree) -> bool:
        """Return whether a run in this state has ended by itself."""
        return self.finished is not None and self.finished(state)

    def __post_init__(self) -> None:
        if not self.phases or len({phase.name for phase in self.phases}) != len(self.phases):
            raise ArgumentError(
                "Algorithm",
                "phases of distinct names",
                [p.name for p in self.phases],
                "Phase('train', ...)",
            )
        noisy = next((layer for phase in self.phases if (layer := phase.noisy)), None)
        if noisy and (bare := [phase.name for phase in self.phases if not phase.noisy]):
            raise ArgumentError(
                f"{noisy.owner}, {self.name!r}: epsilon would not hold",
                f"one phase with the layer that `{noisy.owner}` made",
                f"others, without noise: {bare}",
                "the others in a run of their own, after it, which epsilon does not cover",
            )


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a round is run with, for the checks of an algorithm.

    Parameters
    ----------
    algorithm
        Algorithm as it is run, with all wrappers.
    sampler
        ``(round, clients, key) -> clients of the round``.
    profiles
        Profiles of all clients of the pool.
    remembering
        Names of the clients that keep a memory from earlier rounds.
    changed
        Names of the settings in which the run differs from the one that it continues; empty for a
        new run.
    rows
        Number of rows of all clients of the pool.
    round
        Number of the round that begins.
    """

    algorithm: Algorithm
    sampler: Callable[[int, Sequence[str], Key], Sequence[str]]
    profiles: Sequence[Profile]
    remembering: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    rows: int = 0
    round: int = 0


class Posterior(Protocol):
    """A posterior that can be drawn from and inspected after a run."""

    @property
    def constants(self) -> Tree:
        """Figures of the posterior that need no draws: inclusion probabilities, means and standard
        deviations.
        """

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of draws and constants. Axes without a name are numbered."""

    def draw(self, key: Key) -> Tree:
        """Return one draw of every site."""

    def draw_prior(self, key: Key) -> Tree:
        """Return one draw of every site from the prior; empty if the prior cannot be drawn from."""

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets given one draw, of batch shape ``(B,)``. Random
        numbers it needs come from `key`.
        """
