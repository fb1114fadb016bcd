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
from bayesfed.inference.exact import points, stages
from bayesfed.inference.exact.posterior import ExactPosterior
from bayesfed.inference.exact.traced import doubled

Reference = Mapping[str, Mapping[str, float]]
Moments = dict[str, tuple[float, float]]


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
    # The error of the Gaussian at the mode, which costs the first rounds only.
    laplace: float = float("nan")


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
        return Score(name, posterior.traced.size, none, none, none, none, 0.0, *sent, none)
    known = {parameter: (one["mean"], one["sd"]) for parameter, one in reference.items()}
    told = *apart(moments(posterior, case.values), known), posterior.k_hat, posterior.ess
    laplace, _, _ = apart(at_mode(posterior, case.values), known)
    return Score(name, posterior.traced.size, *told, *sent, laplace)


def apart(found: Moments, reference: Moments) -> tuple[float, float, float]:
    """Return the error of the worst mean in reference sds, and the range of ratios of sds."""
    errors = [abs(mean - reference[n][0]) / reference[n][1] for n, (mean, _) in found.items()]
    ratios = [sd / reference[n][1] for n, (_, sd) in found.items()]
    return max(errors), min(ratios), max(ratios)


def at_mode(
    posterior: ExactPosterior, values: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
) -> Moments:
    """Return means and sds of the Gaussian at the best mode, on the scale of the parameters."""
    state, made = posterior.state, posterior.traced
    best = stages.best_mode(state)
    normal = points.normal(4096, made.size, 11)
    with doubled():
        where = state["mode/centre"][best] + normal @ state["mode/basis"][best].T
        found = vmap(values)(vmap(made.values)(where))
    return {name: (float(one.mean()), float(one.std())) for name, one in found.items()}


def moments(
    posterior: ExactPosterior, values: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
) -> Moments:
    """Return mean and sd of each parameter over the weighted points."""
    weights, found = posterior.verdict.weights, {}
    for name, drawn in vmap(values)(posterior.values).items():
        mean = float(weights @ drawn)
        found[name] = mean, float(weights @ (drawn - mean).square()) ** 0.5
    return found
