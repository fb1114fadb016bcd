"""The posteriors of posteriordb whose rows can be split over sites, as Pyro models with their rows
and sites.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from parts.exact.linear import LINEAR, flat, regression
from pyro.distributions import constraints
from torch import Tensor

from bayesfed.data import Dataset

Draw = Mapping[str, Tensor]


class Case(NamedTuple):
    """A posterior: its model, all rows, who holds each, and the parameters of the reference as a
    function of a draw.
    """

    model: Callable[..., Any]
    rows: Dataset
    holders: np.ndarray
    values: Callable[[Draw], dict[str, Tensor]]

    @property
    def clients(self) -> dict[str, Dataset]:
        """The rows of every site by its name."""
        return {
            str(name): self.rows[torch.from_numpy(np.flatnonzero(self.holders == name))]
            for name in np.unique(self.holders)
        }


def case(folder: Path) -> Case:
    """Return a posterior of a folder of the database."""
    read = json.loads((folder / "data.json").read_text())
    data = {name: np.asarray(value, float) for name, value in read.items()}
    if folder.name in LINEAR:
        return _linear(folder.name, data)
    return OTHERS[folder.name](data)


def named(draw: Draw) -> dict[str, Tensor]:
    """Return numbers by the names of the database, ``beta[1]``."""
    found = dict[str, Tensor]()
    for name, leaf in draw.items():
        parts = {f"{name}[{k + 1}]": leaf[k] for k in range(len(leaf))} if leaf.ndim else None
        found |= parts or {name: leaf}
    return found


def _rows(inputs: Any, targets: Any) -> Dataset:
    return Dataset(torch.as_tensor(np.asarray(inputs)), torch.as_tensor(np.asarray(targets)))


def _dealt(count: int, sites: int) -> np.ndarray:
    return np.random.default_rng(1).permutation(np.arange(count) % sites)


def _linear(name: str, data: Mapping[str, np.ndarray]) -> Case:
    said = LINEAR[name]
    columns = said.columns(data)
    inputs = np.stack([np.ones(len(columns[0])), *columns], 1)
    model = regression(inputs.shape[1], said.scale)
    return Case(model, _rows(inputs, said.outcome(data)), data[said.holder].astype(int), named)


def _sblrc(data: Mapping[str, np.ndarray]) -> Case:
    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        beta = pyro.sample("beta", dist.Normal(torch.zeros(5), 10.0).to_event(1))
        sigma = pyro.sample("sigma", dist.HalfNormal(torch.tensor(10.0)))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(inputs @ beta, sigma), obs=targets)

    return Case(model, _rows(data["X"], data["y"]), _dealt(100, 5), named)


def _kilpisjarvi(data: Mapping[str, np.ndarray]) -> Case:
    place, wide, narrow = (float(data[n]) for n in ("pmualpha", "psalpha", "psbeta"))

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        alpha = pyro.sample("alpha", dist.Normal(torch.tensor(place), wide))
        beta = pyro.sample("beta", dist.Normal(torch.tensor(0.0), narrow))
        sigma = pyro.sample("sigma", flat(constraints.positive))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(alpha + beta * inputs[:, 0], sigma), obs=targets)

    decades = ((data["x"] - 2000) // 10).astype(int)
    return Case(model, _rows(data["x"][:, None], data["y"]), decades, named)


def _diamonds(data: Mapping[str, np.ndarray]) -> Case:
    columns = data["X"][:, 1:]
    # The order of contrasts' levels is that of their first (linear) contrast.
    cut = np.unique(columns[:, 4].round(6), return_inverse=True)[1] + 1

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        b = pyro.sample("b", dist.Normal(torch.zeros(24), 1.0).to_event(1))
        start = pyro.sample("Intercept", dist.StudentT(3.0, torch.tensor(8.0), 10.0))
        sigma = pyro.sample("sigma", flat(constraints.positive))
        pyro.factor("half_t", dist.StudentT(3.0, torch.tensor(0.0), 10.0).log_prob(sigma))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(start + inputs @ b, sigma), obs=targets)

    return Case(model, _rows(columns - columns.mean(0), data["Y"]), cut, named)


def _ark(data: Mapping[str, np.ndarray]) -> Case:
    y, lags = data["y"], 5
    inputs = np.stack([y[lags - k - 1 : len(y) - k - 1] for k in range(lags)], 1)

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        alpha = pyro.sample("alpha", dist.Normal(torch.tensor(0.0), 10.0))
        beta = pyro.sample("beta", dist.Normal(torch.zeros(5), 10.0).to_event(1))
        sigma = pyro.sample("sigma", dist.HalfCauchy(torch.tensor(2.5)))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(alpha + inputs @ beta, sigma), obs=targets)

    return Case(model, _rows(inputs, y[lags:]), np.arange(195) // 39, named)


def _schools(data: Mapping[str, np.ndarray]) -> Case:
    inputs = np.stack([np.arange(8.0), data["sigma"]], 1)

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        eta = pyro.sample("eta", dist.Normal(torch.zeros(8), 1.0).to_event(1))
        mu = pyro.sample("mu", dist.Normal(torch.tensor(0.0), 5.0))
        tau = pyro.sample("tau", dist.HalfCauchy(torch.tensor(5.0)))
        theta = mu + tau * eta
        with pyro.plate("rows", len(inputs)):
            place = theta[..., inputs[:, 0].long()]
            pyro.sample("y", dist.Normal(place, inputs[:, 1]), obs=targets)

    def values(draw: Draw) -> dict[str, Tensor]:
        theta = draw["mu"] + draw["tau"] * draw["eta"]
        return named({"theta": theta, "mu": draw["mu"], "tau": draw["tau"]})

    return Case(model, _rows(inputs, data["y"]), np.arange(8), values)


def _mixture(data: Mapping[str, np.ndarray]) -> Case:
    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu = pyro.sample("mu", flat(constraints.ordered_vector, (2,)))
        pyro.factor("prior", dist.Normal(torch.tensor(0.0), 2.0).log_prob(mu).sum())
        sigma = pyro.sample("sigma", dist.HalfNormal(torch.full((2,), 2.0)).to_event(1))
        theta = pyro.sample("theta", dist.Beta(torch.tensor(5.0), 5.0))
        shares = torch.stack([theta.log(), (-theta).log1p()])
        each = dist.Normal(mu, sigma).log_prob(inputs[:, :1]) + shares
        pyro.factor("y", each.logsumexp(-1).sum())

    inputs = data["y"][:, None]
    return Case(model, _rows(inputs, np.zeros(1000)), _dealt(1000, 5), named)


def _gp(data: Mapping[str, np.ndarray]) -> Case:
    x = torch.as_tensor(data["x"])

    def function(rho: Tensor, alpha: Tensor, white: Tensor) -> Tensor:
        apart = (x[:, None] - x).square()
        cov = alpha**2 * torch.exp(-apart / (2 * rho**2)) + 1e-10 * torch.eye(11)
        root: Tensor = torch.linalg.cholesky(cov)
        return root @ white

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        rho = pyro.sample("rho", dist.Gamma(torch.tensor(25.0), 4.0))
        alpha = pyro.sample("alpha", dist.HalfNormal(torch.tensor(2.0)))
        white = pyro.sample("white", dist.Normal(torch.zeros(11), 1.0).to_event(1))
        f = function(rho, alpha, white)
        with pyro.plate("rows", len(inputs)):
            pyro.sample("k", dist.Poisson(f[inputs[:, 0].long()].exp()), obs=targets)

    def values(draw: Draw) -> dict[str, Tensor]:
        f = function(draw["rho"], draw["alpha"], draw["white"])
        return named({"rho": draw["rho"], "alpha": draw["alpha"], "f": f})

    return Case(model, _rows(np.arange(11.0)[:, None], data["k"]), _dealt(11, 3), values)


def _solved(
    slope: Callable[[Tensor, float], Tensor], start: Tensor, steps: int, size: float
) -> Tensor:
    """Return a path by the classical Runge-Kutta method, ``(steps + 1, ...)``."""
    path, time = [start], 0.0
    for _ in range(steps):
        y = path[-1]
        a = slope(y, time)
        b = slope(y + size / 2 * a, time + size / 2)
        c = slope(y + size / 2 * b, time + size / 2)
        d = slope(y + size * c, time + size)
        path.append(y + size / 6 * (a + 2 * b + 2 * c + d))
        time += size
    return torch.stack(path)


def _lynx(data: Mapping[str, np.ndarray]) -> Case:
    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        scale = torch.tensor([0.5, 0.05, 0.5, 0.05])
        theta = pyro.sample("theta", flat(constraints.independent(constraints.positive, 1), (4,)))
        prior = dist.Normal(torch.tensor([1.0, 0.05, 1.0, 0.05]), scale)
        pyro.factor("theta_prior", prior.log_prob(theta).sum())
        first = torch.full((2,), 10.0).log()
        z = pyro.sample("z_init", dist.LogNormal(first, 1.0).to_event(1))
        sigma = pyro.sample("sigma", dist.LogNormal(-torch.ones(2), 1.0).to_event(1))

        def slope(y: Tensor, time: float) -> Tensor:
            u, v = y[0], y[1]
            return torch.stack([(theta[0] - theta[1] * v) * u, (theta[3] * u - theta[2]) * v])

        path = _solved(slope, z, 100, 0.2)[::5]
        with pyro.plate("rows", len(inputs)):
            told = dist.LogNormal(path[inputs[:, 0].long()].log(), sigma).to_event(1)
            pyro.sample("y", told, obs=targets)

    rows = _rows(np.arange(21.0)[:, None], np.concatenate([data["y_init"][None], data["y"]]))
    return Case(model, rows, np.arange(21) // 7, named)


def _one_comp(data: Mapping[str, np.ndarray]) -> Case:
    times = data["times"]
    steps = 5

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        names = ("k_a", "K_m", "V_m", "sigma")
        k_a, k_m, v_m, sigma = (
            pyro.sample(name, dist.HalfCauchy(torch.tensor(1.0))) for name in names
        )

        def slope(y: Tensor, time: float) -> Tensor:
            return 15.0 * k_a * torch.exp(-k_a * time) - v_m / 2.0 * y / (k_m + y)

        # All times are multiples of the first.
        count = round(float(times[-1] / times[0]))
        path = _solved(slope, torch.zeros_like(k_a), count * steps, float(times[0]) / steps)
        places = (inputs[:, 0] / float(times[0])).round().long() * steps
        with pyro.plate("rows", len(inputs)):
            level = path[places].clamp_min(1e-12)
            pyro.sample("y", dist.LogNormal(level.log(), sigma), obs=targets)

    return Case(model, _rows(times[:, None], data["C_hat"]), np.arange(20) // 5, named)


OTHERS: dict[str, Callable[[Mapping[str, np.ndarray]], Case]] = {
    "sblrc": _sblrc,
    "kilpisjarvi": _kilpisjarvi,
    "diamonds": _diamonds,
    "arK": _ark,
    "eight_schools_noncentered": _schools,
    "low_dim_gauss_mix": _mixture,
    "gp_pois_regr": _gp,
    "lotka_volterra": _lynx,
    "one_comp_mm_elim_abs": _one_comp,
}
