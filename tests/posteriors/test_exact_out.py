"""What comes out of the exact posterior: ArviZ's groups, sites compared, intervals, and the verdict
on a guide that was fitted otherwise.
"""

from __future__ import annotations

import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import bayesfed as bf
from bayesfed.errors import ArgumentError, DataError, PosteriorError, UndeterminedWarning
from bayesfed.federated import NaturalGradient, inverse
from bayesfed.inspect.compat import installed
from tests.posteriors.test_exact_runs import exact, rows, run, sites

INPUTS, TARGETS = rows()
WARD = torch.arange(60).double() % 3
WARDS = torch.cat([INPUTS, WARD[:, None]], 1)
CLIENTS = sites(WARDS, TARGETS)


def by_ward(inputs, targets=None):
    mu = pyro.sample("mu", dist.Normal(0.0, 3.0))
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 5.0).to_event(1))
    with pyro.plate("ward", 3):
        away = pyro.sample("away", dist.Normal(0.0, 0.5))
        level = pyro.deterministic("level", mu + away)
    mean = pyro.deterministic("mean", level[inputs[:, 2].long()] + inputs[:, :2] @ beta)
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(mean, 1.0), obs=targets)


@pytest.fixture(scope="module")
def wards():
    return run(CLIENTS, by_ward)


@pytest.fixture(scope="module")
def found():
    return run(sites(INPUTS, TARGETS))


def arrays(group):
    return {name: torch.as_tensor(leaf.values[0]).double() for name, leaf in group.items()}


