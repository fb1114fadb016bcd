"""Scores, predictions and exports where a part of the posterior stays with clients, and which rows
of an export were fitted.
"""

import math
import warnings
from functools import partial

import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.errors import ArgumentError, PosteriorError
from bayesfed.inference.evaluation.predictive import Predictive

NAMES = ("a", "b", "c")
OFFSETS = dict(zip(NAMES, (-4.0, 0.0, 4.0), strict=True))


def offsets(inputs, targets=None):
    slope = pyro.sample("slope", dist.Normal(0.0, 3.0))
    with pyro.plate("client", 1):
        offset = pyro.sample("offset", dist.Normal(0.0, 4.0))
    with pyro.plate("rows", len(inputs)):
        return pyro.sample("y", dist.Normal(slope * inputs[:, 0] + offset, 1.0), obs=targets)


def wards(inputs, targets=None):
    """A local latent for each row."""
    centre = pyro.sample("centre", dist.Normal(0.0, 5.0))
    with pyro.plate("client", len(inputs)):
        own = pyro.sample("own", dist.Normal(0.0, 1.0))
        return pyro.sample("y", dist.Normal(centre + own, inputs[:, 0]), obs=targets)


def rows(name, count, seed):
    drawn = torch.randn(count, 2, generator=bf.Key(seed, name).generator())
    return bf.Dataset(drawn[:, :1], 2 * drawn[:, 0] + OFFSETS[name] + drawn[:, 1])


CLIENTS = {name: rows(name, 30, 0) for name in NAMES}
TEST = {name: rows(name, 40, 1) for name in NAMES}


def fit(model, clients, rounds=6):
    example = next(iter(clients.values()))
    algorithm = bf.federated_svi(
        model,
        AutoNormal,
        fusion=bf.PVI(damping=0.5),
        scale="local",
        observations=sum(map(len, clients.values())),
        example=example[:2],
        training=bf.Training(25, batch_size=None, optimiser=bf.Adam(0.1)),
    )
    return bf.run(algorithm, clients, rounds=rounds, progress=False)


@pytest.fixture(scope="module")
def fitted():
    return fit(offsets, CLIENTS)


@pytest.mark.slow
def test_clients_are_scored_with_what_they_keep(fitted):
    scores = fitted.scores(TEST, draws=40)
    assert scores["all"]["rmse"] < 1.15
    assert max(scores[name]["rmse"] for name in NAMES) < 1.35
    mean = sum(scores[name]["rmse"] ** 2 for name in NAMES) / 3
    assert scores["all"]["rmse"] ** 2 == pytest.approx(mean, rel=1e-5)
    # What was reported before: clients as strangers, whose offsets are drawn from the prior.
    data = TEST["c"]
    stranger = Predictive(fitted.posterior, data.inputs, bf.Key(0), count=40)
    assert stranger.scores(data.targets)["rmse"] > 2
    own = fitted.personal_scores(TEST, draws=40)
    assert all(
        own.clients[name]["rmse"] == pytest.approx(scores[name]["rmse"], rel=0.05) for name in NAMES
    )
    one = fitted.predictive(TEST["c"].inputs, client="c", draws=40)
    assert one.scores(TEST["c"].targets)["rmse"] == pytest.approx(scores["c"]["rmse"], rel=0.05)


def test_where_it_cannot_be_had_it_is_refused(fitted):
    pooled = TEST["a"]
    for call in (fitted.scores, fitted.to_arviz):
        with pytest.raises(
            ArgumentError,
            match=(
                r"a data set for each client by name, since guide.locs.offset_unconstrained "
                r"stays with clients"
            ),
        ):
            call(pooled)
    with pytest.raises(ArgumentError, match="Result.predictive: expected a client, since"):
        fitted.predictive(pooled.inputs)
    with pytest.raises(ArgumentError, match="client 'new'.*what the client keeps"):
        fitted.scores({"new": pooled})


