"""Hierarchies over sites with a posterior known by quadrature: shared values, and each site's own.

Given the sds, all but two of them are linear and Gaussian: their moments are sums over a grid of
log sds. Surgical and pumps have two shared values, and a grid of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pyro
import pyro.distributions as dist
import torch
from parts.exact.scores import Score, timed
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.inference.exact.posterior import ExactPosterior

# Mean and sd of every entry of a site's values, in order; own ones of all clients together.
Moments = dict[str, tuple[Tensor, Tensor]]
# Least and largest log sd of grids.
WIDE = (-7.0, 4.0)


class Hierarchy(NamedTuple):
    """A model, the rows of every site, and what is known."""

    model: Callable[..., Any]
    clients: dict[str, Dataset]
    shared: Moments
    own: Moments


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
    weights, drawn = posterior.verdict.weights, posterior.values[name].flatten(1)
    mean = weights @ drawn
    return mean, (weights @ (drawn - mean).square()).sqrt()


class Linear(NamedTuple):
    """A Gaussian model given log sds: rows ``y = columns @ w + noise``, w with means zero.

    Parameters
    ----------
    columns, y
        ``(n, p)``, ``(n,)``; both divided by known sds of rows, where they are known.
    names
        Each w's site and number, in the order of columns.
    fixed
        Sds of w that are known by site; others are a log sd of the grid of that name.
    noise
        Name of the log sd of rows; empty for 1.
    sds
        By name of each sd: its log prior density at a sd.
    """

    columns: Tensor
    y: Tensor
    names: list[str]
    fixed: dict[str, float]
    noise: str
    sds: dict[str, Callable[[Tensor], Tensor]]

    def moments(self, scale_of: Mapping[str, str], steps: int) -> Moments:
        """Return means and sds of all w by site and of the sds, by a grid of so many steps each,
        twice: the second where the first has its mass.
        """
        low, high = ([bound] * len(self.sds) for bound in WIDE)
        for _ in range(2):
            axes = [
                torch.linspace(a, b, steps, dtype=torch.float64)
                for a, b in zip(low, high, strict=True)
            ]
            grid = torch.cartesian_prod(*axes).reshape(-1, len(axes))
            found = [self._at(part, scale_of) for part in grid.split(200)]
            logs, means, variances = (torch.cat(leaves) for leaves in zip(*found, strict=True))
            share = torch.softmax(logs, 0)
            kept = grid[share > 1e-9 / len(axes)]
            step = (grid[-1] - grid[0]) / steps
            low = (kept.amin(0) - step).tolist()
            high = (kept.amax(0) + step).tolist()
        mean = share @ means
        sd = (share @ (variances + (means - mean).square())).sqrt()
        made = Moments()
        for name in dict.fromkeys(self.names):
            places = [k for k, other in enumerate(self.names) if other == name]
            made[name] = mean[places], sd[places]
        for k, name in enumerate(self.sds):
            value = grid[:, k].exp()
            centre = share @ value
            made[name] = centre[None], (share @ (value - centre).square()).sqrt()[None]
        return made

    def _at(self, logs: Tensor, scale_of: Mapping[str, str]) -> tuple[Tensor, Tensor, Tensor]:
        sds = dict(zip(self.sds, logs.exp().T, strict=True))
        one = torch.ones(len(logs), dtype=torch.float64)
        noise = sds[self.noise] if self.noise else one
        scale = torch.stack(
            [
                self.fixed[name] * one if name in self.fixed else sds[scale_of[name]]
                for name in self.names
            ],
            1,
        )
        precision = (self.columns.T @ self.columns) / noise[:, None, None].square()
        precision = precision + torch.diag_embed(scale**-2)
        root = torch.linalg.cholesky(precision)
        right = (self.columns.T @ self.y) / noise[:, None].square()
        mean = torch.cholesky_solve(right[..., None], root)[..., 0]
        fit = self.y.square().sum() / noise.square() - (mean * right).sum(1)
        total = -len(self.y) * noise.log() - scale.log().sum(1) - fit / 2
        total = total - root.diagonal(dim1=1, dim2=2).log().sum(1)
        for name, prior in self.sds.items():
            total = total + prior(sds[name]) + sds[name].log()
        return total, mean, torch.cholesky_inverse(root).diagonal(dim1=1, dim2=2)


def half_cauchy(scale: float) -> Callable[[Tensor], Tensor]:
    """Return a log prior of sds."""
    return dist.HalfCauchy(torch.tensor(scale, dtype=torch.float64)).log_prob


def _sample(name: str, sd: float) -> Tensor:
    found: Tensor = pyro.sample(name, dist.Normal(torch.tensor(0.0), sd))
    return found


def _scale(name: str, scale: float) -> Tensor:
    found: Tensor = pyro.sample(name, dist.HalfCauchy(torch.tensor(scale)))
    return found


def _numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


EFFECTS = torch.tensor([28.0, 8, -3, 7, -1, 1, 18, 12]).double()
ERRORS = torch.tensor([15.0, 10, 16, 11, 9, 11, 10, 18]).double()


def _grouped(member: Tensor, inputs: Tensor, targets: Tensor) -> dict[str, Dataset]:
    """Return rows by site; names sort as numbers do."""
    return {
        f"s{k:02}": Dataset(inputs[member == k], targets[member == k])
        for k in range(int(member.max()) + 1)
    }


def schools(centred: bool) -> Hierarchy:
    """Return eight schools, a site each; or two a site, not centred."""

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu, tau = _sample("mu", 5.0), _scale("tau", 5.0)
        with pyro.plate("client", len(inputs)):
            if centred:
                theta = pyro.sample("theta", dist.Normal(mu, tau))
            else:
                theta = mu + tau * pyro.sample("eta", dist.Normal(torch.tensor(0.0), 1.0))
            pyro.sample("y", dist.Normal(theta, inputs[:, 0]), obs=targets)

    columns = torch.cat([torch.ones(8, 1).double(), torch.eye(8).double()], 1) / ERRORS[:, None]
    names = ["mu", *["away"] * 8]
    prior = {"tau": half_cauchy(5.0)}
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
    return Hierarchy(model, _grouped(member, ERRORS[:, None], EFFECTS), shared, own)


def _theta_sd(mean: Tensor) -> Tensor:
    """Return sds of the schools' effects, by a grid of tau with mu integrated out."""
    log_tau = torch.linspace(-12, 6, 4000, dtype=torch.float64)
    tau = log_tau.exp()[:, None]
    variance = tau.square() + ERRORS.square()
    precision = 1 / 25 + (1 / variance).sum(1, keepdim=True)
    mu = (EFFECTS / variance).sum(1, keepdim=True) / precision
    logs = dist.Normal(mu, variance.sqrt()).log_prob(EFFECTS).sum(1)
    logs = logs - (mu[:, 0] / 5).square() / 2 - precision[:, 0].log() / 2
    logs = logs + half_cauchy(5.0)(tau[:, 0]) + log_tau
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
    """Return yields of six batches of dye (Box and Tiao, 1973), a site each; in fifties, about 0."""
    y = (torch.tensor([float(v) for v in YIELDS.split()]).double() - 1527.5) / 50

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu, tau, sigma = _sample("mu", 5.0), _scale("tau", 1.0), _scale("sigma", 1.0)
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
        {"tau": half_cauchy(1.0), "sigma": half_cauchy(1.0)},
    )
    known = linear.moments({"batch": "tau"}, 120)
    own = {"batch": known.pop("batch")}
    return Hierarchy(model, _grouped(member, torch.zeros(30, 1).double(), y), known, own)


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
    """Return weights of thirty rats at five ages (Gelfand et al., 1990), five rats a site, each with a
    place and a slope of its own; in tens of grams from 240, and weeks from 22 days.
    """
    y = (torch.tensor([float(v) for v in RATS.split()]).double() - 240) / 10
    weeks = (torch.tensor([8.0, 15, 22, 29, 36]).double() - 22) / 7
    inputs = torch.stack([torch.arange(150) // 5 % 5, weeks.repeat(30)], 1)

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        a, b = _sample("a", 10.0), _sample("b", 10.0)
        wide, steep, sigma = (_scale(n, 1.0) for n in ("wide", "steep", "sigma"))
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
        {name: half_cauchy(1.0) for name in ("wide", "steep", "sigma")},
    )
    known = linear.moments({"place": "wide", "slope": "steep"}, 24)
    own = {name: known.pop(name) for name in ("place", "slope")}
    return Hierarchy(model, _grouped(torch.arange(150) // 25, inputs.double(), y), known, own)


def counties() -> Hierarchy:
    """Return forty counties of 2 to 30 rows at eight agencies, as radon's: simulated."""
    sizes = torch.tensor([2, 3, 4, 6, 30] * 8)
    county = torch.repeat_interleave(torch.arange(40), sizes)
    floor = (_numbers(len(county), seed=1) > 0.5).double()
    y = 1.5 + 0.3 * _numbers(40, seed=2)[county] - 0.7 * floor + 0.8 * _numbers(len(county), seed=3)
    inputs = torch.stack([county % 5, floor], 1).double()

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu, slope = _sample("mu", 5.0), _sample("slope", 5.0)
        tau, sigma = _scale("tau", 1.0), _scale("sigma", 1.0)
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
        {"tau": half_cauchy(1.0), "sigma": half_cauchy(1.0)},
    )
    known = linear.moments({"level": "tau"}, 60)
    own = {"level": known.pop("level")}
    return Hierarchy(model, _grouped(county // 5, inputs, y), known, own)


def nested() -> Hierarchy:
    """Return three wards in each of eight hospitals, which have a value too: simulated."""
    hospital, ward = torch.arange(96) // 12, torch.arange(96) // 4
    y = 0.5 + _numbers(8, seed=4)[hospital] + 0.6 * _numbers(24, seed=5)[ward]
    y = y + 0.7 * _numbers(96, seed=6)
    inputs = (ward % 3).double()[:, None]

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu = _sample("mu", 5.0)
        tau, inner, sigma = (_scale(n, 1.0) for n in ("tau", "inner", "sigma"))
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
        {name: half_cauchy(1.0) for name in ("tau", "inner", "sigma")},
    )
    known = linear.moments({"level": "tau", "more": "inner"}, 30)
    own = {name: known.pop(name) for name in ("level", "more")}
    return Hierarchy(model, _grouped(hospital, inputs, y), known, own)


def crossed() -> Hierarchy:
    """Return five items, shared and not centred, crossed with eight sites of a value each: simulated."""
    site, item = torch.arange(80) // 10, torch.arange(80) % 5
    y = 1 + _numbers(8, seed=7)[site] + 0.5 * _numbers(5, seed=8)[item] + 0.6 * _numbers(80, seed=9)
    inputs = item.double()[:, None]

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu = _sample("mu", 5.0)
        tau, across, sigma = (_scale(n, 1.0) for n in ("tau", "across", "sigma"))
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
        {name: half_cauchy(1.0) for name in ("tau", "across", "sigma")},
    )
    known = linear.moments({"items": "across", "level": "tau"}, 30)
    own = {"level": known.pop("level")}
    del known["items"]
    return Hierarchy(model, _grouped(site, inputs, y), known, own)


def surgical() -> Hierarchy:
    """Return deaths in twelve hospitals (BUGS), three a site: a binomial with a logit each."""
    patients = torch.tensor([47.0, 148, 119, 810, 211, 196, 148, 215, 207, 97, 256, 360]).double()
    deaths = torch.tensor([0.0, 18, 8, 46, 8, 13, 9, 31, 14, 8, 29, 24]).double()

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        mu, sigma = _sample("mu", 5.0), _scale("sigma", 1.0)
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
    logs = logs + half_cauchy(1.0)(grid[:, 1].exp()) + grid[:, 1]
    share = torch.softmax(logs, 0)
    shared = {"mu": _weighted(share, grid[:, :1]), "sigma": _weighted(share, grid[:, 1:].exp())}
    mean = share @ means
    own = {"b": (mean, (share @ (variances + (means - mean).square())).sqrt())}
    member = torch.arange(12) // 3
    return Hierarchy(model, _grouped(member, patients[:, None], deaths), shared, own)


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
    shared = {"alpha": _weighted(share, alpha), "beta": _weighted(share, beta)}
    member = torch.arange(10) // 2
    clients = _grouped(member, hours[:, None], failures)
    return Hierarchy(model, clients, shared, {"rate": (mean, spread.sqrt())})


def _weighted(share: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    mean = share @ values
    return mean, (share @ (values - mean).square()).sqrt()


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