def test_plates_derived_sites_and_densities_by_site_are_exported(wards):
    data = wards.to_arviz(draws=40)
    drawn, prior = arrays(data.posterior), arrays(data.prior)
    assert drawn.keys() == prior.keys() == {"mu", "beta", "away", "level"}
    for name in ("away", "level"):
        assert data.posterior[name].dims == ("chain", "draw", "ward")
    assert data.constant_data["away.mean"].dims == ("ward",)
    for one in (drawn, prior):
        assert torch.allclose(one["level"], one["mu"][:, None] + one["away"])
    known = arrays(data.log_prior)
    assert known.keys() == {"mu", "beta", "away"}
    assert torch.allclose(known["mu"], dist.Normal(0.0, 3.0).log_prob(drawn["mu"]).double())
    total = torch.as_tensor(data.sample_stats["log_prior"].values[0])
    assert torch.allclose(sum(known.values()), total.double(), atol=1e-4)
    likely = data.log_likelihood["rows"]
    assert (likely.dims[2], [*likely["client"].values]) == ("client", ["s0", "s1", "s2"])
    mean = drawn["level"][:, WARD.long()] + drawn["beta"] @ INPUTS.T
    by_row = dist.Normal(mean, 1.0).log_prob(TARGETS)
    sums = torch.stack([by_row[:, k::3].sum(1) for k in range(3)], 1)
    assert torch.allclose(torch.as_tensor(likely.values[0]).double(), sums, atol=1e-3)
    given = wards.to_arviz(bf.Dataset(WARDS, TARGETS), draws=40)
    assert given.log_likelihood["y"].dims == ("chain", "draw", "row")
    assert torch.allclose(arrays(given.log_likelihood)["y"], by_row, atol=1e-4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("guide", [AutoNormal, AutoMultivariateNormal])
def test_plates_are_dimensions_of_a_guides_sites_too(guide):
    clients = {name: bf.Dataset(r.inputs.float(), r.targets.float()) for name, r in CLIENTS.items()}
    algorithm = bf.federated_svi(by_ward, guide, example=clients["s0"][:2])
    data = bf.run(algorithm, clients, rounds=1, progress=False).to_arviz(draws=2)
    for name in ("away", "level"):
        assert data.posterior[name].dims == ("chain", "draw", "ward")
    assert data.posterior["beta"].dims == ("chain", "draw", "beta_0")
    if guide is AutoNormal:
        assert data.constant_data["away.sd"].dims == ("ward",)


@pytest.mark.slow
def test_an_axis_of_arviz_is_not_a_plate_and_factors_have_no_predictions():
    def row(inputs, targets=None):
        with pyro.plate("row", 2):
            beta = pyro.sample("beta", dist.Normal(0.0, 5.0))
        pyro.factor("y", dist.Normal(inputs @ beta, 1.0).log_prob(targets).sum())

    result = run(sites(INPUTS, TARGETS), row)
    assert result.to_arviz().posterior.sizes["draw"] == 1000
    data = result.to_arviz(bf.Dataset(INPUTS, TARGETS), draws=3)
    assert data.posterior["beta"].dims == ("chain", "draw", "beta_0")
    assert data.log_likelihood["rows"].dims == ("chain", "draw", "client")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("given", [False, True], ids=["by site", "by row"])
def test_arviz_has_loo_comparison_and_sensitivity(wards, given):
    az = installed()
    rows = bf.Dataset(WARDS, TARGETS) if given else None
    data = wards.to_arviz(rows, draws=200)
    loo = az.loo(data)
    assert loo.n_data_points == (60 if given else 3)
    assert [*az.compare({"one": data, "other": data})["rank"]] == [0, 1]
    for part in ("prior", "likelihood"):
        assert 0 <= float(az.psens(data, component=part)["mu"]) < 1
    elpd = sum(one["elpd"] for one in wards.posterior.by_site(wards.snapshot.memories).values())
    assert given or abs(loo.elpd_loo - elpd) < 2


def test_sites_are_compared_as_by_fits_without_them(found):
    posterior, clients = found.posterior, sites(INPUTS, TARGETS)
    table = posterior.by_site(found.snapshot.memories)
    mean, sds, evidence = exact(INPUTS, TARGETS)
    for k, one in enumerate(table.values()):
        others = torch.arange(60) % 3 != k
        there, _, without = exact(INPUTS[others], TARGETS[others])
        assert abs(one["elpd"] - (evidence - without)) < 4 * one["error"] + 0.01
        assert one["shift"] == pytest.approx(float(((there - mean).abs() / sds).max()), abs=0.05)
        assert (one["k_hat"] < 0.7, one["ess"] > 400) == (True, True)
    fitted = run({name: clients[name] for name in ("s1", "s2")}).posterior
    taken = posterior.without_each(found.snapshot.memories)["without s0"]
    for name in ("beta.mean", "beta.sd"):
        assert torch.allclose(taken.constants[name], fitted.constants[name], atol=0.01)
    assert taken.log_evidence[0] == pytest.approx(fitted.log_evidence[0], abs=0.05)


def test_log_likelihoods_at_other_points_are_not_taken(found):
    memory = found.snapshot.memories["s0"]
    old = {name: leaf + 1 if "/at/" in name else leaf for name, leaf in memory.items()}
    assert not found.posterior.kept({"s0": old})
    with pytest.raises(PosteriorError, match="what a site keeps"):
        found.posterior.without(old)
    likely = found.posterior.log_likelihoods(bf.Key(0), {"s1": found.snapshot.memories["s1"]})
    assert likely == {}


def test_names_and_rows_that_are_not_there_are_refused(found):
    posterior, memories = found.posterior, found.snapshot.memories
    draw, key = posterior.draw(bf.Key(0)), bf.Key(0)
    for wrong in ("s0", None, memories):
        with pytest.raises(ArgumentError, match=r"memory: expected .*memories\['name'\]"):
            posterior.without(wrong)
        with pytest.raises(ArgumentError, match="memory: expected what a site keeps"):
            posterior.at_client(wrong)
    for wrong in ("s0", None, memories["s0"]):
        for ask in (posterior.kept, posterior.by_site, posterior.without_each):
            with pytest.raises(ArgumentError, match="memories: expected what sites keep"):
                ask(wrong)
    assert posterior.kept(memories, "own/none") == {}
    tables = posterior.constants, posterior.parameters, posterior.axes
    for table, name, near in (
        *((table, "beta.maen", "beta.mean") for table in tables),
        (posterior.by_site(memories), "s7", "s0"),
    ):
        with pytest.raises(KeyError, match=f"found '{name}'; try '{near}'"):
            table[name]
        assert table.get(name) is None
    # Plain, as `vmap` wants them.
    assert type(posterior.values) is type(draw) is dict
    for inputs in (INPUTS[:, :1], INPUTS[:0]):
        with pytest.raises(DataError, match="inputs that the model takes, .*at least one"):
            posterior.observe(draw, inputs, key)
    for ask in (posterior.draw, posterior.draw_prior, posterior.draw_with_densities):
        with pytest.raises(ArgumentError, match="key: expected a Key"):
            ask(0)
    with pytest.warns(UndeterminedWarning):
        short = run(sites(INPUTS, TARGETS), rounds=2).posterior
    with pytest.raises(ArgumentError, match="a run that is finished"):
        short.constants["beta.mean"]
    with pytest.raises(PosteriorError, match="what a site keeps"):
        short.without(memories["s0"])


def test_health_has_evidence_and_what_the_method_says(found, wards):
    health = found.health
    assert (health.log_evidence, health.log_evidence_error) == found.posterior.log_evidence
    assert "log evidence" in repr(found)
    with pytest.warns(UndeterminedWarning):
        short = run(CLIENTS, by_ward, rounds=2)
    assert "it ended in the stage 'mode'" in repr(short)


def test_intervals_of_all_and_without_each_site_are_drawn(found):
    every = {"all": found.posterior, **found.posterior.without_each(found.snapshot.memories)}
    axes = bf.inspect.plot_intervals(every, draws=300)
    labels = [label.get_text() for label in axes.get_yticklabels()]
    mean, sds, _ = exact(INPUTS, TARGETS)
    assert [label.split()[0] for label in labels] == ["beta[0]", "beta[1]"]
    assert float(labels[0].split()[1]) == pytest.approx(float(mean[0]), abs=0.3 * float(sds[0]))
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == ["all", *(f"without s{number}: uneven weights" for number in range(3))]
    with pytest.raises(ArgumentError, match="at least one posterior"):
        bf.inspect.plot_intervals({})
    other = run(sites(INPUTS, TARGETS), one_value).posterior
    with pytest.raises(ArgumentError, match="1 to 60 shared values"):
        bf.inspect.plot_intervals({"one": found.posterior, "other": other}, draws=100)


def one_value(inputs, targets=None):
    a = pyro.sample("a", dist.Normal(0.0, 1.0))
    pyro.factor("y", dist.Normal(a, 1.0).log_prob(targets).sum())


def fitted(rounds):
    """Fit independent Gaussians to a line, whose inputs are about independent."""
    work = bf.Training(
        steps=8, batch_size=None, optimiser=NaturalGradient(0.3), schedule=inverse(10)
    )
    algorithm = bf.federated_svi(line32, AutoNormal, example=SMALL["s0"][:2], training=work)
    with pytest.warns():
        return bf.run(algorithm, SMALL, rounds=rounds, progress=False)


SMALL = sites(INPUTS.float(), TARGETS.float())


def line32(inputs, targets=None):
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 10.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(inputs @ beta, 1.0), obs=targets)


