"""Posteriors whose answer is known, spread over clients: what `fidelity.py` measures fusion rules
against.

Exact: Bayesian linear regression (`linear`) and four conjugate families (`CONJUGATE`). By sampling,
in `reference.json`: logistic regression on scikit-learn's breast cancer set (`logistic`) and the
eight schools (`schools`). Everything is float64; the models follow the dtype of their inputs.
Clients are `dict[str, Dataset]`, and an exact answer is that of `pooled` rows.

The features of `linear` are autoregressive, corr(x_i, x_j) = 0.6^|i - j|. The mean-field optimum,
argmin of KL(q || p) over diagonal Gaussians, has the exact mean and the diagonal of the exact
precision (Bishop 2006, 10.1.2). Where the split keeps the rows it is 1.59 nats away (1.38 to 1.88,
20 seeds) and its sds are 0.710 times the exact ones (0.667 to 0.740): `sd_ratio`, the mean over
coordinates. The ratio of the sums of the sds is 0.707, the root of that of the traces 0.705.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyro
import pyro.distributions as dist
import torch
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from bayesfed.data import Dataset, concatenated, dirichlet, federate, iid
from bayesfed.data.partition import Partition
from bayesfed.keys import Key

FEATURES, ROWS, CORRELATION, NOISE_SD, VISIBLE = 8, 400, 0.6, 1.0, 3
ALPHA = 0.3
LINEAR_SPLITS, LOGISTIC_SPLITS = ("iid", "sorted", "sizes", "features"), ("iid", "sorted", "labels")
SCHOOLS = (
    (28.0, 15.0),
    (8.0, 10.0),
    (-3.0, 16.0),
    (7.0, 11.0),
    (-1.0, 9.0),
    (1.0, 11.0),
    (18.0, 10.0),
    (12.0, 18.0),
)
"""Effect of coaching and its standard error, schools A to H (Rubin 1981)."""


def by_value(data: Dataset, clients: int) -> Partition:
    """Sort rows by their first input and cut them into stretches: sizes differ by at most one."""
    return list(data.inputs[:, 0].argsort(stable=True).tensor_split(clients))


SPLITS: dict[str, Callable[[Dataset, int, Key], Partition]] = {
    "iid": lambda data, clients, key: iid(len(data), clients, key),
    "sorted": lambda data, clients, _: by_value(data, clients),
    "sizes": lambda data, clients, key: dirichlet(
        torch.zeros(len(data)), clients, ALPHA, key, minimum=1
    ),
    "labels": lambda data, clients, key: dirichlet(data.targets, clients, ALPHA, key, minimum=1),
}
"""IID; sorted by the first input; IID rows in Dirichlet(0.3) sizes; each label in Dirichlet(0.3)
shares. No client is empty.
"""


def pooled(clients: Mapping[str, Dataset]) -> Dataset:
    """Return the rows of all clients, client after client."""
    return concatenated(list(clients.values()))


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian with mean ``(D,)`` and covariance ``(D, D)``."""

    mean: Tensor
    covariance: Tensor

    @property
    def sd(self) -> Tensor:
        """Marginal standard deviations ``(D,)``."""
        return self.covariance.diagonal().sqrt()


def mean_field(p: Gaussian) -> Gaussian:
    """Return argmin of KL(q || p) over diagonal Gaussians q: the same mean, the diagonal of the
    precision.
    """
    return Gaussian(p.mean, p.covariance.inverse().diagonal().reciprocal().diag())


def kl(q: Gaussian, p: Gaussian) -> float:
    """Return KL(q || p) in nats."""
    return float(
        kl_divergence(
            MultivariateNormal(q.mean, q.covariance), MultivariateNormal(p.mean, p.covariance)
        )
    )


def wasserstein(q: Gaussian, p: Gaussian) -> float:
    """Return the squared 2-Wasserstein distance (Givens and Shortt 1984).

    tr (A^1/2 B A^1/2)^1/2 is the nuclear norm of L_A^T L_B, where L L^T is a Cholesky
    factorisation.
    """
    factors = torch.linalg.cholesky(q.covariance).T @ torch.linalg.cholesky(p.covariance)
    shared = torch.linalg.matrix_norm(factors, "nuc")
    return float(
        (q.mean - p.mean).square().sum() + (q.covariance + p.covariance).trace() - 2 * shared
    )


def sd_ratio(q: Gaussian, p: Gaussian) -> float:
    """Return the mean over coordinates of q's marginal sd over p's: 1 is honest, less is
    over-confident.
    """
    return float((q.sd / p.sd).mean())


