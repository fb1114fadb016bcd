"""Regressions whose exact posterior is known, and problems of which nobody may say that the draws
are the posterior's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from parts.exact.linear import flat, regression
from parts.exact.models import Case, named
from pyro.distributions import constraints
from torch import Tensor

from bayesfed.data import Dataset

Moments = dict[str, dict[str, float]]


def simulated(seed: int) -> tuple[Case, Moments]:
    """Return a linear regression with flat priors in raw units, and its means and sds: of 12 to 200
    rows at 1 to 6 sites, correlated columns far from zero.
    """
    random = np.random.default_rng(seed)
    size, sites = int(random.integers(1, 8)), int(random.integers(1, 7))
    rows = int(random.integers(3 * size + 9, 200))
    mixing = random.normal(size=(size, size)) + np.eye(size)
    scales = 10.0 ** random.uniform(-2, 3, size)
    columns = (random.normal(size=(rows, size)) @ mixing + 3 * random.normal(size=size)) * scales
    inputs = np.concatenate([np.ones((rows, 1)), columns], 1)
    outcome = inputs @ (random.normal(size=size + 1) / np.r_[1, scales]) + random.normal(size=rows)
    outcome *= 10.0 ** random.uniform(-2, 4)
    places, (left, *_) = np.linalg.lstsq(inputs, outcome, rcond=None)[:2]
    free = rows - size - 2
    variance = left / (free - 2)
    sds = np.sqrt(variance * np.linalg.inv(inputs.T @ inputs).diagonal())
    told = {
        f"beta[{k + 1}]": {"mean": m, "sd": s}
        for k, (m, s) in enumerate(zip(places, sds, strict=True))
    }
    mean = math.sqrt(left / 2) * math.exp(math.lgamma((free - 1) / 2) - math.lgamma(free / 2))
    told["sigma"] = {"mean": mean, "sd": math.sqrt(variance - mean**2)}
    data = Dataset(torch.from_numpy(inputs), torch.from_numpy(outcome))
    holders = np.sort(random.integers(0, sites, rows))
    return Case(regression(size + 1, 0.0), data, holders, named), told


def _numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def _problem(model: Callable[..., Any], inputs: Tensor, targets: Tensor, sites: int = 3) -> Case:
    return Case(model, Dataset(inputs, targets), np.arange(len(inputs)) % sites, named)


def _logistic(size: int) -> Callable[..., None]:
    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        beta = pyro.sample("beta", flat(constraints.real_vector, (size,)))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Bernoulli(logits=inputs @ beta), obs=targets)

    return model


def _poisson(inputs: Tensor, targets: Tensor | None = None) -> None:
    beta = pyro.sample("beta", flat(constraints.real_vector, (3,)))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Poisson((inputs @ beta).exp()), obs=targets)


def _mixture(count: int) -> Callable[..., None]:
    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu = pyro.sample("mu", dist.Normal(torch.zeros(count), 4.0).to_event(1))
        with pyro.plate("rows", len(inputs)):
            each = dist.Normal(mu, torch.tensor(0.7)).log_prob(inputs[:, :1])
            pyro.factor("y", each.logsumexp(-1))

    return model


def _schools(inputs: Tensor, targets: Tensor | None = None) -> None:
    mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(torch.tensor(5.0)))
    theta = pyro.sample("theta", dist.Normal(mu, tau).expand([8]).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(theta[inputs[:, 0].long()], inputs[:, 1]), obs=targets)


def _funnel(inputs: Tensor, targets: Tensor | None = None) -> None:
    width = pyro.sample("width", dist.Normal(torch.tensor(0.0), 3.0))
    at = pyro.sample("at", dist.Normal(torch.zeros(5), (width / 2).exp()).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(at.sum(), 10.0), obs=targets)


def _product(inputs: Tensor, targets: Tensor | None = None) -> None:
    a, b = (pyro.sample(name, flat()) for name in "ab")
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(a * b, 0.1), obs=targets)


def _between(inputs: Tensor, targets: Tensor | None = None) -> None:
    scale = pyro.sample("log_tau", flat()).exp()
    mu = pyro.sample("mu", flat())
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(mu, (scale**2 + inputs[:, 0] ** 2).sqrt()), obs=targets)


def _unused(inputs: Tensor, targets: Tensor | None = None) -> None:
    a = pyro.sample("a", dist.Normal(torch.tensor(0.0), 5.0))
    pyro.sample("b", flat())
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=targets)


def told() -> dict[str, Case]:
    """Return the problems by name."""
    ones, normal = torch.ones(60, 1).double(), _numbers(60, 2)
    inputs = torch.cat([ones, normal], 1)
    positive, noise = (inputs[:, 1] > 0).double(), _numbers(60)
    twice = torch.cat([inputs, inputs[:, 1:2]], 1)
    apart = torch.cat([noise[:30] * 0.7 - 3, noise[30:] * 0.7 + 3])[:, None]
    three = torch.cat([noise[:20] - 6, noise[20:40], noise[40:] + 6])[:, None]
    effects = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12]).double()
    errors = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18]).double()
    schools = torch.stack([torch.arange(8.0).double(), errors], 1)
    silent = torch.cat([ones, normal[:, :1], (torch.arange(60) < 10).double()[:, None]], 1)
    counted = torch.where(torch.arange(60) < 10, 0.0, 2.0).double()
    return {
        "separable": _problem(_logistic(3), inputs, positive),
        "separable, nine rows": _problem(_logistic(3), inputs[:9], positive[:9]),
        "separable by one column of two": _problem(_logistic(2), inputs[:, :2], positive),
        "duplicated column": _problem(regression(4, 0.0), twice, noise),
        "duplicated column, logistic": _problem(_logistic(4), twice, (noise > 0).double()),
        "column of zeros": _problem(regression(4, 0.0), twice * torch.tensor([1, 1, 1, 0]), noise),
        "as many rows as coefficients": _problem(regression(3, 0.0), inputs[:3], noise[:3]),
        "no residuals": _problem(regression(3, 0.0), inputs, inputs.sum(1)),
        "one degree of freedom": _problem(regression(3, 0.0), inputs[:4], noise[:4], 2),
        "no event in a group": _problem(_poisson, silent, counted),
        "unordered mixture": _problem(_mixture(2), apart, noise),
        "unordered mixture of three": _problem(_mixture(3), three, noise),
        "centred schools": _problem(_schools, schools, effects, 4),
        "funnel": _problem(_funnel, inputs[:3], noise[:3]),
        "product": _problem(_product, inputs[:6], 1 + 0.1 * noise[:6]),
        "flat logarithm of a scale": _problem(_between, errors[:, None], effects, 4),
        "unused site": _problem(_unused, inputs[:6], noise[:6]),
    }
