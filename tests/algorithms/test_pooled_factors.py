"""Pooling by factors of a layer, with covariates and without."""

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.personal.bayes.objective import sds
from bayesfed.algorithms.personal.pooled.covariates import (
    LENGTH,
    MORE,
    principal,
    sketched,
    summary,
)
from bayesfed.compress.codecs import Cast
from bayesfed.errors import DataError
from bayesfed.keys import Key
from tests.algorithms.test_pooled import NOISE, design, fit, flat, hierarchy, line


def test_posteriors_of_factors_are_those_of_a_linear_model_with_known_loadings():
    data, _ = hierarchy(3, 6)
    work = bf.Training(steps=100, batch_size=None, optimiser=bf.Sgd(0.1))
    algorithm = bf.pooled(
        line(),
        local="factors",
        initial_sd=0.8,
        shared="fixed",
        likelihood=bf.Normal(NOISE),
        training=work,
        codec=Cast(64),
    )
    result = fit(algorithm, data)
    state = result.snapshot.state
    assert not state["mean/factors"].any()
    assert sds(state)["factors"].allclose(torch.tensor(0.8, dtype=torch.float64))
    fixed = torch.cat([state["model/weight"][0], state["model/bias"]])
    loadings = torch.cat([state["model/weight_loadings"][:, 0], state["model/bias_loadings"]], 1)
    for name, part in data.items():
        x = design(part)
        along = x @ loadings.mT
        covariance = (along.mT @ along / NOISE**2 + torch.eye(2) / 0.8**2).inverse()
        own = result.clients[name].posterior
        assert torch.allclose(own.root @ own.root.mT, covariance, atol=1e-6)
        mean = covariance @ along.mT @ (part.targets[:, 0] - x @ fixed) / NOISE**2
        assert torch.allclose(flat(own.mean), mean, atol=1e-4)
        assert torch.allclose(
            result.clients[name].model(part.inputs)[:, 0], x @ fixed + along @ mean, atol=1e-3
        )


@pytest.mark.slow
def test_covariates_are_the_principal_components_of_mean_inputs_and_centres_of_the_posteriors():
    data, _ = hierarchy(7, 6)
    means = torch.stack([part.inputs.mean(0) for part in data.values()])
    centred = means - means.mean(0)
    # The slow twin: a singular value decomposition of the clients' mean inputs.
    _, values, axes = torch.linalg.svd(centred, full_matrices=False)
    scores = centred @ axes.mT / values * 7**0.5
    data["client-empty"] = data["client-000"][:0]
    work = bf.Training(steps=100, batch_size=None, optimiser=bf.Sgd(0.1))
    options = {
        "local": "factors",
        "covariates": "inputs",
        "shared": "fixed",
        "likelihood": bf.Normal(NOISE),
        "training": work,
    }
    result = fit(bf.pooled(line(), initial_sd=0.8, codec=Cast(64), **options), data, rounds=2)
    found = torch.stack([result.model.expected(part.inputs) for part in data.values()])
    assert torch.allclose(found[:7].abs(), scores.abs(), atol=1e-8)
    assert torch.allclose(
        found[:7].mT @ found[:7] / 7, torch.eye(2, dtype=torch.float64), atol=1e-8
    )
    assert not found[7].any()
    state = result.snapshot.state
    fixed = torch.cat([state["model/weight"][0], state["model/bias"]])
    loadings = torch.cat([state["model/weight_loadings"][:, 0], state["model/bias_loadings"]], 1)
    for (name, part), centre in zip(list(data.items())[:7], found, strict=False):
        x = design(part)
        along = x @ loadings.mT
        covariance = (along.mT @ along / NOISE**2 + torch.eye(2) / 0.8**2).inverse()
        own = result.clients[name].posterior
        assert torch.allclose(own.root @ own.root.mT, covariance, atol=1e-6)
        mean = (
            centre
            + covariance @ along.mT @ (part.targets[:, 0] - x @ fixed - along @ centre) / NOISE**2
        )
        assert torch.allclose(flat(own.mean), mean, atol=1e-4)
        assert torch.allclose(
            result.model.adapted(part.inputs)(part.inputs)[:, 0], x @ fixed + along @ centre
        )
    inputs = data["client-000"].inputs
    plain = result.model(inputs)[:, 0]
    assert torch.allclose(plain, design(data["client-000"]) @ fixed)
    assert torch.equal(result.model.adapted(inputs[:0])(inputs)[:, 0], plain)
    unseen = result.clients["client-empty"]
    assert torch.equal(unseen.model(inputs)[:, 0], plain)
    assert torch.allclose(
        unseen.posterior.root, torch.full((2,), (1 + 0.8**2) ** 0.5, dtype=torch.float64)
    )


