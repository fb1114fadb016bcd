"""Forty problems of whose draws nobody may say that they are the posterior's: it is improper, has
no mean, several modes, a ridge or a funnel, rows are missing, or the model is no sum over rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from parts.exact.linear import flat, regression
from parts.exact.models import Case, named
from pyro.distributions import constraints
from torch import Tensor

import bayesfed as bf
from bayesfed.data import Dataset

Model = Callable[..., Any]


class Away(bf.InProcess):
    """A pool in which a site answers no more after some rounds."""

    def __init__(self, clients: Mapping[str, Dataset], name: str, rounds: int) -> None:
        super().__init__(dict(clients))
        self.name, self.rounds, self.done = name, rounds, 0

    def map(self, sides: Any, tasks: Any) -> Iterator[Any]:
        """Answer in place of all sites but the one that is away."""
        self.done += 1
        for task, outcome in super().map(sides, tasks):
            fails = task.client == self.name and self.done > self.rounds
            yield task, task.error("fit", "away") if fails else outcome


def numbers(*shape: int, seed: int = 3) -> Tensor:
    """Return standard normal numbers."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def problem(model: Model, inputs: Tensor, targets: Tensor, sites: int = 3) -> Case:
    """Return a model with its rows, dealt in turn."""
    return Case(model, Dataset(inputs, targets), np.arange(len(inputs)) % sites, named)


def generalised(size: int, family: Callable[[Tensor], Any]) -> Model:
    """Return a regression with flat coefficients."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        beta = pyro.sample("beta", flat(constraints.real_vector, (size,)))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", family(inputs @ beta), obs=targets)

    return model


def logistic(size: int) -> Model:
    """Return a logistic regression with flat coefficients."""
    return generalised(size, lambda at: dist.Bernoulli(logits=at))


def poisson(size: int) -> Model:
    """Return a Poisson regression with flat coefficients."""
    return generalised(size, lambda at: dist.Poisson(at.exp()))


def mixture(count: int, width: float = 0.7, wide: float = 4.0) -> Model:
    """Return a mixture without an order."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu = pyro.sample("mu", dist.Normal(torch.zeros(count), wide).to_event(1))
        with pyro.plate("rows", len(inputs)):
            each = dist.Normal(mu, torch.tensor(width)).log_prob(inputs[:, :1])
            pyro.factor("y", each.logsumexp(-1))

    return model


def lines(inputs: Tensor, targets: Tensor) -> None:
    """State a mixture of two regressions without an order."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2, 2), 3.0).to_event(2))
    with pyro.plate("rows", len(inputs)):
        each = dist.Normal(inputs @ beta, torch.tensor(0.5)).log_prob(targets[:, None])
        pyro.factor("y", each.logsumexp(-1))


def hierarchy(count: int, scale: float, known: bool = True) -> Model:
    """Return centred effects of groups; column 0 is the group, column 1 the sd."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0), 5.0))
        prior = dist.HalfCauchy(torch.tensor(scale)) if known else flat(constraints.positive)
        tau = pyro.sample("tau", prior)
        theta = pyro.sample("theta", dist.Normal(mu, tau).expand([count]).to_event(1))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(theta[inputs[:, 0].long()], inputs[:, 1]), obs=targets)

    return model


def funnel(size: int, width: float) -> Model:
    """Return Neal's funnel, of which rows say little."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        scale = pyro.sample("width", dist.Normal(torch.tensor(0.0), width))
        at = pyro.sample("at", dist.Normal(torch.zeros(size), (scale / 2).exp()).to_event(1))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(at.sum(), 10.0), obs=targets)

    return model


def placed(names: str, place: Callable[..., Tensor], sd: float, wide: float = 0.0) -> Model:
    """Return rows around a function of unknowns whose priors are flat, or this wide."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        prior = dist.Normal(torch.tensor(0.0), wide) if wide else flat()
        at = place(*(pyro.sample(name, prior) for name in names))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(at, sd), obs=targets)

    return model


