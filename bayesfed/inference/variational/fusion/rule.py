"""`Fusion`: what a fusion rule is, and what it is given.

A rule says in which space posteriors are added, what a client starts from and sends, and what the
server makes of the sum. A rule of your own is any object with these attributes and methods; nothing
need be registered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from bayesfed.errors import PosteriorError
from bayesfed.inference.variational.layout import Layout
from bayesfed.inference.variational.program import Pair
from bayesfed.trees import Tree

FusionKind = Literal["value", "delta", "moments", "natural", "gradient"]
"""What the numbers of a rule's payloads mean: parameters, their changes, means and sds, natural
parameters, or gradients of the ELBO.
"""

# What the guide's own parameters are called in a state and a payload.
VALUE = "value/"


def valued(parameters: Tree) -> Tree:
    """Return the guide's parameters as leaves of a state."""
    return {f"{VALUE}{name}": leaf for name, leaf in parameters.items()}


class Start(NamedTuple):
    """Where a client's round begins.

    Parameters
    ----------
    parameters
        The guide's shared parameters.
    share
        Power on the prior.
    cavity
        Natural parameters of the other clients' factors, by leaf; empty for none.
    power
        Power on the likelihood of the client's rows.
    """

    parameters: Tree
    share: float = 1.0
    cavity: Mapping[str, Tensor] = {}
    power: float = 1.0


@dataclass(frozen=True)
class Fused:
    """What every rule is given: the model and guide, and what the guide's parameters mean."""

    pair: Pair
    layout: Layout

    @property
    def first(self) -> Tree:
        """The shared parameters before round 0."""
        return {name: self.pair.first[name] for name in self.layout.shared}


class WeightedSum(Protocol):
    """The sum of the clients' payloads. A round's `Update` is one."""

    @property
    def total(self) -> Tree:
        """The sum over clients of weight times payload."""
        ...

    @property
    def weight(self) -> float | Tree:
        """The sum of the weights, a number or one for every entry: clients' rows for rules that
        average, 1 a client for rules that add.
        """
        ...

    def mean(self) -> Tree:
        """Return ``total / weight``."""
        ...


class Fusion(Protocol):
    """A fusion rule: what clients send, and what the server makes of the sum.

    The state is a tree of the rule's own choice. Every method gets a client's or the server's
    tensors and returns new ones.
    """

    @property
    def kind(self) -> FusionKind:
        """What the numbers of a payload mean. With "gradient", clients take no steps of their own
        and send the mean of their steps' gradients.
        """
        ...

    @property
    def adds(self) -> bool:
        """Whether clients' shares of the prior and of the rows are added up; False: their
        posteriors are averaged, weighted by rows.
        """
        ...

    def check(self, fused: Fused) -> None:
        """Raise `PosteriorError` if the rule cannot serve this guide."""
        ...

    def initial(self, fused: Fused) -> Tree:
        """Return the server's state before round 0."""
        ...

    def publish(self, state: Tree) -> Tree:
        """Return what clients get of the state: all of it, less what only the server needs, such as
        the moments of an optimiser.
        """
        ...

    def start(self, state: Tree, memory: Tree, fused: Fused, share: float) -> Start:
        """Return where a client's round begins, given the published state, its memory and its share
        N_t / N of the rows.
        """
        ...

    def finish(
        self, parameters: Tree, start: Start, state: Tree, memory: Tree, fused: Fused
    ) -> tuple[Tree, Tree]:
        """Return a client's payload and its new memory.

        `parameters` are the guide's after the client's steps; for kind "gradient", the mean
        gradients. The payload has the names and shapes of the published state.
        """
        ...

    def step(self, state: Tree, answers: WeightedSum, rate: float, fused: Fused) -> Tree:
        """Return the server's next state, given the sum of the payloads and the schedule's factor
        on learning rates in this round.
        """
        ...

    def parameters(self, state: Tree, fused: Fused) -> Tree:
        """Return the guide's shared parameters for a published state.

        Raises
        ------
        PosteriorError
            If no guide has this state: an improper sum, for example. The round is then refused.
        """
        ...


@runtime_checkable
class KeepsFirstGuide(Protocol):
    """A rule whose clients' factors begin as shares of the first guide; `Result.settling` reports
    how much of it a run still holds.
    """

    def kept(self, rounds: int) -> float:
        """Return the part of its share of the first guide that a client still holds after so many
        rounds of its own, between 0 and 1.
        """
        ...


def require_blocks(rule: str, fused: Fused, *, diagonal: bool = False) -> None:
    """Raise `PosteriorError` unless every shared parameter belongs to a block; with `diagonal`, to
    one of independent Gaussians.

    Parameters
    ----------
    rule
        Name of the rule that asks, for the error.
    """
    layout = fused.layout
    if layout.points or layout.opaque or not layout.blocks:
        raise PosteriorError(
            rule,
            "a guide of Gaussian, Gamma, Beta or Dirichlet draws whose location and "
            "scale are parameters",
            f"points {list(layout.points)}, unknown parameters {list(layout.opaque)}",
            "SummedGradients(), which serves any guide, or AutoNormal",
        )
    if diagonal and (
        other := [
            block.name for block in layout.blocks if set(block.parameters) != {"loc", "scale"}
        ]
    ):
        raise PosteriorError(rule, "independent Gaussian draws", f"{other}", "AutoNormal, or PVI()")