def test_summaries_of_long_inputs_keep_the_distances_between_clients():
    noise = Key(0, "summary").generator()
    long = torch.randn(5, 3, 20, 20, generator=noise)
    seen = torch.stack([summary(part) for part in long])
    exact = torch.cdist(long.mean(1).flatten(1).double(), long.mean(1).flatten(1).double())
    ratios = (torch.cdist(seen, seen) / exact)[exact > 0]
    assert seen.shape == (5, LENGTH)
    assert ratios.min() > 0.7
    assert ratios.max() < 1.3
    short = torch.randn(3, 4, generator=noise)
    assert torch.equal(
        summary(short),
        torch.cat([short.double().mean(0), torch.zeros(LENGTH - 4, dtype=torch.float64)]),
    )
    with pytest.raises(DataError, match=r"covariates='inputs'.*inputs of floats"):
        summary(torch.ones(3, 4, dtype=torch.int64))


def test_directions_are_leading_eigenvectors_and_turn_little():
    noise = Key(0, "directions").generator()
    spreads = torch.cat([torch.tensor([3.0, 2.0]), torch.full((LENGTH - 2,), 0.1)]).double()
    axes, _ = torch.linalg.qr(torch.randn(LENGTH, LENGTH, generator=noise, dtype=torch.float64))
    seen = torch.randn(200, LENGTH, generator=noise, dtype=torch.float64) * spreads @ axes.mT + 1
    centre, none = seen.mean(0), torch.zeros(LENGTH, 2, dtype=torch.float64)
    sketch = torch.stack([sketched(one, 2 + MORE) for one in seen]).mean(0)
    values, vectors = torch.linalg.eigh((seen - centre).mT @ (seen - centre) / 200)
    exact = (vectors[:, -2:] / values[-2:].sqrt()).flip(1)
    directions = principal(centre, sketch, none)
    assert torch.allclose((exact.mT @ directions).abs(), exact.mT @ exact, atol=0.01)
    # Another beginning: the same plane, turned to it.
    turned = directions @ torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    assert torch.allclose(principal(centre, sketch, turned), turned)
    # Clients that differ along one axis only, and clients that do not differ.
    alone = torch.stack(
        [sketched(one, 2 + MORE) for one in (centre + axes[:, 0], centre - axes[:, 0])]
    ).mean(0)
    directions = principal(centre, alone, none)
    assert torch.allclose(
        (directions[:, 0] @ axes[:, 0]).abs(), torch.ones((), dtype=torch.float64)
    )
    assert not directions[:, 1].any()
    assert not principal(centre, sketched(centre, 2 + MORE), none).any()


@pytest.mark.slow
def test_inputs_tell_the_factors_of_a_client_that_was_never_seen():
    noise, data = Key(0, "told").generator(), {}
    for number in range(50):
        shift = torch.randn(2, generator=noise)
        inputs = shift + torch.randn(12, 2, generator=noise)
        data[f"client-{number:02}"] = bf.Dataset(
            inputs, inputs @ (1 + 0.8 * shift[:, None]) + 0.1 * torch.randn(12, 1, generator=noise)
        )
    seen, new = dict(list(data.items())[:30]), list(data.values())[30:]
    work = bf.Training(steps=1, batch_size=None, optimiser=bf.Sgd(0.05))
    errors = []
    for algorithm in (
        bf.fed_avg(nn.Linear(2, 1), likelihood=bf.Normal(1.0), training=work),
        bf.pooled(
            nn.Linear(2, 1),
            local="factors",
            covariates="inputs",
            likelihood=bf.Normal(1.0),
            training=work,
        ),
    ):
        model = fit(algorithm, seen, rounds=60).model
        halves = [
            (model.adapted(part.inputs[:6]) if algorithm.name == "pooled" else model, part[6:])
            for part in new
        ]
        errors.append(
            torch.stack(
                [(made(part.inputs) - part.targets).square().mean() for made, part in halves]
            ).mean()
        )
    assert errors[1] < 0.2 * errors[0]
