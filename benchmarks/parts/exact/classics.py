"""Hierarchies of the literature with a site or some groups a client, and their posteriors."""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import torch
from parts.exact.quadrature import (
    Hierarchy,
    Linear,
    Moments,
    grouped,
    half_cauchy,
    log_scale,
    normal,
    weighted,
)
from torch import Tensor

EFFECTS = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12]).double()
ERRORS = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18]).double()


def schools(centred: bool) -> Hierarchy:
    """Return eight schools, a site each; or two a site, not centred."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu, tau = normal("mu", 5.0), half_cauchy("tau", 5.0)
        with pyro.plate("client", len(inputs)):
            if centred:
                theta = pyro.sample("theta", dist.Normal(mu, tau))
            else:
                theta = mu + tau * pyro.sample("eta", dist.Normal(torch.tensor(0.0), 1.0))
            pyro.sample("y", dist.Normal(theta, inputs[:, 0]), obs=targets)

    columns = torch.cat([torch.ones(8, 1).double(), torch.eye(8).double()], 1) / ERRORS[:, None]
    names = ["mu", *["away"] * 8]
    prior = {"tau": log_scale(5.0)}
    known = Linear(columns, EFFECTS / ERRORS, names, {"mu": 5.0}, "", prior).moments(
        {"away": "tau"}, 400
    )
    # theta is mu and what it is away: as columns of their own.
    own = Moments()
    if centred:
        mean = known["mu"][0] + known["away"][0]
        own["theta"] = mean, _theta_sd(mean)
    member = torch.arange(8) if centred else torch.arange(8) // 2
    shared = {name: known[name] for name in ("mu", "tau")}
    return Hierarchy(model, grouped(member, ERRORS[:, None], EFFECTS), shared, own)


def known_schools() -> dict[str, dict[str, float]]:
    """Return means and sds of the eight schools, by the names of posteriordb, whose reference draws
    have an sd of the seventh effect that is 1.5 % too small.
    """
    case = schools(centred=True)
    found = {name: (m[0], s[0]) for name, (m, s) in case.shared.items()}
    each = enumerate(zip(*case.own["theta"], strict=True), 1)
    found |= {f"theta[{number}]": moments for number, moments in each}
    return {name: {"mean": float(mean), "sd": float(sd)} for name, (mean, sd) in found.items()}


def _theta_sd(mean: Tensor) -> Tensor:
    """Return sds of the schools' effects, by a grid of tau with mu integrated out."""
    log_tau = torch.linspace(-12, 6, 4000, dtype=torch.float64)
    tau = log_tau.exp()[:, None]
    variance = tau.square() + ERRORS.square()
    precision = 1 / 25 + (1 / variance).sum(1, keepdim=True)
    mu = (EFFECTS / variance).sum(1, keepdim=True) / precision
    logs = dist.Normal(mu, variance.sqrt()).log_prob(EFFECTS).sum(1)
    logs = logs - (mu[:, 0] / 5).square() / 2 - precision[:, 0].log() / 2
    logs = logs + log_scale(5.0)(tau[:, 0]) + log_tau
    share = torch.softmax(logs, 0)
    back = tau.square() / variance
    place = mu + back * (EFFECTS - mu)
    spread = back * ERRORS.square() + (1 - back).square() / precision
    return (share @ (spread + (place - mean).square())).sqrt()


YIELDS = (
    "1545 1440 1440 1520 1580 1540 1555 1490 1560 1495 1595 1550 1605 1510 1560 "
    "1445 1440 1595 1465 1545 1595 1630 1515 1635 1625 1520 1455 1450 1480 1445"
)


def dyes() -> Hierarchy:
    """Return yields of six batches of dye (Box and Tiao, 1973), a site each; in fifties."""
    y = (torch.tensor([float(v) for v in YIELDS.split()]).double() - 1527.5) / 50

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu, tau, sigma = normal("mu", 5.0), half_cauchy("tau", 1.0), half_cauchy("sigma", 1.0)
        with pyro.plate("client", 1):
            batch = pyro.sample("batch", dist.Normal(torch.tensor(0.0), tau))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(mu + batch, sigma), obs=targets)

    member = torch.arange(30) // 5
    columns = torch.cat([torch.ones(30, 1), torch.nn.functional.one_hot(member)], 1).double()
    linear = Linear(
        columns,
        y,
        ["mu", *["batch"] * 6],
        {"mu": 5.0},
        "sigma",
        {"tau": log_scale(1.0), "sigma": log_scale(1.0)},
    )
    known = linear.moments({"batch": "tau"}, 120)
    own = {"batch": known.pop("batch")}
    return Hierarchy(model, grouped(member, torch.zeros(30, 1).double(), y), known, own)


RATS = (
    "151 199 246 283 320 145 199 249 293 354 147 214 263 312 328 155 200 237 272 297 "
    "135 188 230 280 323 159 210 252 298 331 141 189 231 275 305 159 201 248 297 338 "
    "177 236 285 350 376 134 182 220 260 296 160 208 261 313 352 143 188 220 273 314 "
    "154 200 244 289 325 171 221 270 326 358 163 216 242 281 312 160 207 248 288 324 "
    "142 187 234 280 316 156 203 243 283 317 157 212 259 307 336 152 203 246 286 321 "
    "154 205 253 298 334 139 190 225 267 302 146 191 229 272 302 157 211 250 285 323 "
    "132 185 237 286 331 160 207 257 303 345 169 216 261 295 333 157 205 248 289 316 "
    "137 180 219 258 291 153 200 244 286 324"
)


