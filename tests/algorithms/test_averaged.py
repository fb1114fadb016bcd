"""The mean of the server's last models: it is their mean, and nothing else of a run changes."""

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError
from tests.conftest import tree_equal
from tests.support import recipes

WORK = bf.Training(steps=2, batch_size=8, optimiser=bf.Sgd(0.2))


def adapters():
    return bf.fs_lora(
        bf.lora(recipes.net(), 4, bf.Key(0, "lora")),
        [4, 2],
        bf.fixed(sorted(recipes.rows()), 2),
        training=WORK,
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: bf.fed_avg(recipes.net(), training=WORK),
        lambda: bf.server_optimised(adapters(), bf.FedAvgM(1.0, 0.5)),
    ],
    ids=["net", "adapters"],
)
def test_it_is_the_mean_of_the_last_models_and_changes_nothing_else(make):
    models = []
    plain = bf.run(
        make(),
        recipes.rows(),
        rounds=5,
        progress=False,
        callbacks=[lambda report: models.append(dict(report.model.parameters))],
    )
    mean = bf.run(bf.averaged(make(), begin=2), recipes.rows(), rounds=5, progress=False)
    assert tree_equal(
        {name: mean.snapshot.state[name] for name in plain.snapshot.state}, plain.snapshot.state
    )
    assert mean.bits() == plain.bits()
    assert mean.final("averaged_models") == 3
    for name, value in mean.model.parameters.items():
        torch.testing.assert_close(
            value, torch.stack([model[name] for model in models[2:]]).mean(0)
        )
    assert any(
        not torch.equal(value, plain.model.parameters[name])
        for name, value in mean.model.parameters.items()
    )
    early = bf.run(bf.averaged(make(), begin=4), recipes.rows(), rounds=5, progress=False)
    assert tree_equal(early.model.parameters, plain.model.parameters)
    before = bf.run(bf.averaged(make(), begin=9), recipes.rows(), rounds=5, progress=False)
    assert tree_equal(before.model.parameters, plain.model.parameters)
    assert before.algorithm.sizes.keys() == plain.algorithm.sizes.keys()


def test_what_has_no_mean_is_refused():
    net = recipes.net()
    for wrong, words in (
        (lambda: bf.averaged(bf.fed_avg(net), begin=-1), "begin: expected a whole number >= 0"),
        (lambda: bf.averaged(bf.swag(bf.fed_avg(net), begin=0), begin=1), "point estimates"),
        (lambda: bf.averaged(bf.fed_per(net), begin=1), "point estimates"),
        (lambda: bf.averaged("fed_avg", begin=1), "algorithm"),
        (lambda: bf.averaged(bf.fed_avg(net), start=1), "begin"),
    ):
        with pytest.raises(ArgumentError, match=words):
            wrong()
