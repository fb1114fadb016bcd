"""`federated_svi` of a model alone whose density is not defined everywhere: where it is not, it is
0, and if it is nowhere where the search begins, the site at fault is named.
"""

from __future__ import annotations

import re

import pyro
import pyro.distributions as dist
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ClientError, PosteriorError, UndeterminedWarning
from bayesfed.inference.exact import asking
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.own import inside
from bayesfed.inference.exact.traced import doubled, traced
from tests.posteriors.test_exact_runs import run

LEVEL = torch.linspace(0.5, 1.5, 12).double()


def split(inputs, targets=LEVEL, count=3):
    inputs = torch.as_tensor(inputs).double()
    return {f"s{k}": bf.Dataset(inputs[k::count], targets[k::count]) for k in range(count)}


def normal(name, sd=1.0):
    return pyro.sample(name, dist.Normal(torch.tensor(0.0), sd))


def observed(mean, inputs, targets):
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=targets)


def logged(inputs, targets=None):
    observed((normal("a") + normal("b") * inputs[:, 0]).log(), inputs, targets)


def rooted(inputs, targets=None):
    observed((normal("a") * inputs[:, 0]).sqrt(), inputs, targets)


def within(inputs, targets=None):
    scale = pyro.sample("scale", dist.LogNormal(torch.tensor(0.0), 1.0))
    pyro.factor("range", dist.Uniform(torch.tensor(0.0), scale).log_prob(targets).sum())
    observed(scale, inputs, targets)


def owned(inputs, targets=None):
    a = normal("a")
    with pyro.plate("client", 1):
        own = pyro.sample("own", dist.Normal(a, 1.0))
    observed((own + 2 * inputs[:, 0]).log(), inputs, targets)


def bounded(inputs, targets=None, power=20.0):
    """A prior with a further term, of which the half has no density."""
    a = normal("a", 3.0)
    pyro.factor("prior", power * a.log())
    observed(a, inputs, targets)


ONES = torch.ones(12, 1)
WIDE = torch.linspace(-9, 9, 12)[:, None]
FINITE = "expected a finite log density at one of 12 starting points, found at best "


@pytest.mark.parametrize(
    ("model", "clients", "words"),
    [
        (logged, split(WIDE), "'s1'.* site 'y': {}1 of 4 terms.*, inputs from -7.36 to 7"),
        (owned, split(-WIDE.abs() - 4), "'s0'.* site 'y': {}4 of 4 terms.* targets from 0.5 to"),
        (rooted, split(ONES) | {"s1": split(0 * ONES - 1)["s1"]}, ""),
        (within, split(ONES, 1000 * LEVEL), "'s0'.* site 'range': {}1 of 1 terms"),
    ],
    ids=["logarithm", "own latents", "zero alone", "support"],
)
def test_a_model_without_a_density_where_the_search_begins_is_told_the_site(model, clients, words):
    if words:
        with pytest.raises(ClientError, match=words.format(re.escape(FINITE))):
            bf.run(bf.federated_svi(model, least_rows=1), clients, progress=False)
    else:
        # At 0 all sites have one, and at no other value.
        with pytest.warns(UndeterminedWarning, match="its status is 'gaussian'"):
            bf.run(bf.federated_svi(model, least_rows=1), clients, progress=False)


def test_sites_that_have_a_density_at_no_common_start_and_a_prior_without_are_told_apart():
    def apart(inputs, targets=None):
        observed((normal("a") * inputs[:, 0] - 1e-9).log(), inputs, targets)

    def narrow(inputs, targets=None):
        a = normal("a")
        pyro.factor("far", torch.where((a + 0.3).abs() < 1e-6, 0.0, -torch.inf))
        observed(a, inputs, targets)

    clients = split(ONES) | {"s1": split(-ONES)["s1"]}
    for model, words in ((apart, "a sum below -1e.12"), (narrow, "at best 1 of 1 terms without")):
        where = "federated_svi, model" if model is apart else "site 'far'"
        with pytest.raises(PosteriorError, match=f"^{where}: expected a finite.*, found {words}"):
            run(clients, model)


def test_starts_without_a_density_do_not_win_and_a_prior_without_one_counts_once():
    found = run(split(ONES), bounded).posterior
    grid = torch.linspace(1e-3, 12, 4000).double()
    logs = 20 * grid.log() - grid**2 / 18 - (LEVEL - grid[:, None]).square().sum(1) / 2
    weights = torch.softmax(logs, 0)
    mean = weights @ grid
    sd = (weights @ (grid - mean).square()).sqrt()
    assert found.status == "exact"
    assert found.constants["a.mean"] == pytest.approx(float(mean), abs=0.03 * float(sd))
    assert found.constants["a.sd"] == pytest.approx(float(sd), rel=0.03)


def test_a_maximum_at_the_edge_of_where_there_is_a_density_is_said_to_be_there():
    with pytest.warns(UndeterminedWarning, match="'no mode', at an edge beyond which the density"):
        run(split(ONES, LEVEL + 1, 1), within)


def test_a_mean_over_rows_is_refused_also_where_it_is_not_defined_at_first():
    def averaged(inputs, targets=None):
        a = normal("a", 3.0)
        pyro.factor("y", dist.Normal(a.log(), 1.0).log_prob(targets).mean())

    with pytest.raises(
        ClientError, match="site 'y': expected a log density that is the sum over rows"
    ):
        run(split(ONES), averaged)


def test_what_is_not_finite_where_a_model_is_looked_at_is_checked_where_the_search_begins():
    def factor(inputs, targets=None):
        a = normal("a", 3.0)
        pyro.factor("prior", torch.where(a > 1, a.log(), -torch.inf))
        observed(a, inputs, targets)

    with pytest.raises(
        ClientError, match="site 'prior': expected a log density that is the sum over rows"
    ):
        run(split(ONES), factor)


def test_own_values_without_a_density_are_left_out_of_integrals():
    rows = split(ONES, count=4)["s0"]
    near = torch.tensor([0.5]).double()
    with doubled():
        made = inside(traced(owned, Form.of(rows), "client"), rows, near)
        found = made.log_rows(near)
    own = torch.linspace(-2, 9, 20_001).double()[1:]
    terms = dist.Normal((own[:, None] + 2).log(), 1.0).log_prob(rows.targets).sum(1)
    logs = terms + dist.Normal(near, 1.0).log_prob(own)
    assert found == pytest.approx(float(logs.logsumexp(0) + (own[1] - own[0]).log()), abs=0.02)


def test_points_are_compared_with_the_best_where_their_centre_has_no_density():
    question = {"centre": torch.zeros(1, 1).double(), "basis": torch.ones(1, 1, 1).double()}

    def density(point):
        return torch.where(point[0].abs() < 0.1, torch.nan, -(point[0] ** 2) / 2)

    answer = asking.importance(density, question, [64], 3, 1)
    where = asking.proposed(question, [64], 3)[:, 0]
    found = answer["value"].float().double() + answer["level"].sum()
    assert torch.allclose(found[where.abs() > 0.1], -(where[where.abs() > 0.1] ** 2) / 2)