def located(family: Callable[[Tensor], Any], wide: float = 0.0) -> Model:
    """Return a location of rows."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        at = pyro.sample("at", dist.Normal(torch.tensor(0.0), wide) if wide else flat())
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", family(at), obs=targets)

    return model


def between(inputs: Tensor, targets: Tensor | None = None) -> None:
    """State effects of groups summed out, with a flat logarithm of their scale."""
    scale = pyro.sample("log_tau", flat()).exp()
    mu = pyro.sample("mu", flat())
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(mu, (scale**2 + inputs[:, 0] ** 2).sqrt()), obs=targets)


def unused(inputs: Tensor, targets: Tensor | None = None) -> None:
    """State a flat site that nothing uses."""
    a = pyro.sample("a", dist.Normal(torch.tensor(0.0), 5.0))
    pyro.sample("b", flat())
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(a, 1.0), obs=targets)


def counted(rows: int) -> Model:
    """Return a model that counts each row as often as if there were so many."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        at = pyro.sample("at", dist.Normal(torch.tensor(0.0), 5.0))
        with pyro.plate("rows", rows, subsample=torch.arange(len(inputs))):
            pyro.sample("y", dist.Normal(at * inputs[:, 0], 1.0), obs=targets)

    return model


def averaged(inputs: Tensor, targets: Tensor) -> None:
    """State a log likelihood that is a mean over rows."""
    at = pyro.sample("at", dist.Normal(torch.tensor(0.0), 5.0))
    pyro.factor("y", dist.Normal(at, 1.0).log_prob(targets).mean())