@pytest.mark.slow
def test_local_latents_are_exported_with_a_dimension_of_clients(fitted):
    from bayesfed.inspect.compat import installed

    az = installed()
    out = fitted.to_arviz(CLIENTS, draws=50)
    assert out.posterior["offset"].dims == ("chain", "draw", "client", "offset_0")
    assert out.posterior["client"].to_numpy().tolist() == list(NAMES)
    means = out.posterior["offset"].mean(("chain", "draw", "offset_0")).to_numpy()
    assert np.abs(means - np.array(list(OFFSETS.values()))).max() < 0.6
    assert out.constant_data["row_client"].to_numpy().tolist() == [
        name for name in NAMES for _ in range(30)
    ]
    assert bool((out.constant_data["row_fitted"] == 1).all())
    assert {"prior_predictive", "sample_stats"} <= set(out.groups())
    assert out.prior_predictive["y"].shape == out.log_likelihood["y"].shape == (1, 50, 90)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert az.plot_parallel(out, var_names=["slope", "offset"]) is not None
        assert float(az.loo(out, pointwise=True).pareto_k.quantile(0.9)) < 0.7
    assert "offset" in fitted.to_arviz(draws=3).posterior
    half = {**CLIENTS, "a": TEST["a"]}
    assert (
        fitted.to_arviz(half, draws=3).constant_data["row_fitted"].to_numpy().tolist()
        == [0] * 40 + [1] * 60
    )


def test_log_densities_are_those_of_the_guide_and_the_joint(fitted):
    """Against Gaussians written out: q of three offsets and a slope, and the joint density with all
    rows.
    """
    out = fitted.to_arviz(CLIENTS, draws=4)
    figures = fitted.posterior.constants
    drawn, stats = out.posterior.isel(chain=0), out.sample_stats.isel(chain=0)
    slope, offset = (
        torch.from_numpy(drawn["slope"].to_numpy()),
        torch.from_numpy(drawn["offset"].to_numpy())[..., 0],
    )
    q = dist.Normal(figures["slope.mean"], figures["slope.sd"]).log_prob(slope)
    for number, name in enumerate(NAMES):
        own = fitted.posterior.at_client(fitted.snapshot.memories[name])
        loc, scale = (own.pair.constrained(key, own.own[key]) for key in sorted(own.own))
        q = q + dist.Normal(loc, scale).log_prob(offset[:, number])
    prior = dist.Normal(0.0, 3.0).log_prob(slope) + dist.Normal(0.0, 4.0).log_prob(offset).sum(1)
    assert np.allclose(stats["log_q"], q, atol=1e-4)
    assert np.allclose(stats["log_prior"], prior, atol=1e-4)
    likely = torch.from_numpy(out.log_likelihood["y"].isel(chain=0).to_numpy()).sum(1)
    assert np.allclose(stats["lp"], prior + likely, atol=1e-3)
    assert not bool(stats["diverging"].any())


def test_a_local_latent_for_each_row_belongs_to_the_rows_that_were_fitted():
    clients = {
        name: bf.Dataset(torch.ones(count, 1), torch.full((count,), value))
        for name, count, value in (("a", 3, -5.0), ("b", 5, 5.0))
    }
    result = fit(wards, clients, rounds=2)
    out = result.to_arviz(clients, draws=3)
    assert out.posterior["own"].dims == ("chain", "draw", "row")
    with pytest.raises(
        ArgumentError,
        match=r"client 'a'.*a local latent \(3,\), found \(5,\); try the client's own rows",
    ):
        result.scores({"a": clients["b"]})
    # Without rows each client has its own variable, since shapes differ.
    assert {"own.a", "own.b"} <= set(result.to_arviz(draws=2).posterior.data_vars)


def hierarchy(inputs, targets=None):
    """The offset's mean is shared: given the rows, the two are correlated, which no product of
    Gaussians is.
    """
    centre = pyro.sample("centre", dist.Normal(torch.zeros((), dtype=torch.float64), 2.0))
    with pyro.plate("client", 1):
        own = pyro.sample("own", dist.Normal(centre, 1.0))
    with pyro.plate("rows", len(inputs)):
        return pyro.sample("y", dist.Normal(own, 1.0), obs=targets)


def apart(inputs, targets=None):
    """Inputs that add up to 0 at every client: given the rows, slope and offset are independent."""
    slope = pyro.sample("slope", dist.Normal(torch.zeros((), dtype=torch.float64), 2.0))
    with pyro.plate("client", 1):
        own = pyro.sample("own", dist.Normal(torch.zeros((), dtype=torch.float64), 1.0))
    with pyro.plate("rows", len(inputs)):
        return pyro.sample("y", dist.Normal(slope * inputs[:, 0] + own, 1.0), obs=targets)