def linear(seed: int, clients: int, split: str) -> dict[str, Dataset]:
    """Draw 400 rows of ``y = x w + N(0, 1)``, w ~ N(0, I_8), and spread them over clients.

    The splits "iid", "sorted" and "sizes" share their rows. With "features" IID rows are dealt and
    client k sees columns 3k, 3k + 1 and 3k + 2 (mod 8) alone: the others are zero in its rows,
    whose targets come from what is visible. Below 3 clients some columns are zero throughout; their
    posterior is the prior.
    """
    key = Key(seed, "linear")
    generator, columns = key.generator(), torch.arange(FEATURES)
    correlation = CORRELATION ** (columns[:, None] - columns).abs().double()
    weights = torch.randn(FEATURES, generator=generator, dtype=torch.float64)
    inputs = (
        torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64)
        @ torch.linalg.cholesky(correlation).T
    )
    noise = NOISE_SD * torch.randn(ROWS, generator=generator, dtype=torch.float64)
    parts = SPLITS["iid" if split == "features" else split](
        Dataset(inputs, noise), clients, key.child(split, clients)
    )
    if split == "features":
        for client, rows in enumerate(parts):
            visible = torch.isin(columns, (VISIBLE * client + torch.arange(VISIBLE)) % FEATURES)
            inputs[rows] *= visible
    return federate(Dataset(inputs, inputs @ weights + noise), parts)


