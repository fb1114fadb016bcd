"""`Algorithm`: a federated method as data, its phases, its server and the model that it ends in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from pyro.distributions import TorchDistribution
from torch import Tensor, nn
from torch.func import functional_call

from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.core.protocols import Assignment, Info, Link, Local, Profile, Skip
from bayesfed.federated.core.update import Reducer, Sum
from bayesfed.keys import Key
from bayesfed.models.modules import evaluating
from bayesfed.trees import Tree, to


@dataclass(frozen=True)
class Model:
    """A `Predictor`: a network at given parameters, in evaluation mode: call it on inputs ``(B, ...)``.

    Parameters
    ----------
    net
        Never changed. Its mode is for training; where `parameters` lacks one of its parameters or buffers, its own is used.
    parameters
        Parameters by name, and buffers where a method has them: running statistics.
    """

    net: nn.Module
    parameters: Tree

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs, without gradients."""
        with torch.no_grad(), evaluating(self.net):
            output: Tensor = functional_call(self.net, to(self.parameters, inputs.device), (inputs,))
        return output


class Predictor(Protocol):
    """The model that counts after a round."""

    @property
    def parameters(self) -> Tree:
        """What it is made of."""
        ...

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return outputs, ``(B, ...)``: logits or probabilities of classes, or a regression's mean."""
        ...


class Assign(Protocol):
    """Plan one client's round, from the state and its profile."""

    def __call__(self, state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        """Return the assignment, or why there is none."""
        ...


class Server(Protocol):
    """What the sum does to the state. A server that shows clients something other than its state is also a `Publisher`."""

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the next state and figures for the report."""
        ...


@runtime_checkable
class Publisher(Protocol):
    """A server that chooses what clients see of its state."""

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what a client may see in round `round` that last heard from the server in round `version` (None: never).

        A leaf named ``NAME.change`` is to be added to the NAME that the client holds; only a client whose local is `Holding` may get one.
        """
        ...


def published(server: Server, state: Tree, round: int, version: int | None) -> Tree:
    """Return what a server publishes: the state itself, unless it is a `Publisher`."""
    return server.publish(state, round, version) if isinstance(server, Publisher) else state


@dataclass(frozen=True)
class Phase:
    """One exchange with the clients; most methods have one a round."""

    name: str
    assign: Assign
    local: Local
    server: Server
    link: Link
    reducer: Callable[[], Reducer] = Sum


@dataclass(frozen=True)
class Algorithm:
    """A federated method as data.

    Parameters
    ----------
    name
        For tables and checkpoints.
    initial
        The state before round 0.
    phases
        The exchanges of a round, in order.
    predictor
        ``(state) -> Predictor``: the model that counts, the transmitted one.
    posterior
        ``(state) -> Posterior`` for `to_arviz`; None for methods that have none.
    sizes
        Predictors by the name of their size, largest first, for methods that serve devices of unlike strength.
    """

    name: str
    initial: Tree
    phases: tuple[Phase, ...]
    predictor: Callable[[Tree], Predictor]
    posterior: Callable[[Tree], Posterior] | None = None
    sizes: Mapping[str, Callable[[Tree], Predictor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.phases or len({phase.name for phase in self.phases}) != len(self.phases):
            raise ArgumentError(
                complain("Algorithm", expected="phases of distinct names", actual=[p.name for p in self.phases], hint="Phase('train', ...)")
            )


class Posterior(Protocol):
    """What can be drawn from and looked at after a run."""

    @property
    def constants(self) -> Tree:
        """Figures of the posterior that need no draws: inclusion probabilities, means and sds."""
        ...

    @property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """Names of the axes of draws and constants; those that are not named are numbered."""
        ...

    def draw(self, key: Key) -> Tree:
        """Return one draw of every site."""
        ...

    def draw_prior(self, key: Key) -> Tree:
        """Return one draw of every site from the prior; empty if that is not offered."""
        ...

    def observe(self, draw: Tree, inputs: Tensor, key: Key) -> TorchDistribution:
        """Return the distribution of the targets at one draw, batch ``(B,)``; what is drawn on the way comes from `key`."""
        ...


@runtime_checkable
class Weighing(Protocol):
    """A posterior that knows its density, so that its draws have importance weights."""

    def log_weights(self, data: Dataset, key: Key, *, draws: int = 1000) -> Tensor:
        """Return ``log p(D, z) - log q(z)`` at draws of q, ``(draws,)``."""
        ...
