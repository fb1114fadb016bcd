"""The density of features: sums over clients give scikit-learn's covariance and distances, whatever
the partition.
"""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import bayesfed as bf
from bayesfed.algorithms.after_training.feature_density.model import features
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated.core.algorithm import Model
from bayesfed.inference.evaluation.detection import detection
from bayesfed.keys import Key


def problem():
    noise = Key(0, "density").generator()
    inputs = (
        torch.randn(200, 5, generator=noise, dtype=torch.float64)
        + 3 * torch.eye(5, dtype=torch.float64)[torch.arange(200) % 3]
    )
    data = bf.Dataset(inputs, torch.arange(200) % 3)
    net = torch.nn.Sequential(
        torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)
    ).double()
    return net, data, {"a": data[:30], "b": data[30:30], "c": data[30:]}


def test_the_sums_are_those_of_scikit_learn():
    from scipy.stats import multivariate_normal

    net, data, clients = problem()
    # The fourth class has no rows.
    model = bf.run(bf.feature_density(net, shrinkage=0.0), clients, rounds=1, progress=False).model
    own = features(net, {}, data.inputs).numpy()
    theirs = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(
        own, data.targets.numpy()
    )
    assert np.allclose(model.means[:3], theirs.means_)
    assert np.allclose(model.covariance, theirs.covariance_)
    others = features(net, {}, data.inputs + 1).numpy()
    apart = others[:, None] - theirs.means_
    distances = np.einsum("bcd,de,bce->bc", apart, np.linalg.inv(theirs.covariance_), apart)
    assert np.allclose(model.distance(data.inputs + 1), distances.min(1))
    density = sum(
        share * multivariate_normal(mean, theirs.covariance_).pdf(others)
        for share, mean in zip(theirs.priors_, theirs.means_, strict=True)
    )
    assert np.allclose(model.log_density(data.inputs + 1), np.log(density))
    assert torch.equal(model(data.inputs), net(data.inputs))
    assert detection(model.distance(data.inputs), model.distance(10 * data.inputs))["auroc"] > 0.7


def test_features_far_from_zero_keep_their_covariance():
    """Sums of 32 bits would leave none of it."""
    net, data, clients = problem()
    net = torch.nn.Sequential(net[0], net[1], Shift(), net[2]).float()
    clients = {
        name: bf.Dataset(part.inputs.float(), part.targets) for name, part in clients.items()
    }
    model = bf.run(bf.feature_density(net, shrinkage=0.0), clients, rounds=1, progress=False).model
    assert all(leaf.dtype == torch.float32 for leaf in model.parameters.values())
    inputs = data.inputs.float()
    own = features(net, {}, inputs).double()
    theirs = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(
        own.numpy(), data.targets.numpy()
    )
    assert np.allclose(model.covariance, theirs.covariance_, rtol=1e-6)
    apart = own.numpy()[:, None] - theirs.means_
    distances = np.einsum("bcd,de,bce->bc", apart, np.linalg.inv(theirs.covariance_), apart).min(1)
    assert np.allclose(model.distance(inputs), distances, rtol=1e-5)


class Shift(torch.nn.Module):
    def forward(self, inputs):
        return inputs + 3000


class Odd(torch.nn.Module):
    """Registers its output layer first."""

    def __init__(self):
        super().__init__()
        self.out, self.body = torch.nn.Linear(4, 4), torch.nn.Linear(5, 4)

    def forward(self, inputs):
        return self.out(self.body(inputs)).log_softmax(1)


def test_a_layer_that_is_not_the_last_is_refused():
    _, _, clients = problem()
    with pytest.raises(
        ClientError,
        match=(
            "feature_density: expected the layer registered last, 'body', to be used last, "
            "found 'out'"
        ),
    ):
        bf.run(bf.feature_density(Odd().double()), clients, rounds=1, progress=False)


def test_what_cannot_be_inverted_is_told():
    net, data, _ = problem()
    with pytest.raises(ArgumentError, match="can be inverted"):
        bf.run(
            bf.feature_density(net, shrinkage=0.0), {"a": data[:2]}, rounds=1, progress=False
        ).model.distance(data.inputs)
    for wrong, what in (
        (lambda: bf.feature_density(torch.nn.Conv2d(1, 1, 3)), "a linear layer"),
        (lambda: bf.feature_density(net, shrinkage=2), r"a number in \[0, 1\]"),
        (lambda: bf.feature_density(net, shrinkage="a"), "a number in .*, found 'a'"),
        (
            lambda: bf.feature_density(
                torch.nn.Sequential(torch.nn.BatchNorm1d(5, track_running_stats=False), net)
            ),
            "batch_statistics",
        ),
        (
            lambda: bf.feature_density(net, {"0.wieght": torch.zeros(4, 5)}),
            "found '0.wieght'; try 0.weight",
        ),
        (lambda: bf.feature_density(Model(net, {"0.weight": torch.zeros(5, 4)})), "shape"),
    ):
        with pytest.raises(ArgumentError, match=what):
            wrong()
