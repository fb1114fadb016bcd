"""The density of features: sums over clients give scikit-learn's covariance and distances, whatever the partition."""

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import bayesfed as bf
from bayesfed.algorithms.after_training.feature_density.model import features
from bayesfed.errors import ArgumentError
from bayesfed.inference.evaluation.detection import detection
from bayesfed.keys import Key


def problem():
    noise = Key(0, "density").generator()
    inputs = torch.randn(200, 5, generator=noise, dtype=torch.float64) + 3 * torch.eye(5, dtype=torch.float64)[torch.arange(200) % 3]
    data = bf.Dataset(inputs, torch.arange(200) % 3)
    net = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)).double()
    return net, data, {"a": data[:30], "b": data[30:30], "c": data[30:]}


def test_the_sums_are_those_of_scikit_learn():
    from scipy.stats import multivariate_normal

    net, data, clients = problem()
    # The fourth class has no rows.
    model = bf.run(bf.feature_density(net, shrinkage=0.0), clients, rounds=1, progress=False).model
    own = features(net, {}, data.inputs).numpy()
    theirs = LinearDiscriminantAnalysis(solver="lsqr", store_covariance=True).fit(own, data.targets.numpy())
    assert np.allclose(model.means[:3], theirs.means_)
    assert np.allclose(model.covariance, theirs.covariance_)
    others = features(net, {}, data.inputs + 1).numpy()
    apart = others[:, None] - theirs.means_
    distances = np.einsum("bcd,de,bce->bc", apart, np.linalg.inv(theirs.covariance_), apart)
    assert np.allclose(model.distance(data.inputs + 1), distances.min(1))
    density = sum(
        share * multivariate_normal(mean, theirs.covariance_).pdf(others) for share, mean in zip(theirs.priors_, theirs.means_, strict=True)
    )
    assert np.allclose(model.log_density(data.inputs + 1), np.log(density))
    assert torch.equal(model(data.inputs), net(data.inputs))
    assert detection(model.distance(data.inputs), model.distance(10 * data.inputs))["auroc"] > 0.7


def test_what_cannot_be_inverted_is_told():
    net, data, _ = problem()
    with pytest.raises(ArgumentError, match="can be inverted"):
        bf.run(bf.feature_density(net, shrinkage=0.0), {"a": data[:2]}, rounds=1, progress=False).model.distance(data.inputs)
    for wrong, what in (
        (lambda: bf.feature_density(torch.nn.Conv2d(1, 1, 3)), "a linear layer"),
        (lambda: bf.feature_density(net, shrinkage=2), "share"),
    ):
        with pytest.raises(ArgumentError, match=what):
            wrong()
