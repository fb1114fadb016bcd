"""A warning of networks whose layers draw their own weights, trained without a KL divergence."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from bayesfed.data import Dataset
from bayesfed.federated import Algorithm, Model
from bayesfed.federated.core.seams import objective_of
from bayesfed.inference.objectives.likelihood import AroundObjective, MaximumLikelihood
from bayesfed.models.live import drawing_weights, may_draw_weights
from bayesfed.trees import to


def warn_of_drawn_weights(algorithm: Algorithm, rows: Mapping[str, Dataset]) -> None:
    """Warn if a network is trained by its likelihood alone and has layers that draw their own
    weights. What draws is found by looking at the generators while a row goes through the network.

    Warns
    -----
    UserWarning
        With the layers, and two parameters of the first.
    """
    objectives = [objective_of(phase.local) for phase in algorithm.phases]
    # A class of one's own may add a divergence.
    by_likelihood = any(
        type(objective) is MaximumLikelihood or isinstance(objective, AroundObjective)
        for objective in objectives
    )
    model = algorithm.predictor(algorithm.initial) if by_likelihood else None
    # No rows are read for a network that has no such layer.
    if not isinstance(model, Model) or not may_draw_weights(model.net):
        return
    try:
        inputs = next(data.inputs[:1] for data in rows.values() if len(data))
        layers = drawing_weights(model.net, to(model.parameters, inputs.device), inputs)
    # Rows that cannot be read, or that the network does not take, are refused where clients train,
    # with the client's name.
    except Exception:
        return
    if not layers:
        return
    first, second = next(iter(layers.values()))
    parameters = f"{first!r} and {second!r}"
    text = (
        f"{algorithm.name}: the layers {', '.join(map(repr, layers))} draw their own weights, also "
        f"in evaluation mode (parameters {parameters}), and the loss has no KL divergence to a "
        "prior, so that what they draw is no posterior"
    )
    hint = "federated_svi(bayesian(net)) of a network of plain layers"
    warnings.warn(f"{text}; try {hint}", stacklevel=4)
