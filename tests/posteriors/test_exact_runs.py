"""`federated_svi` of a model alone: against conjugate answers, the same bits however it runs, and
what it refuses.
"""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import (
    ArgumentError,
    ClientError,
    DataError,
    PosteriorError,
    UndeterminedWarning,
)
from bayesfed.trees import Tree

WIDE = 10.0


def rows(count: int = 60, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 2, dtype=torch.float64, generator=generator)
    noise = torch.randn(count, dtype=torch.float64, generator=generator)
    return inputs, inputs @ torch.tensor([1.0, -2.0], dtype=torch.float64) + noise


def sites(inputs, targets, count=3):
    return {f"s{k}": bf.Dataset(inputs[k::count], targets[k::count]) for k in range(count)}


def line(inputs, targets=None):
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), WIDE).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ beta, 1.0), obs=targets)


def exact(inputs, targets):
    """Return mean, sds and log evidence of the line."""
    precision = inputs.T @ inputs + torch.eye(2) / WIDE**2
    mean = torch.linalg.solve(precision, inputs.T @ targets)
    cov = torch.eye(len(targets)).double() + WIDE**2 * inputs @ inputs.T
    marginal = torch.distributions.MultivariateNormal(torch.zeros(len(targets)).double(), cov)
    return mean, precision.inverse().diagonal().sqrt(), float(marginal.log_prob(targets))


def run(clients, model=line, **options):
    return bf.run(bf.federated_svi(model), clients, progress=False, **options)


def same(left: Tree, right: Tree) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


@pytest.fixture(scope="module")
def found():
    return run(sites(*rows()))


def test_it_is_the_conjugate_posterior_with_its_evidence(found):
    mean, sds, evidence = exact(*rows())
    posterior, constants = found.posterior, found.posterior.constants
    assert (posterior.status, posterior.doubt) == ("exact", "")
    assert ((constants["beta.mean"] - mean) / sds).abs().max() < 0.02
    assert (constants["beta.sd"] / sds - 1).abs().max() < 0.02
    estimate, error = posterior.log_evidence
    assert error < 0.01
    assert abs(estimate - evidence) < 3 * error
    assert len(found.history) < 15
    sent = sum(row.bits for row in found.ledger if row.direction == "up" and row.client == "s0")
    assert sent < 8 * 25_000


def test_the_posterior_without_a_site_is_that_of_the_others(found):
    # A third of the rows is much: even weights would be "exact" (`test_without_sites`).
    with pytest.warns(UndeterminedWarning, match="uneven weights.*means are off by about 0.02 sds"):
        without = found.posterior.without(found.snapshot.memories["s1"])
    inputs, targets = rows()
    others = torch.arange(60) % 3 != 1
    mean, sds, evidence = exact(inputs[others], targets[others])
    assert ((without.constants["beta.mean"] - mean) / sds).abs().max() < 0.05
    assert abs(without.log_evidence[0] - evidence) < 0.05
    with pytest.raises(PosteriorError, match="what a site keeps"):
        found.posterior.without({})


def test_draws_predictions_and_arviz(found):
    inputs, targets = rows()
    data = found.to_arviz(bf.Dataset(inputs, targets), draws=200)
    drawn = torch.as_tensor(data.posterior["beta"].values[0])
    mean, sds, _ = exact(inputs, targets)
    assert ((drawn.mean(0) - mean) / sds).abs().max() < 0.3
    assert data.constant_data["k_hat"].item() == pytest.approx(found.posterior.k_hat)
    assert found.scores(bf.Dataset(inputs, targets))["all"]["rmse"] < 1.2
    assert {"log_evidence", "ess"} <= found.history[-1].server.keys()


def test_the_partition_does_not_matter(found):
    one = run(sites(*rows(), count=1)).posterior.constants
    for name, leaf in found.posterior.constants.items():
        if "beta" in name:
            assert torch.allclose(one[name], leaf, atol=2e-3)


def test_the_same_bits_in_workers_and_from_every_stage(found):
    clients = sites(*rows())
    with bf.InProcess(clients, workers=2) as pool:
        assert same(run(pool).snapshot.state, found.snapshot.state)
    stages = [int(record.server["stage"]) for record in found.history]
    for stage in sorted(set(stages) - {4}):
        cut = stages.index(stage) + 1
        with pytest.warns(UndeterminedWarning, match="ended in the stage"):
            part = run(clients, rounds=cut)
        assert same(run(clients, resume=part.snapshot).snapshot.state, found.snapshot.state)
    assert len(run(clients, resume=found.snapshot).history) == len(found.history)


class Deaf(bf.InProcess):
    """A pool in which a site fails in some calls."""

    def __init__(self, clients, name, calls):
        super().__init__(clients)
        self.name, self.calls, self.call = name, calls, 0

    def map(self, sides, tasks):
        self.call += 1
        for task, outcome in super().map(sides, tasks):
            fails = task.client == self.name and self.call in self.calls
            yield task, task.error("fit", "away") if fails else outcome


