"""Regressions whose posterior of pooled rows is measured by NUTS and by what else one would run in
one place: Laplace, Pyro's AutoMultivariateNormal. Their rows are simulated, but those of `seeds`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from parts.exact.models import Case, named
from parts.exact.scores import Moments, at_mode, exact, fitted, moments
from pyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from pyro.infer.autoguide import AutoMultivariateNormal
from pyro.infer.autoguide.initialization import init_to_value
from pyro.optim import PyroOptim
from torch import Tensor
from torch.func import vmap

from bayesfed.data import Dataset
from bayesfed.inference.exact.traced import doubled

# Sd of the priors of `_wide`.
WIDE = 2.0


def generalised(size: int, family: Callable[[Tensor, Tensor], Any], wide: float) -> Any:
    """Return a regression on all columns but the last, with normal priors; the last column is the
    size of a row (exposure, trials).
    """

    def model(inputs: Tensor, targets: Tensor | None = None) -> None:
        beta = pyro.sample("beta", dist.Normal(torch.zeros(size), wide).to_event(1))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", family(inputs[:, :-1] @ beta, inputs[:, -1]), obs=targets)

    return model


def straight(inputs: Tensor, targets: Tensor | None = None) -> None:
    """State a line with unknown scale."""
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    sigma = pyro.sample("sigma", dist.HalfNormal(torch.tensor(2.0)))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(inputs[:, :-1] @ beta, sigma), obs=targets)


def bernoulli(at: Tensor, size: Tensor) -> Any:
    """Return the distribution of an event."""
    return dist.Bernoulli(logits=at)


def counts(at: Tensor, size: Tensor) -> Any:
    """Return the distribution of counts with exposure."""
    return dist.Poisson(size * at.exp())


def successes(at: Tensor, size: Tensor) -> Any:
    """Return the distribution of successes of so many trials."""
    return dist.Binomial(size, logits=at)


def cases() -> dict[str, Case]:
    """Return the regressions by name."""
    random = np.random.default_rng(20)
    return {
        "wells": _wells(random),
        "dogs": _dogs(random),
        "poisson": _poisson(random),
        "radon": _radon(random),
        "seeds": _seeds(),
        "logistic, 50 of 400": _wide(random, 400),
        "logistic, 50 of 2000": _wide(random, 2000),
    }


def _case(model: Any, inputs: np.ndarray, size: Any, targets: np.ndarray, holders: Any) -> Case:
    rows = np.concatenate([inputs, np.broadcast_to(size, len(inputs))[:, None]], 1)
    data = Dataset(torch.from_numpy(rows), torch.from_numpy(np.asarray(targets, float)))
    return Case(model, data, np.asarray(holders), named)


def _events(random: np.random.Generator, logits: np.ndarray) -> np.ndarray:
    return np.asarray(random.random(len(logits)) < 1 / (1 + np.exp(-logits)), float)


def _wells(random: np.random.Generator) -> Case:
    far, arsenic = random.gamma(1.6, 0.3, 3020), 0.5 + random.gamma(1.2, 0.95, 3020)
    inputs = np.stack([np.ones(3020), far, arsenic, far * arsenic], 1)
    events = _events(random, inputs @ [-0.15, -0.6, 0.55, -0.18])
    model = generalised(4, bernoulli, 5.0)
    return _case(model, inputs, 1.0, events, np.digitize(far, [0.2, 0.4, 0.7]))


def _dogs(random: np.random.Generator) -> Case:
    rows, shocked = [], []
    for _ in range(30):
        avoided = shocks = 0
        for _ in range(25):
            rows.append([1.0, avoided, shocks])
            shock = random.random() < 1 / (1 + math.exp(-1.8 + 0.3 * avoided + 0.2 * shocks))
            shocked.append(shock)
            avoided, shocks = avoided + (not shock), shocks + shock
    model = generalised(3, bernoulli, 5.0)
    return _case(model, np.array(rows), 1.0, np.array(shocked), np.repeat(np.arange(30) % 5, 25))


def _poisson(random: np.random.Generator) -> Case:
    inputs = np.concatenate([np.ones((240, 1)), random.normal(size=(240, 2))], 1)
    exposure = random.gamma(2.0, 3.0, 240) + 0.1
    found = random.poisson(exposure * np.exp(inputs @ [-1.2, 0.5, -0.3]))
    return _case(generalised(3, counts, 5.0), inputs, exposure, found, np.arange(240) % 6)


def _radon(random: np.random.Generator) -> Case:
    floor = (random.random(919) < 0.17).astype(float)
    inputs = np.stack([np.ones(919), floor], 1)
    outcome = inputs @ [1.33, -0.61] + 0.82 * random.normal(size=919)
    return _case(straight, inputs, 1.0, outcome, random.integers(0, 8, 919))


def _seeds() -> Case:
    """Return seeds that germinated (Crowder, 1978), without effects of plates."""
    grown = [10, 23, 23, 26, 17, 5, 53, 55, 32, 46, 10, 8, 10, 8, 23, 0, 3, 22, 15, 32, 3]
    sown = [39, 62, 81, 51, 39, 6, 74, 72, 51, 79, 13, 16, 30, 28, 45, 4, 12, 41, 30, 51, 7]
    kind, root = np.repeat([0.0, 1.0], [11, 10]), np.repeat([0.0, 1, 0, 1], [5, 6, 5, 5])
    inputs = np.stack([np.ones(21), kind, root, kind * root], 1)
    model = generalised(4, successes, 5.0)
    return _case(model, inputs, np.array(sown, float), np.array(grown), np.arange(21) % 4)


def _wide(random: np.random.Generator, rows: int) -> Case:
    inputs = np.concatenate([np.ones((rows, 1)), random.normal(size=(rows, 49))], 1)
    events = _events(random, inputs @ (random.normal(size=50) / math.sqrt(50) * 1.5))
    return _case(generalised(50, bernoulli, WIDE), inputs, 1.0, events, np.arange(rows) % 5)


def nuts(
    case: Case, draws: int, warmup: int, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return means, sds and percentiles of pooled rows by NUTS, with processor seconds and
    effective draws; and the draws.
    """
    start = time.process_time()
    with doubled():
        pyro.set_rng_seed(seed)
        kernel = NUTS(case.model, full_mass=True, jit_compile=True, ignore_jit_warnings=True)
        chain = MCMC(kernel, draws, warmup_steps=warmup, disable_progbar=True)
        chain.run(case.rows.inputs, case.rows.targets)
        samples = chain.get_samples()
        found = vmap(case.values)(samples)
        told = chain.diagnostics()
    effective = [float(told[name]["n_eff"].min()) for name in samples]
    percents = torch.arange(1, 100, dtype=torch.float64) / 100
    record = {
        "moments": {name: (float(one.mean()), float(one.std())) for name, one in found.items()},
        "percentiles": {n: one.quantile(percents).tolist() for n, one in found.items()},
        "draws": draws,
        "warmup": warmup,
        "seed": seed,
        "seconds": time.process_time() - start,
        "n_eff": min(effective),
    }
    return record, samples


