"""What the exact posterior must not be called, and its numerics against slow twins."""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.distributions import constraints

import bayesfed as bf
from bayesfed.data import Dataset
from bayesfed.errors import UndeterminedWarning
from bayesfed.inference.exact import asking, checking, stages, weighing
from bayesfed.inference.exact.at_values import beside
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.traced import traced
from bayesfed.inspect.compat import k_hat


def numbers(*shape, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


INPUTS = torch.cat([torch.ones(30, 1).double(), numbers(30, 1)], 1)
TWICE = torch.cat([INPUTS, INPUTS[:, 1:]], 1)


def flat(*shape):
    return dist.ImproperUniform(constraints.real_vector if shape else constraints.real, (), shape)


def logistic(inputs, targets=None):
    beta = pyro.sample("beta", flat(inputs.shape[1]))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Bernoulli(logits=inputs @ beta), obs=targets)


def linear(inputs, targets=None):
    beta = pyro.sample("slopes", flat(inputs.shape[1]))
    scale = pyro.sample("scale", dist.ImproperUniform(constraints.positive, (), ()))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ beta, scale), obs=targets)


def mixture(inputs, targets=None):
    mu = pyro.sample("mu", dist.Normal(torch.zeros(2), 4.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.factor("y", dist.Normal(mu, torch.tensor(0.7)).log_prob(inputs[:, :1]).logsumexp(-1))


def far(inputs, targets=None):
    at = pyro.sample("mu", dist.Normal(torch.tensor(0.0), 50.0).expand([1]).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Cauchy(at, 0.5), obs=targets)


AROUND = [-15.3, -15.0, -14.6, 14.6, 15.0, 15.3]
APART = torch.cat([numbers(10, 1) * 0.7 - 3, numbers(10, 1, seed=4) * 0.7 + 3])
FREE = "slopes[1], slopes[2]"
PROBLEMS = {
    "separable": (logistic, INPUTS, (INPUTS[:, 1] > 0).double(), "gaussian"),
    "duplicated column": (linear, TWICE, numbers(30, seed=9), f"not identified: {FREE}"),
    "improper": (linear, INPUTS[:2], numbers(2), "no mode"),
    "unordered mixture": (mixture, APART, torch.zeros(20), "several modes"),
    "rows far from others": (far, INPUTS[:6], 15 + torch.tensor(AROUND).double(), "several modes"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_what_is_not_exact_is_not_called_so(name):
    model, inputs, targets, status = PROBLEMS[name]
    clients = {f"s{k}": bf.Dataset(inputs[k::2], targets[k::2]) for k in range(2)}
    with pytest.warns(UndeterminedWarning, match=re.escape(f"its status is '{status}")):
        result = bf.run(bf.federated_svi(model, least_rows=1), clients, progress=False)
    assert result.posterior.status == status
    assert result.algorithm.ended(result.snapshot.state)
    if name == "unordered mixture":
        assert abs(float(result.posterior.constants["mu.mean"][0])) < 0.2


def test_derivatives_and_values_are_those_of_single_points_also_where_matrices_fail():
    def solved(point):
        cov = torch.eye(3, dtype=torch.float64) * point[0].exp() + 0.5
        root = torch.linalg.cholesky(cov)
        away = torch.linalg.solve_triangular(root, point[:, None], upper=False)
        return -away.square().sum() - root.diagonal().log().sum()

    batch = numbers(4, 3)
    slopes, curves = asking.derivatives(solved, batch, 1)
    step = 1e-5 * torch.eye(3, dtype=torch.float64)
    for k in range(3):
        up = torch.stack([solved(point + step[k]) for point in batch])
        down = torch.stack([solved(point - step[k]) for point in batch])
        assert torch.allclose((up - down) / 2e-5, slopes[:, k], atol=1e-6)
        above, _ = asking.derivatives(solved, batch + step[k], 1)
        below, _ = asking.derivatives(solved, batch - step[k], 1)
        assert torch.allclose((above - below) / 2e-5, curves[:, k], atol=1e-5)

    def failing(point):
        cov = torch.eye(2, dtype=torch.float64) - point[0]
        return torch.linalg.cholesky(cov).diagonal().log().sum()

    values = asking.many(failing, 1)(torch.tensor([[0.1], [0.2], [5.0]]).double())
    assert values[:2].isfinite().all()
    assert values[2] == -torch.inf


def test_weights_are_pareto_smoothed_as_arviz_does():
    ratios = 1.5 * numbers(2000)
    found = weighing.judged(ratios)
    assert found.k_hat == pytest.approx(k_hat(ratios), abs=0.02)
    top = int(ratios.argmax())
    assert int(found.weights.argmax()) == top


def driven(density, size, values=weighing.same):
    """Return the last state for one party whose log density this is; `values` of points are those
    whose second moments count.
    """
    state = stages.starts(size)
    while (stage := int(state["stage"][0])) != stages.DONE:
        if stage == stages.IMPORTANCE:
            seed = stages.seed(int(state["stage"][1]))
            answer = asking.importance(density, state, checking.counts(state), seed, 1)
        else:
            answer = asking.reply(density, state, stage == stages.GAUSSIAN, 1)
        state = stages.told(state, answer, values=values)
    return state


def test_a_skewed_target_is_adapted_to():
    state = driven(lambda point: (2 * point - point.exp()).sum(), 4)
    found = checking.weights(state)
    two = torch.tensor(2.0)
    assert int(state["verdict"][0]) == weighing.ADAPTED
    mean = found.weights @ state["points"]
    assert torch.allclose(mean, torch.digamma(two).double().expand(4), atol=0.04)
    spread = found.weights @ (state["points"] - mean).square()
    assert torch.allclose(spread / torch.polygamma(1, two), torch.ones(4).double(), atol=0.05)
    assert abs(found.log_evidence) < 4 * found.error


@pytest.mark.parametrize("bend", [0.3, 0.6])
def test_a_bend_whose_tails_few_points_are_in_is_not_called_exact(bend):
    def density(point):
        return -((point[0] - bend * (point[1] ** 2 - 1)) ** 2) / 0.18 - point[1] ** 2 / 2

    state = driven(density, 2)
    assert int(state["verdict"][0]) == weighing.GAUSSIAN
    assert float(state["verdict"][1]) < 0.5


def test_an_sd_that_does_not_exist_is_not_called_exact_where_that_of_its_logarithm_does():
    # The scale of one row: its density falls as the cube, its logarithm has every moment.
    def density(point):
        return (-2 * point - (-2 * point).exp() / 2 - 0.1 * point.exp()).sum()

    def cubed(point):
        return (-2 * point - (-2 * point).exp() / 2).sum()

    def scales(points):
        return torch.cat([points, points.exp()], 1)

    fine, none = (int(driven(one, 1, scales)["verdict"][0]) for one in (density, cubed))
    assert fine in (weighing.EXACT, weighing.ADAPTED)
    assert none == weighing.GAUSSIAN
    assert int(driven(cubed, 1)["verdict"][0]) in (weighing.EXACT, weighing.ADAPTED)


def test_a_model_that_looks_at_its_values_has_them_at_every_point():
    def model(inputs, targets=None):
        scale = pyro.sample("scale", dist.LogNormal(torch.tensor(0.0), 1.0))
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(0.0, scale if float(scale) > 1 else 1.0), obs=targets)

    made = traced(model, Form.of(Dataset(INPUTS, numbers(30))), "client")
    places = numbers(7, 1)
    assert torch.equal(beside(made, places), torch.cat([places, places.exp()], 1))


def test_values_that_are_the_same_everywhere_say_nothing():
    def beside(points):
        return torch.cat([points, torch.ones(len(points), 1), points * 0], 1)

    state = driven(lambda point: -point.square().sum() / 2, 2, beside)
    assert int(state["verdict"][0]) == weighing.EXACT


def test_the_scale_of_six_batches_is_adapted_to(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    dyes = importlib.import_module("parts.exact.classics").dyes()
    y = torch.stack([rows.targets for rows in dyes.clients.values()])
    half_cauchy, same = dist.HalfCauchy(torch.tensor(1.0).double()), torch.ones(5, 5).double()

    def density(point):
        scales = point[1:].exp()
        cov = scales[0] ** 2 * same + scales[1] ** 2 * torch.eye(5).double()
        each = dist.MultivariateNormal(point[0].expand(5), cov).log_prob(y).sum()
        return each - point[0] ** 2 / 50 + (half_cauchy.log_prob(scales) + point[1:]).sum()

    def values(points):
        return torch.cat([points, points[:, 1:].exp()], 1)

    with pyro.validation_enabled(False):
        state = driven(density, 3, values)
    assert int(state["verdict"][0]) == weighing.ADAPTED
    weights = checking.weights(state).weights
    for name, leaf in zip(("tau", "sigma"), values(state["points"]).T[3:], strict=True):
        mean, sd = dyes.shared[name]
        found = weights @ leaf
        assert abs(found - mean) < 0.05 * sd
        assert (weights @ (leaf - found).square()).sqrt() / sd == pytest.approx(1, abs=0.03)


def test_items_crossed_with_sites_are_near_whatever_they_are_called(monkeypatch):
    # A narrow Gaussian lacks the tail of large sds, into which the mode's curvature reaches.
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    crossed = importlib.import_module("parts.exact.hierarchies").crossed()
    each = [(rows.inputs[:, 0].long(), rows.targets) for rows in crossed.clients.values()]
    items = torch.stack([item for item, _ in each])
    y, same = torch.stack([targets for _, targets in each]), torch.ones(10, 10).double()
    half_cauchy = dist.HalfCauchy(torch.tensor(1.0).double())

    def density(point):
        scales = point[1:4].exp()
        cov = scales[0] ** 2 * same + scales[2] ** 2 * torch.eye(10).double()
        mean = point[0] + scales[1] * point[4:][items]
        rows = dist.MultivariateNormal(mean, cov).log_prob(y).sum()
        prior = half_cauchy.log_prob(scales).sum() + point[1:4].sum()
        return rows + prior - point[0] ** 2 / 50 - point[4:].square().sum() / 2

    def values(points):
        return torch.cat([points, points[:, 1:4].exp()], 1)

    with pyro.validation_enabled(False):
        state = driven(density, 9, values)
    weights = checking.weights(state).weights
    for name, leaf in zip(("tau", "across", "sigma"), values(state["points"]).T[9:], strict=True):
        mean, sd = crossed.shared[name]
        found = weights @ leaf
        assert abs(found - mean) < 0.05 * sd
        assert (weights @ (leaf - found).square()).sqrt() / sd > 0.93


def test_a_step_that_nobody_looked_at_is_not_proposed_from(monkeypatch):
    # One round of the Gaussian, whose full step would go far beyond the mode.
    monkeypatch.setattr(stages, "WIDENS", 1)
    monkeypatch.setattr(weighing, "REFITS", 0)
    state = driven(lambda point: (2 * point - point.exp()).sum(), 4)
    assert torch.equal(state["mix/centre"], state["mode/centre"])


def test_a_grid_that_is_too_coarse_is_no_reference(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    quadrature = importlib.import_module("parts.exact.quadrature")
    y, prior = numbers(200), {"sigma": quadrature.log_scale(1.0)}
    rows = quadrature.Linear(torch.ones(200, 1).double(), y, ["mu"], {"mu": 5.0}, "sigma", prior)
    with pytest.raises(ValueError, match="a grid of 8 steps is too coarse"):
        rows.moments({}, 8)
    known, finer = rows.moments({}, 40), rows.moments({}, 160)
    assert torch.allclose(known["sigma"][1], finer["sigma"][1], rtol=1e-3)
    assert known["mu"][0] == pytest.approx(float(y.mean()), abs=1e-3)


@pytest.mark.parametrize("root", ["matrix", "sds"])
@pytest.mark.parametrize("away", [0.0, 2.0])
def test_one_round_checks_a_gaussian_that_is_known(root, away):
    sds = torch.linspace(0.5, 3, 60).double()
    centre = away * sds
    question = checking.around(centre, sds if root == "sds" else sds.diag())

    def density(point):
        return -(point / sds).square().sum() / 2

    answer = asking.importance(density, question, checking.counts(question), 5, 1)
    state = checking.checked(question, answer, 0.0, 5)
    code, k_hat, ess, evidence, error = state["verdict"].tolist()
    if away:
        assert code == weighing.GAUSSIAN
        assert k_hat > 0.7 or ess < 100
    else:
        known = 30 * math.log(2 * math.pi) + float(sds.log().sum())
        assert code == weighing.EXACT
        assert k_hat < 0.5
        assert abs(evidence - known) < 4 * error < 0.2
    # The fit itself, whatever the weights say.
    own = checking.gaussian(state)
    mean = own @ state["points"]
    assert torch.allclose((mean - centre) / sds, torch.zeros(60).double(), atol=0.05)
    spread = own @ (state["points"] - mean).square()
    assert torch.allclose(spread.sqrt() / sds, torch.ones(60).double(), atol=0.05)
