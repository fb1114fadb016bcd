"""Exports of Pyro models: sites keep the names that the model gives them."""

import pyro
import pyro.distributions as dist
import pytest
import torch

import bayesfed as bf
from bayesfed.errors import PosteriorError

INPUTS = torch.randn(24, 3, generator=bf.Key(0).generator())
ROWS = bf.Dataset(INPUTS, INPUTS[:, 0] + 0.5)
CLIENTS = bf.federate(ROWS, bf.iid(24, 2, bf.Key(0)))


def normal(name, shape=(3,)):
    return pyro.sample(name, dist.Normal(torch.zeros(shape), 2.0).to_event(len(shape)))


def two(inputs, targets=None):
    w = normal("w")
    with pyro.plate("data", len(inputs)):
        first = pyro.sample("y1", dist.Normal(inputs @ w, 0.5), obs=targets)
        # Depends on what the first one observed.
        second = None if targets is None else targets.exp()
        pyro.sample("y2", dist.LogNormal(first, 0.7), obs=second)


def event(inputs, targets=None):
    pyro.sample("y", dist.Normal(inputs @ normal("w"), 0.5).to_event(1), obs=targets)


def odd_names(inputs, targets=None):
    y, chain, w_0 = normal("y"), normal("chain", ()), normal("y_0", ())
    mean = inputs @ (y + normal("layer/w")) + chain + w_0
    pyro.deterministic("effect", y.sum())
    pyro.deterministic("mean", mean)
    with pyro.plate("data", len(inputs)):
        pyro.sample("obs", dist.Normal(mean, 0.5), obs=targets)


def exported(model, tmp_path, data=ROWS[:6]):
    algorithm = bf.federated_svi(
        model,
        fusion=bf.SummedGradients(0.05),
        example=ROWS[:2],
        training=bf.Training(steps=1, batch_size=None),
    )
    result = bf.run(algorithm, CLIENTS, rounds=1, progress=False)
    out = result.to_arviz(data, draws=3)
    out.to_netcdf(tmp_path / "posterior.nc")
    return result, out


def test_every_observed_site_is_there_by_its_name(tmp_path):
    _, out = exported(two, tmp_path)
    for group in (out.log_likelihood, out.posterior_predictive, out.observed_data):
        assert set(group.data_vars) == {"y1", "y2"}
    targets, w = ROWS.targets[:6], torch.from_numpy(out.posterior["w"].to_numpy()[0, 0])
    likely = dist.Normal(INPUTS[:6] @ w, 0.5).log_prob(targets)
    assert out.log_likelihood["y1"].to_numpy()[0, 0] == pytest.approx(likely.numpy(), abs=1e-4)
    second = dist.LogNormal(targets, 0.7).log_prob(targets.exp())
    assert out.log_likelihood["y2"].to_numpy()[0, 0] == pytest.approx(second.numpy(), abs=1e-4)
    assert out.observed_data["y2"].to_numpy() == pytest.approx(targets.exp().numpy())


def test_names_that_an_export_has_for_itself_are_kept_apart(tmp_path):
    result, out = exported(odd_names, tmp_path)
    assert set(out.posterior.data_vars) == {"y", "chain_", "y_0_", "layer.w", "effect"}
    assert set(out.log_likelihood.data_vars) == set(out.observed_data.data_vars) == {"obs"}
    effect, y = out.posterior["effect"].to_numpy(), out.posterior["y"].to_numpy()
    assert effect == pytest.approx(y.sum(-1), abs=1e-5)
    assert set(result.posterior.draw(bf.Key(0))) == {"y", "chain", "y_0", "layer/w"}


def test_a_target_of_all_rows_together_has_no_rows_to_export(tmp_path):
    words = r"to_arviz, site 'y': expected one target a row, .*try a plate over rows"
    with pytest.raises(PosteriorError, match=words):
        exported(event, tmp_path)
