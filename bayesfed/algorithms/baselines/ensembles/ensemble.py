"""Deep ensembles over clients (Lakshminarayanan et al., "Simple and scalable predictive uncertainty
estimation using deep ensembles", 2017).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesfed.algorithms.baselines.ensembles.models import likelihood_of, model_of
from bayesfed.algorithms.registry import ALGORITHM, recipe
from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import check, shown
from bayesfed.federated.core.algorithm import Algorithm, Phase, Posterior, Server, published
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Assignment, Fit, Info, Profile, Skip
from bayesfed.federated.core.update import Reducer
from bayesfed.federated.core.wrappers import Around
from bayesfed.inference.ensembles.networks import Members, apart, outputs, together
from bayesfed.keys import Key
from bayesfed.models.priors.likelihoods import Categorical, Likelihood
from bayesfed.trees import Tree, under, without


@recipe(cites=("lakshminarayanan2017simple",))
def ensemble(algorithms: Sequence[Algorithm], *, likelihood: Likelihood | None = None) -> Algorithm:
    """Train several networks side by side and average what they predict,
    ``bf.ensemble([bf.fed_avg(bf.mlp(widths, key)) for key in keys])``.

    A round has the phases of all members, one after another, each with random streams of its own: M
    members cost M times the bytes and the work. A `Predictive` of the posterior takes every member
    once, whatever the number of draws. The model's outputs are the members' mean outputs for
    numbers, and logarithms of their mean probabilities for classes.

    Parameters
    ----------
    algorithms
        Methods with one model each and no posterior, of one architecture; their networks should
        begin with other weights.
    likelihood
        Distribution of the targets given the outputs. Default: the one that the methods train with.

    Raises
    ------
    ArgumentError
        If there are fewer than two, a method has a posterior or several models, or the networks
        differ in their parameters.
    """
    if not isinstance(algorithms, Sequence) or len(algorithms) < 2:
        actual, hint = (
            shown(algorithms),
            "[fed_avg(mlp([64, 64, 10], Key(number, 'net'))) for number in range(5)]",
        )
        raise ArgumentError("ensemble", "two algorithms or more", actual, hint)
    for member in algorithms:
        check("ensemble, member", member, ALGORITHM)
    models = [model_of(member, "ensemble") for member in algorithms]
    shapes = [
        {name: tuple(leaf.shape) for name, leaf in model.parameters.items()} for model in models
    ]
    if any(one != shapes[0] for one in shapes):
        raise ArgumentError(
            "ensemble", "networks of one architecture", "others", "one `mlp` with several keys"
        )
    scored, net = likelihood or likelihood_of(algorithms, "ensemble"), models[0].net

    def stacked(state: Tree) -> Tree:
        return together([under(state, _prefix(number)) for number in range(len(algorithms))])

    def posterior(state: Tree) -> Posterior:
        return Members(net, scored, stacked(state))

    def lacks(state: Tree, rounds: int) -> Iterator[str]:
        for number, member in enumerate(algorithms):
            if member.unfinished:
                yield member.unfinished(under(state, _prefix(number)), rounds)

    return Algorithm(
        "ensemble",
        {
            _prefix(number) + name: leaf
            for number, member in enumerate(algorithms)
            for name, leaf in member.initial.items()
        },
        tuple(
            _alone(phase, number)
            for number, member in enumerate(algorithms)
            for phase in member.phases
        ),
        lambda state: Averaged(net, stacked(state), isinstance(scored, Categorical)),
        posterior,
        checks=tuple(one for member in algorithms for one in member.checks),
        unfinished=lambda state, rounds: next(filter(None, lacks(state, rounds)), ""),
    )


def _prefix(number: int) -> str:
    return f"member {number}/"


def _alone(phase: Phase, number: int) -> Phase:
    """Return the phase of a member on its part of the state."""
    prefix = _prefix(number)

    def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
        return phase.assign(under(state, prefix), round, profile, key)

    return replace(
        phase,
        name=f"{phase.name} {number}",
        assign=assign,
        local=OwnMemory(phase.local, prefix),
        server=OnePart(phase.server, prefix),
    )


@dataclass(frozen=True)
class Averaged:
    """The mean prediction of several networks.

    Parameters
    ----------
    net
        The network; never changed.
    parameters
        By parameter: ``(M, ...)``.
    classes
        Whether the outputs are logits, of which probabilities are averaged.
    """

    net: nn.Module
    parameters: Tree
    classes: bool

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logarithms of the mean probabilities, or the mean outputs, ``(B, C)``."""
        given = [outputs(self.net, one, inputs) for one in apart(self.parameters)]
        if self.classes:
            # In logarithms, so that members that are all sure do not add up to log 0.
            return torch.stack([one.log_softmax(1) for one in given]).logsumexp(0) - math.log(
                len(given)
            )
        return sum(given[1:], given[0]) / len(given)


@dataclass(frozen=True)
class OwnMemory(Around):
    """A local step whose memory has names of its own among those of other steps of the same client.

    Parameters
    ----------
    prefix
        What the names begin with.
    """

    prefix: str

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the local step with its own memory."""
        fit = self.local.fit(message, under(memory, self.prefix), data, key, options)
        own = {self.prefix + name: leaf for name, leaf in fit.memory.items()}
        return fit._replace(memory=without(memory, self.prefix) | own)


@dataclass(frozen=True)
class OnePart:
    """A server on the part of the state whose names begin with a prefix.

    Parameters
    ----------
    server
        Server that takes the step.
    prefix
        What the names begin with.
    """

    server: Server
    prefix: str

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the server publishes of its part."""
        return published(self.server, under(state, self.prefix), round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Take the step on its part."""
        part, info = self.server.step(under(state, self.prefix), reducer, round)
        return without(state, self.prefix) | {
            self.prefix + name: leaf for name, leaf in part.items()
        }, info
