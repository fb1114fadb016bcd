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

from dataclasses import dataclass, replace

import torch

from bayesfed.algorithms.baselines.ensembles.models import likelihood_of, model_of
from bayesfed.algorithms.registry import recipe
from bayesfed.errors.checks import number, whole
from bayesfed.errors.plurals import plural
from bayesfed.federated import Algorithm, Layer, Moment, Posterior, Update, layered
from bayesfed.federated.core import Info, Inner, of, owned
from bayesfed.inference.ensembles.weight_clouds import SwagPosterior
from bayesfed.models import Likelihood
from bayesfed.trees import Tree

MEAN, SQUARE, DEVIATION, COUNT = "mean", "square", "deviation", "count"


@recipe(cites=("maddox2019simple",), rank=whole(2, "20"), scale=number("(0, inf)", "1.0"))
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

    References
    ----------
    Maddox et al., "A Simple Baseline for Bayesian Uncertainty in Deep Learning" (2019).
    """
    net = model_of(algorithm, "swag").net
    scored = likelihood or likelihood_of([algorithm], "swag")
    final = len(algorithm.phases) - 1

    def layer(number: int) -> Collecting:
        return Collecting(begin=begin, every=every if number == final else 0, rank=rank)

    made = layered(algorithm, layer, where="swag", one_phase=False)
    parted = made.phases[0].scope.parted

    def posterior(state: Tree) -> Posterior:
        model, owns = parted(state)
        own = owns["swag"]
        filled = min(int(own[COUNT]), rank)
        mean = owned(own, MEAN) if filled else model
        square, deviation = owned(own, SQUARE), owned(own, DEVIATION)
        return SwagPosterior(net, scored, mean, square, deviation, filled, scale)

    def unfinished(state: Tree, rounds: int) -> str:
        taken = int(parted(state)[1]["swag"][COUNT])
        if taken >= 2:
            return ""
        return (
            f"the posterior is a point, since {taken} of two models or more were taken in "
            f"{plural(rounds, 'round')}; try rounds={begin + every + 1} or more"
        )

    return replace(made, name="swag", posterior=posterior, unfinished=unfinished)


@dataclass(frozen=True, kw_only=True)
class Collecting(Layer):
    """The first moments, and the last deviations from the mean, of the models after some rounds.

    Parameters
    ----------
    begin
        First round that counts.
    every
        Number of rounds between two that count; 0: none does.
    rank
        Number of deviations that are kept.
    """

    owner: str = "swag"
    begin: int
    every: int
    rank: int

    def start(self, moment: Moment) -> Tree:
        """Return moments of no models."""
        model = moment.model
        squares = {name: leaf.square() for name, leaf in model.items()}
        deviations = {n: leaf.new_zeros(self.rank, *leaf.shape) for n, leaf in model.items()}
        means = {name: leaf.clone() for name, leaf in model.items()}
        count = {COUNT: torch.zeros(1, dtype=torch.float64)}
        return count | of(MEAN, means) | of(SQUARE, squares) | of(DEVIATION, deviations)

    def step(
        self, own: Tree, moment: Moment, total: Update | None, inner: Inner
    ) -> tuple[Tree, Tree, Info]:
        """Take the step; take in the model in a round that counts."""
        model, info = inner(total)
        counts = self.every and moment.round >= self.begin
        if not counts or (moment.round - self.begin) % self.every:
            return own, model, info
        count, after = float(own[COUNT]), {COUNT: own[COUNT] + 1}
        for name, leaf in model.items():
            mean = (own[f"{MEAN}/{name}"] * count + leaf) / (count + 1)
            square = (own[f"{SQUARE}/{name}"] * count + leaf.square()) / (count + 1)
            deviations = torch.cat([own[f"{DEVIATION}/{name}"][1:], (leaf - mean)[None]])
            after[f"{MEAN}/{name}"], after[f"{SQUARE}/{name}"] = mean, square
            after[f"{DEVIATION}/{name}"] = deviations
        return after, model, info | {"swag_models": count + 1}
