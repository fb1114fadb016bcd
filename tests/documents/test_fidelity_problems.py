"""The problems of `benchmarks/fidelity.py`: partitions, exact answers against brute force,
divergences, and the stored references.
"""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from pyro import poutine
from scipy import integrate, stats
from torch.distributions import MultivariateNormal

import bayesfed as bf
from benchmarks.parts.fidelity import problems as fp

CLIENTS = (1, 2, 5, 10, 50)
REFERENCE = Path(fp.__file__).with_name("reference.json")


def rows(data):
    """The rows of a data set as a sorted list: equal for equal rows in any order."""
    return sorted(map(tuple, torch.cat([data.inputs, data.targets[:, None].double()], 1).tolist()))


def normal(key, *shape):
    return torch.randn(*shape, generator=key.generator(), dtype=torch.float64)


def gaussian(name, size=3):
    key = bf.Key(0, name)
    factor = normal(key.child("factor"), size, size)
    return fp.Gaussian(
        normal(key.child("mean"), size), factor @ factor.T + torch.eye(size, dtype=torch.float64)
    )


@pytest.mark.parametrize("count", CLIENTS)
@pytest.mark.parametrize("split", ["iid", "sorted", "sizes"])
def test_linear_splits_share_their_rows_and_their_posterior(split, count):
    clients = fp.linear(3, count, split)
    whole, other = (
        fp.linear_exact(fp.pooled(fp.linear(3, 1, "iid"))),
        fp.linear_exact(fp.pooled(clients)),
    )
    assert len(clients) == count
    assert min(map(len, clients.values())) > 0
    assert rows(fp.pooled(clients)) == rows(fp.linear(3, 1, "iid")["client-000"])
    torch.testing.assert_close(other.covariance, whole.covariance)
    torch.testing.assert_close(other.mean, whole.mean)
    again = fp.linear(3, count, split)
    assert all(torch.equal(clients[name].inputs, again[name].inputs) for name in clients)


@pytest.mark.parametrize("count", CLIENTS)
def test_a_client_sees_three_features(count):
    clients = fp.linear(0, count, "features")
    seen = [set(data.inputs.abs().sum(0).nonzero().flatten().tolist()) for data in clients.values()]
    assert seen == [
        {3 * client % 8, (3 * client + 1) % 8, (3 * client + 2) % 8} for client in range(count)
    ]
    assert sum(map(len, clients.values())) == 400
    hidden = sorted(set(range(8)) - set.union(*seen))
    torch.testing.assert_close(
        fp.linear_exact(fp.pooled(clients)).sd[hidden], torch.ones(len(hidden), dtype=torch.float64)
    )


def test_features_are_dealt_from_the_rows_of_the_other_splits():
    first, whole = fp.linear(1, 10, "features")["client-000"], fp.pooled(fp.linear(1, 10, "iid"))
    every = {tuple(row) for row in whole.inputs[:, :3].tolist()}
    assert all(tuple(row) in every for row in first.inputs[:, :3].tolist())


def test_splits_are_as_skewed_as_they_say():
    first = [data.inputs[:, 0] for data in fp.linear(0, 5, "sorted").values()]
    assert all(left.max() <= right.min() for left, right in itertools.pairwise(first))
    sizes = [len(data) for data in fp.linear(0, 10, "sizes").values()]
    assert max(sizes) > 100
    shares = [float(data.targets.double().mean()) for data in fp.logistic(10, "labels").values()]
    assert min(shares) < 0.1 < 0.9 < max(shares)


@pytest.mark.parametrize("split", fp.LINEAR_SPLITS)
def test_the_linear_posterior_is_the_model(split):
    """Bayes' rule: the model's log joint less the posterior's log density is the same at
    every w.
    """
    data = fp.pooled(fp.linear(0, 10, split))
    exact = fp.linear_exact(data)
    points = torch.cat(
        [
            MultivariateNormal(exact.mean, exact.covariance).sample((20,)),
            normal(bf.Key(0, "points"), 20, 8),
        ]
    )
    joint = torch.stack([log_joint(fp.linear_model, data, w=w) for w in points])
    constant = joint - MultivariateNormal(exact.mean, exact.covariance).log_prob(points)
    torch.testing.assert_close(constant, constant[:1].expand(40), rtol=1e-11, atol=1e-8)


