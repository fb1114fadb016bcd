"""One round of fusion: by products of Laplace approximations, by Fisher information."""

import torch

import bayesfed as bf
from tests.algorithms.test_pooled import NOISE, design, fit, flat, hierarchy, line
from tests.conftest import tree_equal
from tests.support import recipes


def test_one_round_is_the_ridge_regression_of_all_rows():
    data, _ = hierarchy(3, 7)
    data["client-empty"] = data["client-000"][:0]
    x = torch.cat([design(part) for part in data.values()])
    y = torch.cat([part.targets[:, 0] for part in data.values()])
    precision = x.mT @ x / NOISE**2 + 2.0 * torch.eye(3)
    result = fit(
        bf.one_round(
            line(), prior_precision=2.0, likelihood=bf.Normal(NOISE), training=bf.Training(steps=2)
        ),
        data,
    )
    assert torch.allclose(
        flat(result.model.parameters), torch.linalg.solve(precision, x.mT @ y / NOISE**2), atol=1e-9
    )
    sd = torch.cat(
        [result.posterior.constants[f"{name}.sd"].flatten() for name in ("weight", "bias")]
    )
    assert torch.allclose(sd, precision.inverse().diagonal().sqrt(), atol=1e-9)


def test_fisher_weighs_every_entry_and_equal_weights_are_the_average():
    data, net, work = recipes.rows(), recipes.net(), bf.Training(steps=3, batch_size=8)
    average = fit(bf.one_round(net, fusion="average", training=work), data).snapshot.state
    assert tree_equal(average, fit(bf.fed_avg(net, training=work), data).snapshot.state)
    flattened = fit(
        bf.one_round(net, fusion="fisher", floor=1e9, training=work), data
    ).snapshot.state
    assert all(torch.allclose(leaf, average[name], atol=1e-6) for name, leaf in flattened.items())
    alone = {
        name: fit(bf.one_round(net, fusion="average", training=work), {name: part})
        for name, part in data.items()
    }
    fused = fit(bf.one_round(net, fusion="fisher", training=work), data).snapshot.state
    stacked = torch.stack([one.snapshot.state["model/5.bias"] for one in alone.values()])
    p = [one.model(data[name].inputs).softmax(1) for name, one in alone.items()]
    weights = torch.stack([(one * (1 - one)).sum(0) for one in p]) + 1e-3
    assert torch.allclose(
        fused["model/5.bias"], (weights * stacked).sum(0) / weights.sum(0), atol=1e-5
    )