def linear_model(x: Tensor, y: Tensor | None = None) -> None:
    """Regress targets ``(N,)`` on inputs ``(N, 8)``: w ~ N(0, I), y ~ N(x w, 1)."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Normal(x @ w, NOISE_SD), obs=y)


def linear_exact(data: Dataset) -> Gaussian:
    """Return the posterior of w given rows: precision I + x^T x / sd^2."""
    precision = torch.eye(FEATURES, dtype=torch.float64) + data.inputs.T @ data.inputs / NOISE_SD**2
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
    return Gaussian(covariance @ data.inputs.T @ data.targets / NOISE_SD**2, covariance)


def odd(split: str) -> dict[str, Dataset]:
    """Spread the linear problem over two clients, a client with one row and, if `split` is "empty",
    one with none.
    """
    rows = pooled(linear(0, 1, "iid"))
    clients = {"a": rows[:200], "b": rows[200:399], "one": rows[399:]}
    return clients | ({"none": rows[:0]} if split == "empty" else {})


@dataclass(frozen=True)
class Conjugate:
    """A conjugate family whose density is exp(<natural, T(parameter)>), up to a constant, with
    respect to Lebesgue measure; T as each says.

    `prior` holds the natural parameters ``(S,)``, ``statistics(rows)`` what rows ``(N,)`` add to
    them, ``draw(generator, N)`` rows at a fixed truth.
    """

    name: str
    prior: Tensor
    statistics: Callable[[Tensor], Tensor]
    draw: Callable[[np.random.Generator, int], np.ndarray]

    def exact(self, rows: Tensor) -> Tensor:
        """Return the natural parameters of the posterior: the prior's and what all rows, or all
        clients, add.
        """
        return self.prior + self.statistics(rows)

    def clients(self, seed: int, clients: int, split: str, rows: int = ROWS) -> dict[str, Dataset]:
        """Draw rows and spread them, split as `SPLITS` says; inputs ``(N, 1)`` repeat the targets
        ``(N,)``, for "sorted" to sort by.
        """
        key = Key(seed, self.name)
        targets = torch.from_numpy(self.draw(key.numpy(), rows))
        data = Dataset(targets[:, None], targets)
        return federate(data, SPLITS[split](data, clients, key.child(split, clients)))


def beta_bernoulli(a: float = 1.5, b: float = 2.5) -> Conjugate:
    """Beta(a, b) of a probability p: T = (log p, log(1 - p)), natural (a - 1, b - 1)."""
    return Conjugate(
        "Beta-Bernoulli",
        double(a - 1, b - 1),
        lambda rows: double(rows.sum(), len(rows) - rows.sum()),
        lambda random, rows: random.binomial(1, 0.3, rows),
    )


def gamma_poisson(shape: float = 2.0, rate: float = 0.5) -> Conjugate:
    """Gamma(shape, rate) of a rate r: T = (log r, r), natural (shape - 1, -rate)."""
    return Conjugate(
        "Gamma-Poisson",
        double(shape - 1, -rate),
        lambda rows: double(rows.sum(), -len(rows)),
        lambda random, rows: random.poisson(3.0, rows),
    )


def normal_inverse_gamma(
    centre: float = 0.5, strength: float = 0.2, a: float = 2.0, b: float = 3.0
) -> Conjugate:
    """Rows N(m, v) with v ~ InverseGamma(a, b) and m ~ N(centre, v / strength).

    T = (log v, m^2 / v, m / v, 1 / v), natural (-a - 3/2, -strength / 2, strength * centre, -b -
    strength * centre^2 / 2).
    """
    return Conjugate(
        "Normal-inverse-Gamma",
        double(-a - 1.5, -strength / 2, strength * centre, -b - strength * centre**2 / 2),
        lambda rows: double(-len(rows) / 2, -len(rows) / 2, rows.sum(), -rows.square().sum() / 2),
        lambda random, rows: random.normal(1.5, 1.2, rows),
    )


def dirichlet_categorical(concentration: Sequence[float] = (0.5, 1.0, 2.0, 1.5)) -> Conjugate:
    """Dirichlet of the probabilities p of labels 0, 1, ...: T = log p, natural
    concentration - 1.
    """
    return Conjugate(
        "Dirichlet-categorical",
        double(*concentration) - 1,
        lambda rows: rows.bincount(minlength=len(concentration)).double(),
        lambda random, rows: random.choice(4, rows, p=[0.5, 0.3, 0.15, 0.05]),
    )


def double(*values: float | Tensor) -> Tensor:
    """Return numbers as a float64 vector."""
    return torch.tensor([float(value) for value in values], dtype=torch.float64)


CONJUGATE = (beta_bernoulli(), gamma_poisson(), normal_inverse_gamma(), dirichlet_categorical())


def logistic(clients: int = 10, split: str = "iid", seed: int = 0) -> dict[str, Dataset]:
    """Spread the breast cancer set, 569 rows; inputs ``(N, 9)`` are its first 8 features,
    standardised, and a one; targets 1 are benign.

    Splits: "iid", "sorted" (by mean radius, from all benign to none) and "labels" (Dirichlet 0.3
    shares of each label).
    """
    from sklearn.datasets import load_breast_cancer

    raw = load_breast_cancer()
    x = torch.from_numpy(raw.data[:, :FEATURES])
    x = (x - x.mean(0)) / x.std(0, correction=0)
    data = Dataset(
        torch.cat([x, torch.ones_like(x[:, :1])], 1), torch.from_numpy(raw.target).long()
    )
    return federate(data, SPLITS[split](data, clients, Key(seed, "logistic", split, clients)))


def logistic_model(x: Tensor, y: Tensor | None = None) -> None:
    """Classify inputs ``(N, 9)``, the last a one: w ~ N(0, I), y ~ Bernoulli(logit = x w)."""
    w = pyro.sample("w", dist.Normal(x.new_zeros(x.shape[1]), 1.0).to_event(1))
    with pyro.plate("data", len(x)):
        pyro.sample("y", dist.Bernoulli(logits=x @ w), obs=None if y is None else y.to(x.dtype))


def schools(clients: int = 4) -> dict[str, Dataset]:
    """Give each of 1, 2, 4 or 8 clients its schools, in order; inputs ``(n, 1)`` are standard
    errors, targets ``(n,)`` effects.
    """
    y, sigma = torch.tensor(SCHOOLS, dtype=torch.float64).T
    return federate(Dataset(sigma[:, None], y), list(torch.arange(len(y)).tensor_split(clients)))


def schools_model(sigma: Tensor, y: Tensor | None = None) -> None:
    """Share mu and tau over schools; each has ``theta = mu + tau * eta`` with eta ~ N(0, 1) of its
    own (the example of Gelman et al. 2013, 5.5).

    mu ~ N(0, 5), tau ~ HalfCauchy(5). Not centred, because a diagonal Gaussian over (mu, log tau,
    eta) then comes near the posterior: mu 4.5, sd 3.2 and log tau 0.79, sd 0.73, where they are
    4.40, sd 3.32 and 0.80, sd 1.17. Centred it finds mu 3.4, sd 1.7 and log tau 1.7, sd 0.24.
    """
    sigma = sigma.reshape(-1)
    mu = pyro.sample("mu", dist.Normal(sigma.new_zeros(()), 5.0))
    tau = pyro.sample("tau", dist.HalfCauchy(sigma.new_tensor(5.0)))
    with pyro.plate("client", len(sigma)):
        eta = pyro.sample("eta", dist.Normal(sigma.new_zeros(()), 1.0))
        pyro.sample("y", dist.Normal(mu + tau * eta, sigma), obs=y)