def log_joint(model, data, **values):
    return (
        poutine.trace(poutine.condition(model, values))
        .get_trace(data.inputs, data.targets)
        .log_prob_sum()
    )


RANDOM = bf.Key(0, "parameters").numpy()
P, R, M, V = (
    RANDOM.uniform(0.05, 0.95, 30),
    RANDOM.uniform(0.5, 9, 30),
    RANDOM.normal(0, 2, 30),
    RANDOM.uniform(0.3, 4, 30),
)
SHARES = RANDOM.dirichlet(np.ones(4), 30).T
ALPHA = (2.0, 0.3, 1.0, 1.5)
FAMILIES = {
    fp.beta_bernoulli(2, 0.7): (
        (np.log(P), np.log1p(-P)),
        stats.beta(2, 0.7).logpdf(P),
        lambda y: stats.bernoulli.logpmf(y, P),
    ),
    fp.gamma_poisson(3, 0.4): (
        (np.log(R), R),
        stats.gamma(3, scale=1 / 0.4).logpdf(R),
        lambda y: stats.poisson.logpmf(y, R),
    ),
    fp.normal_inverse_gamma(-1, 0.5, 3, 2): (
        (np.log(V), M**2 / V, M / V, 1 / V),
        stats.invgamma(3, scale=2).logpdf(V) + stats.norm.logpdf(M, -1, np.sqrt(V / 0.5)),
        lambda y: stats.norm.logpdf(y, M, np.sqrt(V)),
    ),
    fp.dirichlet_categorical(ALPHA): (
        np.log(SHARES),
        stats.dirichlet(ALPHA).logpdf(SHARES),
        lambda y: np.log(SHARES)[y[:, 0]],
    ),
}
"""T of 30 parameters, their log prior, and their log likelihood for each row of a column, all by
scipy.
"""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_conjugate_posteriors_are_bayes_rule(family):
    """The log joint less <natural, T> is the same at every parameter."""
    sufficient, prior, likelihood = FAMILIES[family]
    rows = family.clients(0, 1, "iid")["client-000"].targets
    constant = (
        prior
        + likelihood(rows.numpy()[:, None]).sum(0)
        - family.exact(rows).numpy() @ np.stack(sufficient)
    )
    np.testing.assert_allclose(constant, constant[0], rtol=1e-10)


@pytest.mark.parametrize("family", fp.CONJUGATE, ids=lambda family: family.name)
def test_conjugate_clients_add_up(family):
    whole = family.clients(0, 1, "iid")["client-000"].targets
    assert family.prior.dtype == torch.float64
    for split, count in itertools.product(("iid", "sorted", "sizes"), CLIENTS):
        clients = family.clients(0, count, split)
        assert len(clients) == count
        assert torch.equal(fp.pooled(clients).targets.sort().values, whole.sort().values)
        total = family.prior + sum(family.statistics(data.targets) for data in clients.values())
        torch.testing.assert_close(total, family.exact(whole), rtol=1e-12, atol=1e-9)


def test_a_conjugate_mean_is_that_of_a_grid():
    family = fp.beta_bernoulli(1.5, 2.5)
    rows = family.clients(0, 1, "iid", rows=20)["client-000"].targets
    p = np.linspace(0, 1, 100_001)[1:-1]
    density = np.exp(np.stack([np.log(p), np.log1p(-p)], 1) @ family.exact(rows).numpy())
    mean = integrate.trapezoid(p * density, p) / integrate.trapezoid(density, p)
    assert mean == pytest.approx((1.5 + float(rows.sum())) / (4 + 20), rel=1e-6)


