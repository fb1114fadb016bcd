"""Hierarchies over sites with a posterior known by quadrature: shared values, and each site's own.

Given the sds, all but surgical and pumps are linear and Gaussian: their moments are sums over a
grid of log sds. Those two have two shared values, and a grid of both.
"""

from __future__ import annotations

from collections.abc import Callable

import pyro
import pyro.distributions as dist
import torch
from parts.exact.classics import dyes, pumps, rats, schools, surgical
from parts.exact.quadrature import (
    Hierarchy,
    Linear,
    grouped,
    half_cauchy,
    log_scale,
    normal,
    numbers,
)
from parts.exact.scores import Score, timed
from torch import Tensor

from bayesfed.inference.exact.posterior import ExactPosterior


def scored(name: str, case: Hierarchy) -> Score:
    """Run at the defaults; the error is the worst of the shared values, the worst of a site's own
    halved, which may be twice as far off.
    """
    result, seconds, kilobytes = timed(case.model, case.clients)
    posterior = result.posterior
    assert isinstance(posterior, ExactPosterior)
    found = {name: _moments(posterior, name) for name in case.shared}
    apart = [
        posterior.at_client(result.snapshot.memories[client]) for client in sorted(case.clients)
    ]
    for own in case.own:
        each = [_moments(one, own) for one in apart]
        found[own] = torch.cat([m for m, _ in each]), torch.cat([s for _, s in each])
    error, ratios = 0.0, list[float]()
    for site, (mean, sd) in (case.shared | case.own).items():
        away = float(((found[site][0] - mean) / sd).abs().max())
        error = max(error, away / 2 if site in case.own else away)
        if site in case.shared:
            ratios += (found[site][1] / sd).tolist()
    told = error, min(ratios), max(ratios), posterior.k_hat, posterior.ess
    sent = len(result.history), kilobytes, seconds, posterior.status
    return Score(name, posterior.traced.size, *told, *sent)


def _moments(posterior: ExactPosterior, name: str) -> tuple[Tensor, Tensor]:
    weights, drawn = posterior.verdict.weights, posterior.values[name]
    drawn = drawn.reshape(len(drawn), -1)
    mean = weights @ drawn
    return mean, (weights @ (drawn - mean).square()).sqrt()


def counties() -> Hierarchy:
    """Return forty counties of 2 to 30 rows at eight agencies, as radon's: simulated."""
    sizes = torch.tensor([2, 3, 4, 6, 30] * 8)
    county = torch.repeat_interleave(torch.arange(40), sizes)
    floor = (numbers(len(county), seed=1) > 0.5).double()
    y = 1.5 + 0.3 * numbers(40, seed=2)[county] - 0.7 * floor + 0.8 * numbers(len(county), seed=3)
    inputs = torch.stack([county % 5, floor], 1).double()

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu, slope = normal("mu", 5.0), normal("slope", 5.0)
        tau, sigma = half_cauchy("tau", 1.0), half_cauchy("sigma", 1.0)
        with pyro.plate("client", 5):
            level = pyro.sample("level", dist.Normal(torch.tensor(0.0), tau))
        with pyro.plate("rows", len(inputs)):
            mean = mu + level[..., inputs[:, 0].long()] + slope * inputs[:, 1]
            pyro.sample("y", dist.Normal(mean, sigma), obs=targets)

    each = torch.nn.functional.one_hot(county).double()
    columns = torch.cat([torch.ones(len(y), 1).double(), floor[:, None], each], 1)
    linear = Linear(
        columns,
        y,
        ["mu", "slope", *["level"] * 40],
        {"mu": 5.0, "slope": 5.0},
        "sigma",
        {"tau": log_scale(1.0), "sigma": log_scale(1.0)},
    )
    known = linear.moments({"level": "tau"}, 60)
    own = {"level": known.pop("level")}
    return Hierarchy(model, grouped(county // 5, inputs, y), known, own)


def nested() -> Hierarchy:
    """Return three wards in each of eight hospitals, which have a value too: simulated."""
    hospital, ward = torch.arange(96) // 12, torch.arange(96) // 4
    y = 0.5 + numbers(8, seed=4)[hospital] + 0.6 * numbers(24, seed=5)[ward]
    y = y + 0.7 * numbers(96, seed=6)
    inputs = (ward % 3).double()[:, None]

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu = normal("mu", 5.0)
        tau, inner, sigma = (half_cauchy(n, 1.0) for n in ("tau", "inner", "sigma"))
        with pyro.plate("client", 1):
            level = pyro.sample("level", dist.Normal(torch.tensor(0.0), tau))
            wards = pyro.plate("wards", 3, dim=-2)
            with wards:
                more = pyro.sample("more", dist.Normal(torch.tensor(0.0), inner))
        with pyro.plate("rows", len(inputs)):
            mean = mu + level + more.reshape(-1)[inputs[:, 0].long()]
            pyro.sample("y", dist.Normal(mean, sigma), obs=targets)

    columns = torch.cat(
        [torch.ones(96, 1), *(torch.nn.functional.one_hot(m) for m in (hospital, ward))], 1
    ).double()
    linear = Linear(
        columns,
        y,
        ["mu", *["level"] * 8, *["more"] * 24],
        {"mu": 5.0},
        "sigma",
        {name: log_scale(1.0) for name in ("tau", "inner", "sigma")},
    )
    known = linear.moments({"level": "tau", "more": "inner"}, 45)
    own = {name: known.pop(name) for name in ("level", "more")}
    return Hierarchy(model, grouped(hospital, inputs, y), known, own)


def crossed() -> Hierarchy:
    """Return five items, shared and not centred, crossed with eight sites: simulated."""
    site, item = torch.arange(80) // 10, torch.arange(80) % 5
    y = 1 + numbers(8, seed=7)[site] + 0.5 * numbers(5, seed=8)[item] + 0.6 * numbers(80, seed=9)
    inputs = item.double()[:, None]

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu = normal("mu", 5.0)
        tau, across, sigma = (half_cauchy(n, 1.0) for n in ("tau", "across", "sigma"))
        items = across * pyro.sample("items", dist.Normal(torch.zeros(5), 1.0).to_event(1))
        with pyro.plate("client", 1):
            level = pyro.sample("level", dist.Normal(torch.tensor(0.0), tau))
        with pyro.plate("rows", len(inputs)):
            mean = mu + level + items[inputs[:, 0].long()]
            pyro.sample("y", dist.Normal(mean, sigma), obs=targets)

    columns = torch.cat(
        [torch.ones(80, 1), *(torch.nn.functional.one_hot(m) for m in (item, site))], 1
    ).double()
    linear = Linear(
        columns,
        y,
        ["mu", *["items"] * 5, *["level"] * 8],
        {"mu": 5.0},
        "sigma",
        {name: log_scale(1.0) for name in ("tau", "across", "sigma")},
    )
    known = linear.moments({"items": "across", "level": "tau"}, 45)
    own = {"level": known.pop("level")}
    del known["items"]
    return Hierarchy(model, grouped(site, inputs, y), known, own)


# Several tied own values a site take minutes; these run where they are named.
SLOW = ("rats", "counties", "nested", "crossed")
HIERARCHIES: dict[str, Callable[[], Hierarchy]] = {
    "schools centred": lambda: schools(centred=True),
    "schools not centred": lambda: schools(centred=False),
    "surgical": surgical,
    "pumps": pumps,
    "dyes": dyes,
    "rats": rats,
    "counties": counties,
    "nested": nested,
    "crossed": crossed,
}
