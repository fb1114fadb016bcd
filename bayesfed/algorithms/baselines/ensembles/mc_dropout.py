"""MC-dropout (Gal and Ghahramani, "Dropout as a Bayesian approximation", 2016)."""

from __future__ import annotations

from dataclasses import replace

from bayesfed.algorithms.baselines.ensembles.models import likelihood_of, model_of
from bayesfed.algorithms.registry import recipe
from bayesfed.errors import ArgumentError
from bayesfed.federated import Algorithm
from bayesfed.inference.ensembles.dropout import DropoutPosterior
from bayesfed.models import Likelihood
from bayesfed.models.live import reads_mode
from bayesfed.trees import Tree


@recipe(cites=("gal2016dropout",))
def mc_dropout(algorithm: Algorithm, *, likelihood: Likelihood | None = None) -> Algorithm:
    """Predict by passes with dropout: a posterior for a method that trains a network with dropout,
    ``bf.mc_dropout(bf.fed_avg(net))``.

    Training, messages and the transmitted model are those of the method.

    Parameters
    ----------
    algorithm
        Method with one model and no posterior, whose network has dropout.
    likelihood
        Distribution of the targets given the outputs. Default: the one that the method trains with.

    Raises
    ------
    ArgumentError
        If the network has no dropout, or the method has a posterior, several models, or a state
        that is more than its model.

    References
    ----------
    Gal and Ghahramani, "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep
    Learning" (2016).
    """
    net = model_of(algorithm, "mc_dropout").net
    if not any(map(reads_mode, net.modules())):
        hint = "nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))"
        raise ArgumentError("mc_dropout", "a network with dropout", type(net).__name__, hint)
    scored = likelihood or likelihood_of([algorithm], "mc_dropout")

    def posterior(state: Tree) -> DropoutPosterior:
        return DropoutPosterior(net, scored, algorithm.predictor(state).parameters)

    return replace(algorithm, name="mc_dropout", posterior=posterior)