def rats() -> Hierarchy:
    """Return weights of thirty rats at five ages (Gelfand et al., 1990), five rats a site, each
    with a place and a slope of its own; in tens of grams from 240, and weeks from 22 days.
    """
    y = (torch.tensor([float(v) for v in RATS.split()]).double() - 240) / 10
    weeks = (torch.tensor([8.0, 15, 22, 29, 36]).double() - 22) / 7
    inputs = torch.stack([torch.arange(150) // 5 % 5, weeks.repeat(30)], 1)

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        a, b = normal("a", 10.0), normal("b", 10.0)
        wide, steep, sigma = (half_cauchy(n, 1.0) for n in ("wide", "steep", "sigma"))
        with pyro.plate("client", 5):
            place = pyro.sample("place", dist.Normal(torch.tensor(0.0), wide))
            slope = pyro.sample("slope", dist.Normal(torch.tensor(0.0), steep))
        rat = inputs[:, 0].long()
        with pyro.plate("rows", len(inputs)):
            mean = a + place[..., rat] + (b + slope[..., rat]) * inputs[:, 1]
            pyro.sample("y", dist.Normal(mean, sigma), obs=targets)

    each = torch.nn.functional.one_hot(torch.arange(150) // 5).double()
    week = inputs[:, 1:].double()
    columns = torch.cat([torch.ones(150, 1).double(), week, each, each * week], 1)
    linear = Linear(
        columns,
        y,
        ["a", "b", *["place"] * 30, *["slope"] * 30],
        {"a": 10.0, "b": 10.0},
        "sigma",
        {name: log_scale(1.0) for name in ("wide", "steep", "sigma")},
    )
    known = linear.moments({"place": "wide", "slope": "steep"}, 36)
    own = {name: known.pop(name) for name in ("place", "slope")}
    return Hierarchy(model, grouped(torch.arange(150) // 25, inputs.double(), y), known, own)


def surgical() -> Hierarchy:
    """Return deaths in twelve hospitals (BUGS), three a site: a binomial with a logit each."""
    patients = torch.tensor([47.0, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360]).double()
    deaths = torch.tensor([0.0, 18, 8, 46, 8, 13, 9, 31, 14, 8, 29, 24]).double()

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu, sigma = normal("mu", 5.0), half_cauchy("sigma", 1.0)
        with pyro.plate("client", len(inputs)):
            b = pyro.sample("b", dist.Normal(mu, sigma))
            pyro.sample("y", dist.Binomial(inputs[:, 0], logits=b), obs=targets)

    mu = torch.linspace(-4.5, -1, 81).double()
    log_sigma = torch.linspace(-7, 2, 121).double()
    grid = torch.cartesian_prod(mu, log_sigma)
    found = []
    for at, log in grid:
        # Values of b in sds about mu where the sd is small, for the grid to be fine enough.
        places = at + log.exp() * torch.linspace(-9, 9, 301).double()
        each = dist.Binomial(patients[:, None], logits=places).log_prob(deaths[:, None])
        logs = each + dist.Normal(at, log.exp()).log_prob(places)
        share = torch.softmax(logs, 1)
        mean = share @ places
        total = (logs.logsumexp(1) + (log.exp() * 18 / 300).log()).sum()
        found.append((total, mean, share @ places.square() - mean.square()))
    logs, means, variances = (torch.stack(leaves) for leaves in zip(*found, strict=True))
    logs = logs + dist.Normal(0.0, 5.0).log_prob(grid[:, 0])
    logs = logs + log_scale(1.0)(grid[:, 1].exp()) + grid[:, 1]
    share = torch.softmax(logs, 0)
    shared = {"mu": weighted(share, grid[:, :1]), "sigma": weighted(share, grid[:, 1:].exp())}
    mean = share @ means
    own = {"b": (mean, (share @ (variances + (means - mean).square())).sqrt())}
    member = torch.arange(12) // 3
    return Hierarchy(model, grouped(member, patients[:, None], deaths), shared, own)


def pumps() -> Hierarchy:
    """Return failures of ten pumps (Gaver and O'Muircheartaigh, 1987), two a site: a rate each."""
    hours = torch.tensor([94.3, 15.7, 62.9, 126, 5.24, 31.4, 1.05, 1.05, 2.1, 10.5]).double()
    failures = torch.tensor([5.0, 1, 5, 14, 3, 19, 1, 1, 4, 22]).double()

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        alpha = pyro.sample("alpha", dist.Exponential(torch.tensor(1.0)))
        beta = pyro.sample("beta", dist.Gamma(torch.tensor(0.1), 1.0))
        with pyro.plate("client", len(inputs)):
            rate = pyro.sample("rate", dist.Gamma(alpha, beta))
            pyro.sample("y", dist.Poisson(rate * inputs[:, 0]), obs=targets)

    axis = torch.linspace(-4, 3, 701).double(), torch.linspace(-9, 3, 701).double()
    alpha, beta = torch.cartesian_prod(*axis).exp().T[..., None]
    logs = (
        torch.lgamma(alpha + failures)
        - torch.lgamma(alpha)
        + alpha * beta.log()
        - (alpha + failures) * (beta + hours).log()
    ).sum(1)
    logs = logs + (alpha.log() - alpha + 0.1 * beta.log() - beta)[:, 0]
    share = torch.softmax(logs, 0)
    means = (alpha + failures) / (beta + hours)
    mean = share @ means
    spread = share @ (means / (beta + hours) + (means - mean).square())
    shared = {"alpha": weighted(share, alpha), "beta": weighted(share, beta)}
    member = torch.arange(10) // 2
    clients = grouped(member, hours[:, None], failures)
    return Hierarchy(model, clients, shared, {"rate": (mean, spread.sqrt())})
