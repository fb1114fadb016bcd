"""Posteriors by NUTS, for the problems of `problems.py` that have no closed form; writes
`reference.json` beside this file.

    python benchmarks/fidelity.py --reference [FILE] [--draws 5500]

Pyro's NUTS on the pooled rows in float64, four chains one after the other, each from its own key
and its own start. Means, sds and covariances are in unconstrained space: the weights of the
logistic regression; mu and log tau of the eight schools (tau, theta and eta too, without
covariances). `mcse` is the error of each mean in posterior sds, 1 / sqrt(effective sample size).
Nothing is written unless r-hat <= 1.01 and every error is at most 0.01 sd; divergences are counted
and stored. Five minutes on one thread.

The eight schools' `quadrature` is a sum over a grid of (mu, log tau) with the schools integrated
out, accurate to all digits given: it shares no code with the sampler.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyro
import torch
from parts.fidelity.problems import (
    SCHOOLS,
    logistic,
    logistic_model,
    pooled,
    schools,
    schools_model,
)
from pyro.infer import MCMC, NUTS
from pyro.ops.stats import effective_sample_size, split_gelman_rubin
from torch import Tensor
from torch.distributions import HalfCauchy, Normal

from bayesfed.data import Dataset
from bayesfed.keys import Key, forked

CHAINS, WARMUP, SEED, DIGITS = 4, 500, 0, 5
WORST_R_HAT, WORST_ERROR = 1.01, 0.01
Record = dict[str, Any]


@dataclass(frozen=True)
class Chains:
    """Draws by site, ``(chains, draws, ...)``, and how the sampling went."""

    sites: dict[str, Tensor]
    divergences: int
    seconds: float


def written(file: Path, draws: int) -> int:
    """Sample, print and write; return the exit status."""
    torch.set_num_threads(1)
    chains = sample("logistic", logistic_model, pooled(logistic()), draws, dense=True)
    found: Record = {"logistic": describe(chains, {"w": chains.sites["w"]})}
    found["logistic"]["w"]["covariance"] = torch.cov(chains.sites["w"].flatten(0, 1).T)
    chains = sample("schools", schools_model, pooled(schools()), draws, dense=False)
    mu, tau, eta = (chains.sites[name] for name in ("mu", "tau", "eta"))
    shared = {"mu": mu, "log_tau": tau.log()}
    found["schools"] = describe(
        chains, {**shared, "tau": tau, "eta": eta, "theta": mu[..., None] + tau[..., None] * eta}
    )
    found["schools"]["covariance"] = torch.cov(
        torch.stack([draws.flatten() for draws in shared.values()])
    )
    found["schools"]["quadrature"] = quadrature()
    settings = {
        "seed": SEED,
        "chains": CHAINS,
        "warmup": WARMUP,
        "draws": draws,
        "dtype": "float64",
    }
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pyro": pyro.__version__,
    }
    said = text({"sampler": "pyro.infer.NUTS", **settings, "versions": versions, **found})
    print(said)
    met = [accepted(found[name]) for name in ("logistic", "schools")]
    if not all(met):
        return 1
    file.write_text(said + "\n")
    return 0


def sample(
    name: str, model: Callable[..., None], data: Dataset, draws: int, *, dense: bool
) -> Chains:
    """Run the chains one after the other; `dense` adapts a full mass matrix."""
    start, runs, divergences = time.perf_counter(), [], 0
    for chain in range(CHAINS):
        pyro.clear_param_store()
        with forked(Key(SEED, "nuts", name, chain)):
            kernel = NUTS(
                model,
                full_mass=dense,
                target_accept_prob=0.9,
                jit_compile=True,
                ignore_jit_warnings=True,
            )
            mcmc = MCMC(kernel, num_samples=draws, warmup_steps=WARMUP, disable_progbar=True)
            mcmc.run(data.inputs, data.targets)
        runs.append(mcmc.get_samples())
        divergences += len(mcmc.diagnostics()["divergences"]["chain 0"])
    return Chains(
        {site: torch.stack([run[site] for run in runs]) for site in runs[0]},
        divergences,
        time.perf_counter() - start,
    )


def describe(chains: Chains, values: dict[str, Tensor]) -> Record:
    """Return mean, sd, r-hat and the error of the mean in sds of each value
    ``(chains, draws, ...)``.
    """
    record: Record = {"divergences": chains.divergences, "seconds": round(chains.seconds)}
    for name, draws in values.items():
        record[name] = {
            "mean": draws.mean((0, 1)),
            "sd": draws.flatten(0, 1).std(0),
            "r_hat": split_gelman_rubin(draws, 0, 1),
            "mcse": effective_sample_size(draws, 0, 1).rsqrt(),
        }
    return record


def accepted(found: Record) -> bool:
    """Return whether all chains agree and every mean is accurate enough; say what is not."""
    met = True
    for name, entry in found.items():
        for figure, worst in (("r_hat", WORST_R_HAT), ("mcse", WORST_ERROR)):
            if isinstance(entry, dict) and figure in entry and float(entry[figure].max()) > worst:
                print(
                    f"{name}: {figure} {float(entry[figure].max()):.4f}, wanted <= {worst}",
                    file=sys.stderr,
                )
                met = False
    return met


def quadrature() -> Record:
    """Return mean and sd of mu, log tau and tau of the eight schools, effects integrated out: y ~
    N(mu, sqrt(tau^2 + sigma^2)).
    """
    mu = torch.linspace(-40, 50, 901, dtype=torch.float64)[:, None]
    log_tau = torch.linspace(-25, 25, 5001, dtype=torch.float64)
    tau = log_tau.exp()
    logs = Normal(0.0, 5.0).log_prob(mu) + HalfCauchy(5.0).log_prob(tau) + log_tau
    for y, sigma in SCHOOLS:
        logs = logs + Normal(mu, (tau**2 + sigma**2).sqrt()).log_prob(
            torch.tensor(y, dtype=torch.float64)
        )
    weights = torch.softmax(logs.flatten(), 0).reshape(logs.shape)
    values = {
        "mu": mu.expand_as(logs),
        "log_tau": log_tau.expand_as(logs),
        "tau": tau.expand_as(logs),
    }
    means = {name: (weights * value).sum() for name, value in values.items()}
    return {
        name: {"mean": means[name], "sd": (weights * (value - means[name]) ** 2).sum().sqrt()}
        for name, value in values.items()
    }


def text(value: Any, depth: int = 0) -> str:
    """Return JSON with five significant digits, two levels of keys on lines of their own."""
    if isinstance(value, dict) and depth < 3:
        inner = (
            f"{'  ' * (depth + 1)}{json.dumps(key)}: {text(entry, depth + 1)}"
            for key, entry in value.items()
        )
        return "{\n" + ",\n".join(inner) + "\n" + "  " * depth + "}"
    return json.dumps(rounded(value))


def rounded(value: Any) -> Any:
    """Return tensors as nested lists of numbers of five significant digits; all else as it is."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
