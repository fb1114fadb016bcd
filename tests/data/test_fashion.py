"""Fashion-MNIST: the real files, and a short run of the named setting."""

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ramp
from bayesfed.models.random_fields.support_priors import neighbour_share

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def fashion():
    return bf.fashion_mnist()


def test_the_files_are_the_published_ones(fashion):
    train, test = fashion
    assert train.inputs.shape == (60_000, 28, 28)
    assert test.inputs.shape == (10_000, 28, 28)
    assert train.targets.bincount().tolist() == [6000] * 10
    assert float(train.inputs.mean()) == pytest.approx(0.286, abs=1e-3)


@pytest.mark.slow
def test_eight_rounds_prune_cluster_and_learn(fashion):
    train, test = fashion
    torch.set_num_threads(1)
    clients = bf.federate(train, bf.dirichlet(train.targets, 10, 0.5, bf.Key(0, "partition")))
    declared = bf.declare(
        bf.mlp([784, 256, 256, 10], bf.Key(0, "net")), likelihood=bf.Categorical(temperature=0.05)
    )
    algorithm = bf.d_turbo_vbi(
        declared,
        observations=len(train),
        training=bf.Training(optimiser=bf.Adam(3e-3)),
        field=ramp(-0.5, 6),
    )
    with bf.InProcess(clients, workers=2) as pool:
        result = bf.run(algorithm, pool, rounds=8, test=test, progress=False)
    assert result.final("accuracy") > 0.75
    assert result.final("density") < 0.186
    for site in ("1.weight", "3.weight"):
        mask = result.model.parameters[site] != 0
        assert neighbour_share(mask) > 1.5 * float(mask.float().mean())