def weighed(case: Case, count: int = 400_000, rounds: int = 6) -> tuple[Moments, float]:
    """Return means and sds of a logistic regression of `_wide` by many weighted draws of a
    Student-t that has their mean and covariance, fitted in rounds; and the share of them that
    counts. With fifty values the largest error of NUTS's means is near what is looked for.
    """
    inputs, y, freedom = case.rows.inputs[:, :-1], case.rows.targets, 30
    size, random = inputs.shape[1], torch.Generator().manual_seed(0)
    # The Gaussian of least divergence, whose expectations are integrals over one value a row.
    nodes, shares = map(torch.from_numpy, np.polynomial.hermite_e.hermegauss(40))
    mean, cov = torch.zeros(size).double(), torch.eye(size).double() / size
    for _ in range(60):
        width = ((inputs @ cov) * inputs).sum(1).sqrt()
        chance = torch.sigmoid((inputs @ mean)[:, None] + width[:, None] * nodes)
        event, spread = (part @ shares / shares.sum() for part in (chance, chance * (1 - chance)))
        curve = (inputs.T * spread) @ inputs + torch.eye(size).double() / WIDE**2
        cov = (cov + curve.inverse()) / 2
        mean = mean + torch.linalg.solve(curve, inputs.T @ (y - event) - mean / WIDE**2) / 2
    root = torch.linalg.cholesky(cov)
    share = 0.0
    for number in range(rounds):
        several = count // (1 if number == rounds - 1 else 10)
        squares = torch.randn(several, freedom, generator=random).double().square().mean(1)
        normal = torch.randn(several, size, generator=random).double()
        away = normal.square().sum(1) / squares
        drawn = mean + (normal / squares.sqrt()[:, None]) @ root.T
        logs = (freedom + size) / 2 * (away / freedom).log1p() - drawn.square().sum(1) / 2 / WIDE**2
        for part in torch.arange(several).split(20_000):
            at = drawn[part] @ inputs.T
            logs[part] += at @ y - torch.nn.functional.softplus(at).sum(1)
        weights = torch.softmax(logs, 0)
        share = float(1 / weights.square().sum()) / several
        mean = weights @ drawn
        apart = drawn - mean
        cov = (weights[:, None] * apart).T @ apart
        root = torch.linalg.cholesky(cov)
    sds = cov.diagonal().sqrt()
    told = zip(mean.tolist(), sds.tolist(), strict=True)
    return {f"beta[{k + 1}]": pair for k, pair in enumerate(told)}, share


def laplace(case: Case) -> Moments:
    """Return means and sds of the Gaussian at the mode of pooled rows."""
    return at_mode(exact(fitted(case.model, case.clients)), case.values)


def guide(case: Case, steps: int = 3000, rate: float = 0.01) -> tuple[Moments, float]:
    """Return means and sds by Pyro's guide with full covariance on pooled rows, and seconds."""
    start = time.process_time()
    with doubled(), pyro.get_param_store().scope():
        pyro.set_rng_seed(0)
        made = AutoMultivariateNormal(case.model, init_loc_fn=init_to_value(values={}))
        svi = SVI(case.model, made, PyroOptim(torch.optim.Adam, {"lr": rate}), Trace_ELBO(8, True))
        for _ in range(steps):
            svi.step(case.rows.inputs, case.rows.targets)
        with torch.no_grad(), pyro.plate("draws", 4096, dim=-2):
            drawn = made(case.rows.inputs, case.rows.targets)
        flat = {name: leaf.reshape(4096, *leaf.shape[2:]) for name, leaf in drawn.items()}
        return _plain(vmap(case.values)(flat)), time.process_time() - start


def _plain(found: dict[str, Tensor]) -> Moments:
    return {name: (float(one.mean()), float(one.std())) for name, one in found.items()}


def ours(case: Case) -> tuple[Moments, str, float]:
    """Return means and sds of the federated run, its status, and seconds."""
    start = time.process_time()
    posterior = exact(fitted(case.model, case.clients))
    seconds = time.process_time() - start
    return moments(posterior, case.values), posterior.status, seconds