def standardised(inputs: Tensor, targets: Tensor | None = None) -> None:
    """State columns that every site scales by its own rows."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(3), 5.0).to_event(1))
    scaled = (inputs - inputs.mean(0)) / inputs.std(0).clamp_min(1e-6)
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(scaled @ beta, 1.0), obs=targets)


def scaled_prior(inputs: Tensor, targets: Tensor | None = None) -> None:
    """State a prior as wide as the rows (Zellner's)."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(3), inputs.std(0) + 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ beta, 1.0), obs=targets)


def bad() -> dict[str, Case]:
    """Return the problems by name, but those of `away`."""
    ones, normal = torch.ones(60, 1).double(), numbers(60, 2)
    inputs, noise = torch.cat([ones, normal], 1), numbers(60)
    positive, coin = (inputs[:, 1] > 0).double(), (noise > 0).double()
    raw = inputs * torch.tensor([1.0, 1e4, 1e-3]) + torch.tensor([0.0, 5e4, 0.0])
    twice = torch.cat([inputs, inputs[:, 1:2]], 1)
    dummies = torch.nn.functional.one_hot(torch.arange(60) % 3, 3).double()
    trap = torch.cat([ones, dummies], 1)
    apart = torch.cat([noise[:30] * 0.7 - 3, noise[30:] * 0.7 + 3])[:, None]
    three = torch.cat([noise[:20] - 6, noise[20:40], noise[40:] + 6])[:, None]
    crossing = inputs[:, :2] @ torch.tensor([[0.0, 0.0], [2.0, -2.0]]).double()
    crossed = crossing[torch.arange(60), torch.arange(60) // 30] + 0.5 * noise
    effects = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12]).double()
    errors = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18]).double()
    schools = torch.stack([torch.arange(8.0).double(), errors], 1)
    some = torch.stack([torch.arange(12.0).double() % 3, torch.full((12,), 2.0)], 1)
    silent = torch.cat([ones, normal[:, :1], (torch.arange(60) < 10).double()[:, None]], 1)
    few = torch.where(torch.arange(60) < 10, 0.0, 2.0).double()
    distant = torch.tensor([-0.3, 0.0, 0.4, 29.6, 30.0, 30.3]).double()

    def cauchy(at: Tensor) -> Any:
        return dist.Cauchy(at, torch.tensor(0.5))

    return {
        "separable": problem(logistic(3), inputs, positive),
        "separable, nine rows": problem(logistic(3), inputs[:9], positive[:9]),
        "separable by one column of two": problem(logistic(2), inputs[:, :2], positive),
        "separable, raw units": problem(logistic(3), raw, positive),
        "separable but for a tie": problem(
            logistic(2),
            torch.cat([inputs[:, :2], torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()]),
            torch.cat([positive, torch.tensor([0.0, 1.0]).double()]),
        ),
        "no event": problem(logistic(3), inputs, torch.zeros(60).double()),
        "no event in a group": problem(poisson(3), silent, few),
        "duplicated column": problem(regression(4, 0.0), twice, noise),
        "duplicated column, logistic": problem(logistic(4), twice, coin),
        "duplicated column, Poisson": problem(poisson(4), twice, coin + 1),
        "column of zeros": problem(regression(4, 0.0), twice * torch.tensor([1, 1, 1, 0]), noise),
        "all levels and a constant": problem(regression(4, 0.0), trap, noise),
        "all levels and a constant, logistic": problem(logistic(4), trap, coin),
        "as many rows as coefficients": problem(regression(3, 0.0), inputs[:3], noise[:3]),
        "no residuals": problem(regression(3, 0.0), inputs, inputs.sum(1)),
        "one degree of freedom": problem(regression(3, 0.0), inputs[:4], noise[:4], 2),
        "two degrees of freedom, no mean": problem(regression(3, 0.0), inputs[:5], noise[:5], 2),
        "one row of a Cauchy, no mean": problem(located(cauchy), inputs[:1], noise[:1], 1),
        "unused site": problem(unused, inputs[:6], noise[:6]),
        "unordered mixture": problem(mixture(2), apart, noise),
        "unordered mixture of three": problem(mixture(3), three, noise),
        "unordered mixture, near": problem(mixture(2), apart * 0.5, noise),
        "unordered mixture, ten times as far": problem(mixture(2, 7.0, 40.0), apart * 10, noise),
        "unordered regressions": problem(lines, inputs[:, :2], crossed),
        "square": problem(placed("a", torch.square, 0.3, 5.0), inputs[:6], 4 + noise[:6]),
        "a few rows far from others": problem(located(cauchy, 50.0), ones[:6], distant, 2),
        "circle": problem(
            placed("ab", lambda a, b: a**2 + b**2, 0.1), inputs[:6], 1 + 0.1 * noise[:6]
        ),
        "centred schools": problem(hierarchy(8, 5.0), schools, effects, 4),
        "centred schools, a third as apart": problem(hierarchy(8, 5.0), schools, effects / 3, 4),
        "centred, flat scale, three groups": problem(
            hierarchy(3, 0.0, False), some, numbers(12), 3
        ),
        "funnel": problem(funnel(5, 3.0), inputs[:3], noise[:3]),
        "funnel of ten": problem(funnel(10, 2.0), inputs[:3], noise[:3]),
        "product": problem(placed("ab", torch.mul, 0.1), inputs[:6], 1 + 0.1 * noise[:6]),
        "flat logarithm of a scale": problem(between, errors[:, None], effects, 4),
        "wrong number of rows": problem(counted(1000), inputs, noise),
        "mean over rows": problem(averaged, inputs, noise),
        "columns scaled at each site": problem(standardised, inputs, noise),
        "prior from the rows": problem(scaled_prior, inputs, noise),
    }


def away() -> dict[str, tuple[Case, Away]]:
    """Return problems and pools in which site 1 is away for good: from the mode, from the end."""
    case = problem(regression(2, 0.0), numbers(60, 2), numbers(60, seed=4))
    return {
        f"a site away from round {rounds + 1}": (case, Away(case.clients, "1", rounds))
        for rounds in (3, 9)
    }
