"""Deep ensembles over clients (Lakshminarayanan et al., "Simple and scalable predictive uncertainty
estimation using deep ensembles", 2017).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesfed.algorithms.baselines.ensembles.models import likelihood_of, model_of
from bayesfed.algorithms.registry import recipe
from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import shown
from bayesfed.federated import Algorithm, Posterior
from bayesfed.federated.core import of, owned
from bayesfed.inference.ensembles.consensus import mean_of
from bayesfed.inference.ensembles.networks import Members, apart, together
from bayesfed.models import Categorical, Labels, Likelihood
from bayesfed.models.modules import outputs
from bayesfed.trees import Tree, shapes


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

    References
    ----------
    Lakshminarayanan, Pritzel and Blundell, "Simple and Scalable Predictive Uncertainty Estimation
    using Deep Ensembles" (2017).
    """
    if len(algorithms) < 2:
        raise ArgumentError(
            "ensemble",
            "two algorithms or more",
            shown(algorithms),
            "[fed_avg(mlp([64, 64, 10], Key(number, 'net'))) for number in range(5)]",
        )
    models = [model_of(member, "ensemble") for member in algorithms]
    if any(shapes(one.parameters) != shapes(models[0].parameters) for one in models):
        raise ArgumentError(
            "ensemble", "networks of one architecture", "others", "one `mlp` with several keys"
        )
    scored, net = likelihood or likelihood_of(algorithms, "ensemble"), models[0].net
    classes = scored.axis if isinstance(scored, Categorical | Labels) else None

    def stacked(state: Tree) -> Tree:
        parts = [
            member.phases[0].scope.parted(owned(state, _member(number)))[0]
            for number, member in enumerate(algorithms)
        ]
        return together(parts)

    def posterior(state: Tree) -> Posterior:
        return Members(net, scored, stacked(state))

    def unfinished(state: Tree, rounds: int) -> str:
        lacks = (
            member.unfinished(owned(state, _member(number)), rounds)
            for number, member in enumerate(algorithms)
            if member.unfinished
        )
        return next(filter(None, lacks), "")

    return Algorithm(
        "ensemble",
        {
            name: leaf
            for number, member in enumerate(algorithms)
            for name, leaf in of(_member(number), member.initial).items()
        },
        tuple(
            replace(phase, name=f"{phase.name} {number}", within=_member(number))
            for number, member in enumerate(algorithms)
            for phase in member.phases
        ),
        lambda state: Averaged(net, stacked(state), classes),
        posterior,
        checks=tuple(one for member in algorithms for one in member.checks),
        unfinished=unfinished,
    )


def _member(number: int) -> str:
    return f"member {number}"


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
        Axis of the outputs with logits of classes, whose probabilities are averaged; None if they
        are none.
    """

    net: nn.Module
    parameters: Tree
    classes: int | None

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the logarithms of the mean probabilities, or the mean outputs, ``(B, C)``."""
        given = [outputs(self.net, one, inputs) for one in apart(self.parameters)]
        if self.classes is not None:
            # In logarithms, so that members that are all sure do not add up to log 0.
            return mean_of(torch.stack([one.log_softmax(self.classes) for one in given]))
        return sum(given[1:], given[0]) / len(given)