def few(count):
    inputs = torch.tensor([-1.0, 1.0, -2.0, 2.0], dtype=torch.float64)[:count, None]
    return {
        name: bf.Dataset(inputs, torch.randn(count, generator=bf.Key(0, name).generator()).double())
        for name in NAMES
    }


def settled(model, clients, rounds):
    work = bf.Training(
        steps=40,
        batch_size=None,
        optimiser=bf.federated.NaturalGradient(0.15),
        schedule=bf.federated.cosine(0.1, rounds),
    )
    example, rows = clients["a"], sum(map(len, clients.values()))
    guide = partial(AutoNormal, init_scale=0.5)
    algorithm = bf.federated_svi(
        model, guide, fusion=bf.PVI(damping=0.5), observations=rows, example=example, training=work
    )
    return bf.run(algorithm, clients, rounds=rounds, progress=False)


@pytest.fixture(scope="module")
def normal():
    return settled(apart, few(4), 6)


@pytest.mark.slow
def test_importance_weights_of_shared_and_local_latents(normal):
    """Their mean is the evidence, that of a normal distribution of all targets."""
    clients, result = few(4), normal
    weights = result.posterior.log_weights_with_clients(
        result.snapshot.memories, clients, bf.Key(0, "weights"), draws=60
    )
    inputs = clients["a"].inputs[:, 0].repeat(3)
    same = torch.block_diag(*[torch.ones(4, 4, dtype=torch.float64)] * 3)
    covariance = 4 * inputs[:, None] * inputs + same + torch.eye(12, dtype=torch.float64)
    targets = torch.cat([rows.targets for rows in clients.values()])
    evidence = torch.distributions.MultivariateNormal(
        torch.zeros(12, dtype=torch.float64), covariance
    ).log_prob(targets)
    assert float(weights.std()) < 0.6
    assert float(weights.logsumexp(0)) - math.log(60) == pytest.approx(float(evidence), abs=0.15)


@pytest.mark.slow
def test_importance_weights_draw_the_local_latents_of_clients_apart():
    """Also where clients have the same rows and keep the same."""
    drawn = []

    def watched(inputs, targets=None):
        with pyro.poutine.trace() as seen:
            made = apart(inputs, targets)
        drawn.append(float(seen.trace.nodes["own"]["value"].detach()))
        return made

    clients = few(4)
    result = settled(watched, clients, 2)
    posterior, kept = result.posterior, result.snapshot.memories["a"]
    drawn.clear()
    posterior.log_weights_with_clients(
        dict.fromkeys(NAMES, kept),
        dict.fromkeys(NAMES, clients["a"]),
        bf.Key(0, "weights"),
        draws=3,
    )
    assert len(drawn[-12:]) == len(set(drawn[-12:])) == 12


@pytest.mark.slow
def test_an_export_draws_the_local_latents_of_clients_apart(normal):
    drawn = normal.to_arviz(few(4), draws=60).posterior["own"].to_numpy()[0, :, :, 0]
    assert drawn.shape == (60, 3)
    assert abs(np.corrcoef(drawn.T)[np.triu_indices(3, 1)]).max() < 0.5


@pytest.mark.slow
def test_k_hat_tells_of_local_latents_that_hang_on_shared_ones():
    clients = few(1)
    result = settled(hierarchy, clients, 20)
    # Targets have variance 2 given the centre: the product of Gaussians is much too sure of it.
    assert float(result.posterior.constants["centre.sd"]) < 0.85 * (3 / 2 + 1 / 4) ** -0.5
    assert result.k_hat(clients, draws=400) > 0.7
    with pytest.raises(
        ArgumentError,
        match=(
            "Result.k_hat: expected rows by client, since guide.locs.own_unconstrained stays "
            "with clients"
        ),
    ):
        result.k_hat(clients["a"])
    with pytest.raises(
        PosteriorError,
        match=r"expected rows of every client, found none of \['c'\]; try the rows of all clients",
    ):
        result.k_hat({name: clients[name] for name in "ab"})