def test_the_mean_field_optimum_minimises_the_divergence():
    exact = fp.linear_exact(fp.pooled(fp.linear(0, 1, "iid")))
    best = fp.mean_field(exact)
    least = fp.kl(best, exact)
    precision = exact.covariance.inverse()
    assert least == pytest.approx(
        0.5 * float(precision.diagonal().log().sum() - precision.logdet())
    )
    mean, logs = best.mean.clone().requires_grad_(), best.sd.log().requires_grad_()
    q, p = (
        MultivariateNormal(mean, (2 * logs).exp().diag()),
        MultivariateNormal(exact.mean, exact.covariance),
    )
    for slope in torch.autograd.grad(torch.distributions.kl_divergence(q, p), (mean, logs)):
        torch.testing.assert_close(slope, torch.zeros_like(slope), atol=1e-9, rtol=0)
    for step in 0.02 * normal(bf.Key(0, "steps"), 20, 16):
        assert (
            fp.kl(
                fp.Gaussian(
                    best.mean + step[:8] * best.sd, (best.sd * step[8:].exp()).square().diag()
                ),
                exact,
            )
            > least
        )


def test_mean_field_is_as_far_off_as_documented():
    exact = [fp.linear_exact(fp.pooled(fp.linear(seed, 1, "iid"))) for seed in range(20)]
    distances = [fp.kl(fp.mean_field(one), one) for one in exact]
    ratios = [fp.sd_ratio(fp.mean_field(one), one) for one in exact]
    assert np.mean(distances) == pytest.approx(1.59, abs=0.005)
    assert (min(distances), max(distances)) == pytest.approx((1.38, 1.88), abs=0.005)
    assert np.mean(ratios) == pytest.approx(0.710, abs=0.0005)
    assert (min(ratios), max(ratios)) == pytest.approx((0.667, 0.740), abs=0.0005)


def test_divergences_have_their_closed_values():
    one = torch.ones(1, dtype=torch.float64)
    narrow, wide = fp.Gaussian(one, one[:, None]), fp.Gaussian(4 * one, 9 * one[:, None])
    assert fp.kl(narrow, wide) == pytest.approx(np.log(3) + (1 + 9) / 18 - 0.5)
    assert fp.wasserstein(narrow, wide) == pytest.approx((4 - 1) ** 2 + (3 - 1) ** 2)
    assert fp.sd_ratio(narrow, wide) == pytest.approx(1 / 3)
    p, q = gaussian("p"), gaussian("q")
    assert fp.kl(p, p) == pytest.approx(0, abs=1e-12)
    assert fp.wasserstein(p, p) == pytest.approx(0, abs=1e-12)
    assert fp.wasserstein(p, q) == pytest.approx(fp.wasserstein(q, p))
    root = matrix_root(p.covariance)
    bures = (p.covariance + q.covariance).trace() - 2 * matrix_root(
        root @ q.covariance @ root
    ).trace()
    assert fp.wasserstein(p, q) == pytest.approx(float((p.mean - q.mean).square().sum() + bures))
    draws = MultivariateNormal(q.mean, q.covariance).sample((200_000,))
    logs = [MultivariateNormal(one.mean, one.covariance).log_prob(draws) for one in (q, p)]
    assert fp.kl(q, p) == pytest.approx(float((logs[0] - logs[1]).mean()), rel=0.02)


def matrix_root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ values.sqrt().diag() @ vectors.T


@pytest.mark.parametrize("split", fp.LOGISTIC_SPLITS)
def test_logistic_splits_share_their_rows(split):
    clients = fp.logistic(10, split)
    whole = fp.logistic(1)["client-000"]
    assert rows(fp.pooled(clients)) == rows(whole)
    assert whole.inputs.shape == (569, 9)
    torch.testing.assert_close(
        whole.inputs.mean(0), torch.eye(9, dtype=torch.float64)[8], atol=1e-12, rtol=0
    )
    assert min(map(len, clients.values())) > 0


