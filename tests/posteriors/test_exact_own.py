"""A site's own latents in `federated_svi` of a model alone: integrated at the site, drawn there."""

from __future__ import annotations

import math

import pyro
import pyro.distributions as dist
import pytest
import torch
from torch.func import grad

import bayesfed as bf
from bayesfed.errors import ClientError
from bayesfed.inference.exact import asking
from bayesfed.inference.exact.form import Form
from bayesfed.inference.exact.own import inside
from bayesfed.inference.exact.traced import doubled, traced


def numbers(*shape, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def population(*names):
    return [pyro.sample(name, dist.Normal(torch.tensor(0.0), 2.0)) for name in names]


def counts(inputs, targets=None):
    """One own value a site."""
    centre, log_scale = population("centre", "log_scale")
    with pyro.plate("client", 1):
        own = pyro.sample("own", dist.Normal(centre, log_scale.exp()))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Poisson((own + 0.3 * inputs[:, 0]).exp()), obs=targets)


def slopes(inputs, targets=None):
    """Two own values a site, that its rows tie."""
    centre, log_scale = population("centre", "log_scale")
    with pyro.plate("client", 1):
        own = pyro.sample("own", dist.Normal(centre, log_scale.exp()))
        slope = pyro.sample("slope", dist.Normal(torch.tensor(0.5), 1.0))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Bernoulli(logits=own + slope * inputs[:, 0]), obs=targets)


def wards(inputs, targets=None):
    """As many own values as there are groups of rows."""
    centre, log_scale = population("centre", "log_scale")
    with pyro.plate("client", 3):
        own = pyro.sample("own", dist.Normal(centre, log_scale.exp()))
    with pyro.plate("rows", len(inputs)):
        place = own[..., (10 * inputs[:, 0]).long() % 3]
        pyro.sample("y", dist.Poisson(place.exp()), obs=targets)


def nested(inputs, targets=None):
    """Groups within a site that has a value of its own."""
    centre, log_scale = population("centre", "log_scale")
    with pyro.plate("client", 1):
        site = pyro.sample("site", dist.Normal(centre, log_scale.exp()))
        with pyro.plate("wards", 3):
            own = pyro.sample("own", dist.Normal(site, 0.5))
    with pyro.plate("rows", len(inputs)):
        place = own.reshape(-1)[..., (10 * inputs[:, 0]).long() % 3]
        pyro.sample("y", dist.Poisson(place.exp()), obs=targets)


def each(inputs, targets=None):
    """As many own values as there are rows, under no plate of clients."""
    centre, log_scale = population("centre", "log_scale")
    with pyro.plate("rows", len(inputs)):
        own = pyro.sample("own", dist.Normal(centre, log_scale.exp()))
        pyro.sample("y", dist.Poisson(own.exp()), obs=targets)


INPUTS = torch.tensor([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]).double()[:, None]
MANY = torch.tensor([1.0, 0.0, 4.0, 2.0, 1.0, 3.0]).double()
POINT = torch.tensor([0.4, -0.5]).double()


def opened(model, targets=MANY):
    rows = bf.Dataset(INPUTS, targets)
    made = traced(model, Form.of(rows), "client")
    made.check(rows)
    return inside(made, rows, torch.zeros(2).double())


def summed(model, targets, point, size):
    """Return the integral over a fixed grid of own values."""
    line = torch.linspace(-9, 9, 4001 if size == 1 else 361).double()
    grid = torch.cartesian_prod(*[line] * size).reshape(-1, size)
    rows = bf.Dataset(INPUTS, targets)
    made = traced(model, Form.of(rows), "client")
    logs = torch.func.vmap(lambda own: made.terms(rows, point, own).sum(), chunk_size=20_000)(grid)
    return logs.logsumexp(0) + size * math.log(float(line[1] - line[0]))


@pytest.mark.parametrize(
    ("model", "targets", "size", "close"),
    [(counts, MANY, 1, 1e-8), (slopes, (MANY > 1).double(), 2, 0.02)],
    ids=["one", "two"],
)
def test_the_integral_is_that_of_a_dense_grid_with_its_derivatives(model, targets, size, close):
    with doubled():
        density = opened(model, targets).log_rows
        for point in (POINT, torch.tensor([-3.0, 1.0]).double()):
            assert abs(density(point) - summed(model, targets, point, size)) < close
        (slope,), (curve,) = asking.derivatives(density, POINT[None], 1)
        for k, step in enumerate(1e-4 * torch.eye(2).double()):
            up, down = density(POINT + step), density(POINT - step)
            assert abs((up - down) / 2e-4 - slope[k]) < 1e-6
            above, below = grad(density)(POINT + step), grad(density)(POINT - step)
            assert torch.allclose((above - below) / 2e-4, curve[k], atol=1e-6)