@pytest.mark.slow
def test_one_round_says_how_far_a_fitted_guide_can_be_trusted():
    *_, evidence = exact(INPUTS, TARGETS)
    good = bf.run(bf.federated_svi(line32, fitted(12).posterior), SMALL, progress=False)
    assert (len(good.history), good.posterior.status) == (2, "exact")
    estimate, error = good.posterior.log_evidence
    assert abs(estimate - evidence) < 4 * error + 0.01
    assert [*good.posterior.by_site(good.snapshot.memories)] == ["s0", "s1", "s2"]
    early = fitted(1).posterior
    with pytest.warns(UndeterminedWarning, match=r"'gaussian'.*sds off"):
        bad = bf.run(bf.federated_svi(line32, early), SMALL, progress=False)
    assert bad.posterior.k_hat > 0.7
    drawn = torch.stack([bad.posterior.draw(bf.Key(n))["beta"] for n in range(300)]).mean(0)
    assert torch.allclose(drawn, early.constants["beta.mean"], atol=0.1)
    with pytest.raises(ArgumentError, match="a guide to fit"):
        bf.federated_svi(line32, early, fusion=bf.SummedGradients(0.1), example=SMALL["s0"])
    with pytest.raises(PosteriorError, match="all sites"):
        bf.federated_svi(one_value, early)
