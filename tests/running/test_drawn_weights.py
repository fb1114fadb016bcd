"""Layers that draw their own weights, trained by the likelihood alone, are told."""

import warnings

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.models.live import drawing_weights
from bayesfed.trees import parameters
from tests.support import recipes

WORK = bf.Training(steps=1, batch_size=8)


class Drawn(nn.Module):
    """A linear layer whose weight is drawn at every call, under names that say nothing."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.p = nn.Parameter(0.1 * torch.ones(outputs, inputs))
        self.q = nn.Parameter(-3.0 * torch.ones(outputs, inputs))

    def forward(self, x):
        return x @ (self.p + self.q.exp() * torch.randn_like(self.p)).mT


class Noisy(nn.Module):
    """Noise on what passes, in both modes, with no weight of its own that is drawn."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x + self.scale * torch.randn_like(x)


def net(*layers):
    return nn.Sequential(nn.Linear(recipes.FEATURES, 4), *layers, nn.Linear(4, 3))


def said(algorithm, clients=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bf.run(algorithm, clients or recipes.rows(), rounds=1, progress=False)
    return [warning for warning in caught if "draw their own weights" in str(warning.message)]


def test_a_layer_that_draws_its_weights_is_told_by_name():
    (warning,) = said(bf.fed_avg(net(Drawn(4, 4)), training=WORK))
    assert "fed_avg: the layers '1' draw their own weights" in str(warning.message)
    assert "parameters 'p' and 'q'" in str(warning.message)
    assert warning.filename == __file__


@pytest.mark.parametrize(
    "make",
    [bf.fed_prox, bf.scaffold, bf.fed_per, bf.stc, bf.qsgd],
    ids=lambda recipe: recipe.__name__,
)
def test_every_method_that_trains_by_the_likelihood_tells(make):
    options = {"strength": 0.1} if make is bf.fed_prox else {}
    assert len(said(make(net(Drawn(4, 4)), training=WORK, **options))) == 1


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.5), nn.BatchNorm1d(4), nn.LayerNorm(4), Noisy(), nn.LSTM(4, 4)],
    ids=lambda layer: type(layer).__name__,
)
def test_other_layers_are_not_told(layer):
    within = nn.Sequential(nn.Linear(recipes.FEATURES, 4), layer)
    rows = torch.randn(2, recipes.FEATURES)
    assert not drawing_weights(within, parameters(within), rows)


def test_a_network_is_as_it_was_and_its_generators_too():
    algorithm = bf.fed_avg(net(Drawn(4, 4), nn.Dropout(0.5)), training=WORK)
    before = torch.get_rng_state()
    said(algorithm)
    assert torch.equal(before, torch.get_rng_state())
    assert algorithm.phases[0].local.objective.net.training


def test_torchbnn_is_found():
    torchbnn = pytest.importorskip("torchbnn")
    layer = torchbnn.BayesLinear(prior_mu=0, prior_sigma=0.1, in_features=4, out_features=4)
    (warning,) = said(bf.fed_avg(net(layer), training=WORK))
    assert "'weight_mu' and 'weight_log_sigma'" in str(warning.message)
