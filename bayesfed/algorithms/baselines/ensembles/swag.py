"""SWAG over the server's models (Maddox et al., "A simple baseline for Bayesian uncertainty in deep
learning", 2019).

======================  ================================================================
paper, Algorithm 1      here
======================  ================================================================
theta_i                 the server's model after round i, from round `begin` on
theta-bar               ``swag/mean/NAME``
mean of theta^2         ``swag/square/NAME``
D-hat, K                ``swag/deviation/NAME``, `rank`
======================  ================================================================

The clients know nothing of it: messages are those of the method inside.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from bayesfed.algorithms.baselines.ensembles.models import likelihood_of, model_of
from bayesfed.algorithms.registry import recipe
from bayesfed.errors import ArgumentError
from bayesfed.federated.aggregation.beside import Beside
from bayesfed.federated.core.algorithm import Algorithm, Posterior
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Reducer
from bayesfed.inference.ensembles.weight_clouds import SwagPosterior
from bayesfed.models.priors.likelihoods import Likelihood
from bayesfed.trees import Tree, under, without

# Prefixes of the leaves of the state that are not the method's own.
OWN = "swag/"
MEAN, SQUARE, DEVIATION, COUNT = (
    OWN + name for name in ("mean/", "square/", "deviation/", "count")
)


@recipe(cites=("maddox2019simple",))
def swag(
    algorithm: Algorithm,
    *,
    begin: int,
    every: int = 1,
    rank: int = 20,
    scale: float = 1.0,
    likelihood: Likelihood | None = None,
) -> Algorithm:
    """Put a Gaussian through the models that the server has in its last rounds,
    ``bf.swag(bf.fed_avg(net), begin=20)``.

    It costs no message and no local work; the server keeps `rank` + 2 models. The local learning
    rate should not fall to zero in those rounds, or the models are all alike. The transmitted model
    stays the last one.

    Parameters
    ----------
    algorithm
        Method with one model and no posterior, such as `fed_avg`.
    begin
        Round from which on models are taken, two at least: a run that ends before has a point as
        its posterior, and warns.
    every
        Number of rounds between two that are taken.
    rank
        K, the number of the last models whose deviations from the mean are kept.
    scale
        Factor on the covariance; 1 is the paper's.
    likelihood
        Distribution of the targets given the outputs. Default: the one that the method trains with.

    Raises
    ------
    ArgumentError
        If a number is outside its domain, or the method has a posterior, several models, or a state
        that is more than its model.
    """
    if begin < 0 or every < 1 or rank < 2 or not 0 < scale < math.inf:
        actual = (begin, every, rank, scale)
        raise ArgumentError(
            "swag", "begin >= 0, every >= 1, rank >= 2 and scale > 0", actual, "20, 1, 20, 1.0"
        )
    net = model_of(algorithm, "swag").net
    scored = likelihood or likelihood_of([algorithm], "swag")
    own: Tree = {COUNT: torch.zeros(1, dtype=torch.float64)}
    for name, leaf in algorithm.initial.items():
        own |= {
            MEAN + name: leaf.clone(),
            SQUARE + name: leaf.square(),
            DEVIATION + name: leaf.new_zeros(rank, *leaf.shape),
        }

    def posterior(state: Tree) -> Posterior:
        filled = min(int(state[COUNT]), rank)
        mean = under(state, MEAN) if filled else without(state, OWN)
        return SwagPosterior(
            net, scored, mean, under(state, SQUARE), under(state, DEVIATION), filled, scale
        )

    def unfinished(state: Tree, rounds: int) -> str:
        taken = int(state[COUNT])
        if taken >= 2:
            return ""
        return (
            f"the posterior is a point, since {taken} of two models or more were taken in "
            f"{rounds} rounds; try rounds={begin + every + 1} or more"
        )

    final = len(algorithm.phases) - 1
    return replace(
        algorithm,
        name="swag",
        initial=algorithm.initial | own,
        phases=tuple(
            Collecting(phase.server, begin, every if number == final else 0).in_phase(phase)
            for number, phase in enumerate(algorithm.phases)
        ),
        predictor=lambda state: algorithm.predictor(without(state, OWN)),
        posterior=posterior,
        unfinished=unfinished,
    )


@dataclass(frozen=True)
class Collecting(Beside):
    """The step of another server, after which its model enters the moments.

    Parameters
    ----------
    server
        Server that takes the step.
    begin
        First round that counts.
    every
        Number of rounds between two that count; 0: none does.
    """

    OWN: ClassVar[str] = OWN
    begin: int
    every: int

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Take the step; take in the model in a round that counts."""
        model, kept = self.parted(state)
        model, info = self.server.step(model, reducer, round)
        if not self.every or round < self.begin or (round - self.begin) % self.every:
            return model | kept, info
        count = float(kept[COUNT])
        after: Tree = {COUNT: kept[COUNT] + 1}
        for name, leaf in model.items():
            mean = (kept[MEAN + name] * count + leaf) / (count + 1)
            square = (kept[SQUARE + name] * count + leaf.square()) / (count + 1)
            deviations = torch.cat([kept[DEVIATION + name][1:], (leaf - mean)[None]])
            after |= {MEAN + name: mean, SQUARE + name: square, DEVIATION + name: deviations}
        return model | after, info | {"swag_models": count + 1}