def test_schools_are_spread_in_order():
    for count in (1, 2, 4, 8):
        clients = fp.schools(count)
        assert [len(data) for data in clients.values()] == [8 // count] * count
        assert fp.pooled(clients).targets.tolist() == [28, 8, -3, 7, -1, 1, 18, 12]
        assert fp.pooled(clients).inputs[:, 0].tolist() == [15, 10, 16, 11, 9, 11, 10, 18]


@pytest.mark.slow
def test_the_logistic_reference_agrees_with_importance_sampling():
    """Draws of a wide t around the mode, weighted by the model's joint, know nothing of the
    sampler's.
    """
    stored = json.loads(REFERENCE.read_text())["logistic"]["w"]
    data = fp.pooled(fp.logistic())
    x, y = data.inputs, data.targets.double()
    mode = torch.zeros(9, dtype=torch.float64)
    for _ in range(30):
        p = torch.sigmoid(x @ mode)
        precision = torch.eye(9, dtype=torch.float64) + (x * (p * (1 - p))[:, None]).T @ x
        mode = mode + torch.linalg.solve(precision, x.T @ (y - p) - mode)
    proposal = stats.multivariate_t(mode.numpy(), precision.inverse().numpy(), df=8)
    draws = proposal.rvs(40_000, random_state=bf.Key(0, "proposal").numpy())
    w = torch.from_numpy(draws)
    logits = w @ x.T
    joint = (logits * y - torch.nn.functional.softplus(logits)).sum(1) - w.square().sum(1) / 2
    for one in (0, 1):
        model = log_joint(fp.logistic_model, data, w=w[one]) - log_joint(
            fp.logistic_model, data, w=mode
        )
        at_mode = (
            x @ mode * y - torch.nn.functional.softplus(x @ mode)
        ).sum() - mode.square().sum() / 2
        torch.testing.assert_close(model, joint[one] - at_mode)
    weights = torch.softmax(joint - torch.from_numpy(proposal.logpdf(draws)), 0)
    mean, sd = weights @ w, torch.tensor(stored["sd"], dtype=torch.float64)
    covariance = (w - mean).T @ (weights[:, None] * (w - mean))
    assert (
        float(((mean - torch.tensor(stored["mean"], dtype=torch.float64)) / sd).abs().max()) < 0.03
    )
    torch.testing.assert_close(
        covariance / sd / sd[:, None],
        torch.tensor(stored["covariance"]).double() / sd / sd[:, None],
        atol=0.05,
        rtol=0,
    )


def test_the_schools_reference_agrees_with_quadrature():
    stored = json.loads(REFERENCE.read_text())["schools"]
    assert stored["divergences"] <= 5
    for name in ("mu", "log_tau"):
        nuts, grid = stored[name], stored["quadrature"][name]
        assert abs(nuts["mean"] - grid["mean"]) < 0.03 * grid["sd"]
        assert nuts["sd"] == pytest.approx(grid["sd"], rel=0.03)
        assert nuts["r_hat"] < 1.01
    eta = (torch.tensor(stored["theta"]["mean"]) - stored["mu"]["mean"]).double()
    shrunk = torch.tensor([y for y, _ in fp.SCHOOLS]) - stored["mu"]["mean"]
    assert bool((eta * shrunk > 0).all())
    assert bool((eta.abs() < shrunk.abs()).all())


def test_the_schools_model_is_the_one_integrated_out():
    """y = mu + tau eta + error: the model's density at one school, integrated over its eta, is that
    of the quadrature.
    """
    data = fp.pooled(fp.schools())[slice(0, 1)]
    mu, tau = (torch.tensor(value, dtype=torch.float64) for value in (4.0, 3.0))
    eta = torch.linspace(-9, 9, 101, dtype=torch.float64)
    joint = torch.stack(
        [log_joint(fp.schools_model, data, mu=mu, tau=tau, eta=one[None]) for one in eta]
    )
    found = integrate.trapezoid(joint.exp().numpy(), eta.numpy())
    shared = stats.norm.pdf(4, 0, 5) * stats.halfcauchy.pdf(3, scale=5)
    assert found == pytest.approx(shared * stats.norm.pdf(28, 4, np.hypot(3, 15)), rel=1e-8)
