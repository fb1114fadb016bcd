"""How near a run of `federated_svi` of a model alone is to a reference."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from parts.exact.models import Case
from torch import Tensor
from torch.func import vmap

import bayesfed as bf
from bayesfed.data import Dataset
from bayesfed.errors import UndeterminedWarning
from bayesfed.inference.exact.posterior import ExactPosterior

Reference = Mapping[str, Mapping[str, float]]


class Score(NamedTuple):
    """What is printed of a posterior; errors are infinite where there are no draws."""

    name: str
    size: int
    error: float
    low: float
    high: float
    k_hat: float
    ess: float
    rounds: int
    kilobytes: float
    seconds: float
    status: str


def fitted(model: Callable[..., Any], clients: Mapping[str, Dataset]) -> bf.Result:
    """Run at the defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UndeterminedWarning)
        return bf.run(bf.federated_svi(model), clients, progress=False)


def timed(
    model: Callable[..., Any], clients: Mapping[str, Dataset]
) -> tuple[bf.Result, float, float]:
    """Run at the defaults; return seconds, and kB of the client that sent most, as well."""
    start = time.perf_counter()
    result = fitted(model, clients)
    seconds = time.perf_counter() - start
    up = {row.client: 0.0 for row in result.ledger}
    for row in result.ledger:
        up[row.client] += row.bits / 8000 if row.direction == "up" else 0
    return result, seconds, max(up.values())


def exact(result: bf.Result) -> ExactPosterior:
    """Return the posterior of a run of `federated_svi` of a model alone."""
    posterior = result.posterior
    assert isinstance(posterior, ExactPosterior)
    return posterior


def scored(name: str, case: Case, reference: Reference) -> Score:
    """Run at the defaults, and compare the weighted points with reference means and sds."""
    result, seconds, kilobytes = timed(case.model, case.clients)
    posterior = exact(result)
    sent = len(result.history), kilobytes, seconds, posterior.status
    if "points" not in posterior.state:
        none = float("inf")
        return Score(name, posterior.traced.size, none, none, none, none, 0.0, *sent)
    error, ratios = 0.0, list[float]()
    for parameter, value in moments(posterior, case.values).items():
        mean, sd = value
        known = reference[parameter]
        error = max(error, abs(mean - known["mean"]) / known["sd"])
        ratios.append(sd / known["sd"])
    told = error, min(ratios), max(ratios), posterior.k_hat, posterior.ess
    return Score(name, posterior.traced.size, *told, *sent)


def moments(
    posterior: ExactPosterior, values: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
) -> dict[str, tuple[float, float]]:
    """Return mean and sd of each parameter over the weighted points."""
    weights, found = posterior.verdict.weights, {}
    for name, drawn in vmap(values)(posterior.values).items():
        mean = float(weights @ drawn)
        found[name] = mean, float(weights @ (drawn - mean).square()) ** 0.5
    return found
