"""What ensembles ask of others: the one model of another method and its likelihood, and the models
of a round, each apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated import Algorithm, Keep, Model, Reducer, Update
from bayesfed.federated.core import gathered
from bayesfed.federated.training.likelihoods import likelihoods_of
from bayesfed.models import Categorical, Likelihood
from bayesfed.trees import shapes


def model_of(
    algorithm: Algorithm, where: str, hint: str = "fed_avg(net), fed_prox(net, strength=0.1)"
) -> Model:
    """Return the model of an algorithm before round 0.

    Raises
    ------
    ArgumentError
        If it has a posterior, several sizes or personal models, or its state is more than its
        model.
    """
    model = algorithm.predictor(algorithm.initial)
    if (
        algorithm.posterior is not None
        or algorithm.personal
        or algorithm.sizes
        or not isinstance(model, Model)
    ):
        raise ArgumentError(
            where,
            "an algorithm with one model and no posterior",
            f"{algorithm.name!r}, with a posterior, sizes or models of its own",
            hint,
        )
    core, _ = algorithm.phases[0].scope.parted(algorithm.initial)
    if shapes(model.parameters) != shapes(core):
        raise ArgumentError(
            where, "an algorithm whose state is its model", repr(algorithm.name), hint
        )
    return model


def likelihood_of(algorithms: Sequence[Algorithm], where: str) -> Likelihood:
    """Return the likelihood that some methods train with, as their local steps name it;
    `Categorical` where none does.

    Raises
    ------
    ArgumentError
        If they name several.
    """
    found = likelihoods_of(algorithms)
    if len(found) > 1:
        raise ArgumentError(
            where,
            "methods with one likelihood",
            found,
            "the likelihood to predict with, likelihood=",
        )
    return found[0] if found else Categorical()


def updates_of(reducer: Reducer) -> list[Update]:
    """Return the updates of a round that have a weight, in the order of the clients' names.

    Raises
    ------
    UpdateError
        If the reducer adds, or the clients sent another kind.
    """
    kept = gathered(reducer, Keep)
    if kept is None or any(update.kind != "value" for update in kept.updates.values()):
        raise UpdateError(
            "server step",
            "every update of kind 'value'",
            f"{type(reducer).__name__}, or another kind",
            "a phase with reducer=Keep",
        )
    return [kept.updates[client] for client in sorted(kept.updates) if kept.updates[client].weighs]
