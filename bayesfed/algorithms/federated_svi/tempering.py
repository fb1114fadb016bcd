"""What `federated_svi` chooses for a `bayesian` network: its temperature, the scale of automatic
priors, and the guide.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from pyro.infer.autoguide import AutoNormal
from pyro.infer.autoguide.initialization import init_to_value

from bayesfed.algorithms.federated_svi.network import STRENGTH, TEMPERATURE
from bayesfed.errors import ArgumentError
from bayesfed.federated import Ivon, Kind, Update, Whole
from bayesfed.inference.variational.fusion import Fusion
from bayesfed.inference.variational.program import Runs
from bayesfed.models import BayesianNet, Gaussian
from bayesfed.models.priors.likelihoods import temperature_of
from bayesfed.trees import Shapes, Tree

# Temperature, in rows for each weight, where the likelihood leaves it open; squared gradients of a
# weight and row in the beginning.
ROWS_A_WEIGHT, CURVATURE = 0.1, 6e-4


@dataclass(frozen=True)
class Scored:
    """The view of all leaves, where clients get the temperature as well and send scores in its
    place.
    """

    sent: Shapes

    def restrict(self, tree: Tree) -> Tree:
        """Return all leaves."""
        return dict(tree)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Check and weigh."""
        return Whole(self.sent).lift(payload, weight, kind)


def untempered(state: Tree) -> Tree:
    """Return a state without its temperature."""
    return {name: leaf for name, leaf in state.items() if name != TEMPERATURE}


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


def tempered(
    model: BayesianNet, temperature: float | str | None, observations: int, ivon: Ivon | None
) -> BayesianNet:
    """Return the network with the temperature that holds, or with which "auto" begins, and with it
    the scale of automatic priors.
    """
    own, where = model.likelihood.temperature, "federated_svi, temperature"
    if temperature is not None and own is not None:
        actual = f"{temperature!r} and {own} of the likelihood"
        raise ArgumentError(where, "one temperature", actual, "Categorical(), which leaves it open")
    if temperature is not None and not (
        isinstance(temperature, int | float) and 0 < temperature < math.inf
    ):
        raise ArgumentError(where, "a number above 0 or 'auto'", repr(temperature), "'auto'")
    if own is None and (temperature is not None or ivon):
        weights = sum(model.values[name].numel() for name in model.priors)
        chosen = (
            float(temperature)
            if isinstance(temperature, int | float)
            else min(1.0, ROWS_A_WEIGHT * observations / weights)
        )
        model = replace(model, likelihood=replace(cast(Any, model.likelihood), temperature=chosen))
    if ivon and model.automatic:
        sd = math.sqrt(temperature_of(model.likelihood) / STRENGTH)
        model = replace(model, priors=dict.fromkeys(model.priors, Gaussian(sd)))
    return model


def network_guide(model: Runs, observations: int) -> Runs:
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
    scale = (CURVATURE * observations / temperature + weakest) ** -0.5
    return partial(
        AutoNormal, init_loc_fn=init_to_value(values=dict(model.values)), init_scale=scale
    )
