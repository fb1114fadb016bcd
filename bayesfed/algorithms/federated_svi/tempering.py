"""What `federated_svi` chooses for a `bayesian` network: its temperature, the scale of automatic
priors, and the guide.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_value

from bayesfed.algorithms.federated_svi.network import STRENGTH
from bayesfed.errors import ArgumentError
from bayesfed.federated import Ivon
from bayesfed.inference.variational import Fusion, Runs
from bayesfed.models import BayesianNet, Gaussian
from bayesfed.models.likelihoods.rows import temperature_of
from bayesfed.models.priors.tempering import needed, tempered

# Squared gradients of a weight and row in the beginning.
CURVATURE = 6e-4


def is_auto(
    model: Runs, fusion: Fusion, ivon: Ivon | None, temperature: float | str | None, network: bool
) -> bool:
    """Return whether the temperature is chosen during the run."""
    left_open = isinstance(model, BayesianNet) and model.likelihood.temperature is None
    possible = left_open and ivon is not None and not fusion.adds and fusion.kind == "natural"
    if isinstance(temperature, str):
        if temperature != "auto" or not possible:
            hint = (
                "fusion=ReverseKL(), training=Training(optimiser=Ivon()), and a likelihood "
                "without a temperature"
            )
            raise ArgumentError(
                "federated_svi, temperature",
                "a number, or 'auto' with IVON",
                repr(temperature),
                hint,
            )
        return True
    return temperature is None and possible and network


def network_model(
    model: BayesianNet, temperature: float | None, observations: int | None, ivon: Ivon | None
) -> BayesianNet:
    """Return the network with the temperature that holds, or with which "auto" begins, and with it
    the scale of automatic priors.
    """
    if temperature is not None or ivon:
        weights = weights_of(model)
        likelihood = tempered(
            model.likelihood, temperature, observations, weights, where="federated_svi"
        )
        model = replace(model, likelihood=likelihood)
    if ivon and model.automatic:
        sd = math.sqrt(temperature_of(model.likelihood) / STRENGTH)
        model = replace(model, priors=dict.fromkeys(model.priors, Gaussian(sd)))
    return model


def weights_of(model: BayesianNet) -> int:
    """Return the number of weights with a prior."""
    return sum(model.values[name].numel() for name in model.priors)


def network_guide(model: Runs, observations: int | None) -> Runs:
    """Return the default guide: for a network, at its own weights and as wide as a network's
    posterior usually is.
    """
    if not isinstance(model, BayesianNet):
        return AutoNormal
    temperature = temperature_of(model.likelihood)
    weakest = min(
        (prior.sd**-2 for prior in model.priors.values() if isinstance(prior, Gaussian)),
        default=1.0,
    )
    scale = (CURVATURE * needed(observations, "federated_svi") / temperature + weakest) ** -0.5
    return partial(
        AutoNormal, init_loc_fn=init_to_value(values=dict(model.values)), init_scale=scale
    )