def test_groups_that_no_term_ties_are_integrated_one_by_one():
    with doubled():
        sizes = {
            model: [tuple(part.places.shape) for part in opened(model, MANY.clamp_max(1)).parts]
            for model in (counts, slopes, wards, nested, each)
        }
        assert sizes == {
            counts: [(1, 1)],
            slopes: [(1, 2)],
            wards: [(3, 1)],
            nested: [(1, 4)],
            each: [(6, 1)],
        }
        # Rows of one group alone are the same as a site with one value.
        whole = opened(wards).log_rows(POINT)
        parts = [summed(lambda i, t, k=k: wards_alone(i, t, k), MANY, POINT, 1) for k in range(3)]
        assert torch.allclose(whole, torch.stack(parts).sum())


def wards_alone(inputs, targets, number):
    centre, log_scale = population("centre", "log_scale")
    with pyro.plate("client", 1):
        own = pyro.sample("own", dist.Normal(centre, log_scale.exp()))
    mine = ((10 * inputs[:, 0]).long() % 3 == number).double()
    with pyro.plate("rows", len(inputs)):
        pyro.factor("y", mine * dist.Poisson(own.exp()).log_prob(targets))


def hierarchy(inputs, targets=None):
    centre = pyro.sample("centre", dist.Normal(torch.tensor(0.0), 5.0))
    with pyro.plate("client", 1):
        own = pyro.sample("own", dist.Normal(centre, 2.0))
    with pyro.plate("rows", len(inputs)):
        return pyro.sample("y", dist.Normal(own + inputs[:, 0], 1.0), obs=targets)


def test_a_conjugate_hierarchy_is_found_and_its_own_draws_stay_at_the_sites():
    clients = {
        f"s{k}": bf.Dataset(numbers(3, 1, seed=k), numbers(3, seed=10 + k) + 2 * k)
        for k in range(2)
    }
    result = bf.run(bf.federated_svi(hierarchy), clients, progress=False)
    # Sums of each site, and the joint Gaussian of the centre and two own values.
    sums = torch.stack([(rows.targets - rows.inputs[:, 0]).sum() for rows in clients.values()])
    precision = torch.tensor(
        [[1 / 25 + 2 / 4, -1 / 4, -1 / 4], [-1 / 4, 3.25, 0], [-1 / 4, 0, 3.25]]
    )
    cov = precision.double().inverse()
    mean, sds = cov[:, 1:] @ sums, cov.diagonal().sqrt()
    posterior, memories = result.posterior, result.snapshot.memories
    assert posterior.status == "exact"
    assert posterior.stays == ("own",)
    assert posterior.values.keys() == {"centre"}
    assert abs(posterior.constants["centre.mean"] - mean[0]) < 0.02 * sds[0]
    assert abs(posterior.constants["centre.sd"] / sds[0] - 1) < 0.02
    for k, name in enumerate(clients):
        own = posterior.at_client(memories[name])
        assert abs(own.constants["own.mean"] - mean[1 + k]) < 0.05 * sds[1 + k]
        assert abs(own.constants["own.sd"] / sds[1 + k] - 1) < 0.05
        weights, drawn = own.verdict.weights, own.values
        away = [drawn["centre"] - mean[0], drawn["own"][:, 0] - mean[1 + k]]
        assert abs(weights @ (away[0] * away[1]) - cov[0, 1 + k]) < 0.1 * sds[0] * sds[1 + k]
    assert not any("own" in leaf for leaf in result.snapshot.state)
    seen = result.predictive(clients["s1"].inputs, client="s1", draws=200).mean
    assert (seen - clients["s1"].inputs[:, 0] - mean[2]).abs().max() < 0.3
    assert result.to_arviz(clients, draws=20).posterior["own"].sizes["client"] == 2


def test_own_latents_that_cannot_be_integrated_are_refused():
    def dependent(inputs, targets=None):
        hierarchy(inputs, targets)
        for ward in range(1 + int(inputs[:, 0].max() > 1.2)):
            pyro.sample(f"ward_{ward}", dist.Normal(torch.tensor(0.0), 1.0))

    clients = {"a": bf.Dataset(2 + INPUTS, MANY), "b": bf.Dataset(INPUTS, MANY)}
    with pytest.raises(ClientError, match="around own latents"):
        bf.run(bf.federated_svi(dependent), clients, progress=False)