@pytest.mark.parametrize("calls", [(2, 3), (-1,)], ids=["for a while", "at the end"])
def test_a_site_that_was_away_is_waited_for(found, calls):
    calls = [len(found.history) if call < 0 else call for call in calls]
    pool = Deaf(sites(*rows()), "s1", calls)
    result = run(pool, on_client_error="drop")
    assert len(result.history) == len(found.history) + len(calls)
    for name in ("beta.mean", "log_evidence"):
        assert torch.allclose(
            result.posterior.constants[name], found.posterior.constants[name], atol=1e-2
        )


def test_a_site_that_never_comes_back_is_said():
    pool = Deaf(sites(*rows()), "s1", range(4, 100))
    with pytest.warns(UndeterminedWarning, match="not heard in the end were 's1'"):
        result = run(pool, on_client_error="drop")
    assert result.posterior.status == "exact, without 1 site"
    inputs, targets = rows()
    others = torch.arange(60) % 3 != 1
    mean, sds, _ = exact(inputs[others], targets[others])
    assert ((result.posterior.constants["beta.mean"] - mean) / sds).abs().max() < 0.02


def test_a_method_that_is_run_again_on_fewer_sites_misses_none():
    algorithm, clients = bf.federated_svi(line), sites(*rows())
    bf.run(algorithm, clients, progress=False)
    del clients["s1"]
    again = bf.run(algorithm, clients, progress=False)
    assert (again.posterior.status, again.posterior.doubt) == ("exact", "")
    assert same(again.snapshot.state, run(clients).snapshot.state)


def test_terms_that_no_rows_enter_are_the_priors_once():
    def tied(inputs, targets=None):
        a, b = (pyro.sample(name, dist.Normal(torch.tensor(0.0), 3.0)) for name in "ab")
        pyro.factor("near", -8 * (a - b) ** 2)
        pyro.sample("seen", dist.Normal(b, 0.5), obs=torch.tensor(2.0))
        pyro.factor("rows", dist.Normal(a, 1.0).log_prob(targets).sum())

    _, targets = rows()
    constants = run(sites(*rows()), tied).posterior.constants
    precision = torch.tensor([[1 / 9 + 16 + 60, -16.0], [-16.0, 1 / 9 + 16 + 4]])
    mean = torch.linalg.solve(precision, torch.tensor([float(targets.sum()), 8.0]))
    sds = precision.inverse().diagonal().sqrt()
    for k, name in enumerate("ab"):
        assert abs(constants[f"{name}.mean"] - mean[k]) < 0.02 * sds[k]
        assert abs(constants[f"{name}.sd"] / sds[k] - 1) < 0.02


def test_models_that_cannot_be_split_are_refused():
    def means(inputs, targets=None):
        beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 1.0).to_event(1))
        pyro.factor("y", -(targets - inputs @ beta).square().mean())

    def standardised(inputs, targets=None):
        line((inputs - inputs.mean(0)) / inputs.std(0, correction=0), targets)

    def chosen(inputs, targets=None):
        line(inputs, targets)
        if targets.mean() > 0:
            pyro.sample("b", dist.Normal(torch.tensor(0.0), 1.0))

    def informed(inputs, targets=None):
        pyro.sample("place", dist.Normal(inputs.mean(), 1.0))
        line(inputs, targets)

    def discrete(inputs, targets=None):
        kind = pyro.sample("kind", dist.Bernoulli(torch.tensor(0.5)))
        pyro.sample("y", dist.Normal(kind, 1.0), obs=targets.sum())

    def free(inputs, targets=None):
        beta = pyro.param("beta", torch.zeros(2, dtype=torch.float64))
        pyro.factor("y", -(targets - inputs @ beta).square().sum())
        pyro.sample("a", dist.Normal(torch.tensor(0.0), 1.0))

    def noisy(inputs, targets=None):
        line(inputs + torch.randn(inputs.shape), targets)

    def columns(inputs, targets=None):
        line(inputs, targets[:, None])

    def large(inputs, targets=None):
        pyro.sample("w", dist.Normal(torch.zeros(20_000), 1.0).to_event(1))
        line(inputs, targets)

    clients = sites(*rows())
    for model, words in [
        (means, "the sum over rows"),
        (standardised, "the sum over rows, found another sum for parts"),
        (chosen, "prior that is the same for all rows"),
        (noisy, "another each time; try pyro.sample, or a constant"),
        (columns, r"shape that their distribution has, found \(\d+, 1\)"),
        (informed, "prior that is the same for all rows"),
        (discrete, "density on numbers"),
        (free, "unknowns are sites"),
        (large, "at most 20,000 shared"),
    ]:
        with pytest.raises((PosteriorError, ClientError), match=words):
            run(clients, model)
    with pytest.raises(ArgumentError, match="an example for a guide's fit"):
        bf.federated_svi(line, training=bf.Training())
    with pytest.raises(ArgumentError, match="every site in every round"):
        run(clients, sampler=bf.fraction(0.5))
    with pytest.raises(ArgumentError, match="rounds"):
        bf.run(bf.fed_avg(torch.nn.Linear(2, 2)), clients)
    with pytest.raises(DataError, match="different"):
        run(clients | {"s1": bf.Dataset(torch.zeros(3, 4), torch.zeros(3))})


def test_evidence_is_finite(found):
    assert math.isfinite(found.final("log_evidence"))
