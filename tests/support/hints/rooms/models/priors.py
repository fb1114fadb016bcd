"""Messages of `bayesfed.models.priors`."""

import pyro.distributions as dist
import torch
from pyro import poutine
from torch import nn

import bayesfed as bf
from bayesfed.models.priors.precisions import BernoulliGamma
from bayesfed.models.priors.tempering import tempered
from bayesfed.models.priors.weights import ProductGaussian, SpikeAndSlab
from tests.d_turbo_vbi.test_any_network import Counting
from tests.house.wrong_calls.given import DATA, net

COMPLETE = ("bayesfed/models/priors",)
OUT, LABELS = torch.tensor([[0.0, 1.0, 3.0]] * 4), torch.tensor([0, 1, 2, 0])
targets, NUMBERS = LABELS.float(), torch.zeros(4, 1)
classes, numbers = bf.Categorical().check, bf.Normal().check


def nothing(name, module):
    """Select no parameter."""
    return False


def drawn(prior, net=net, inputs=DATA.inputs):
    """Draw the weights of a network."""
    with poutine.trace():
        bf.bayesian(net(), prior)(inputs)


def normed(norm):
    """Declare a network with a norm."""
    return bf.declare(nn.Sequential(nn.Linear(4, 6), norm, nn.Linear(6, 3)))


def frozen():
    """Return a network that does not train."""
    return net().requires_grad_(False)


class Own:
    """A likelihood that is no dataclass."""

    def __init__(self, temperature=None):
        self.temperature = temperature


CASES = [
    (
        lambda: drawn(bf.Gaussian(1.0), lambda: Counting(False), torch.zeros(2, 64)),
        "nn.GroupNorm",
        lambda: drawn(bf.Gaussian(1.0), lambda: nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4))),
    ),
    (lambda where: bf.bayesian(net(), where=where), nothing),
    (lambda where: bf.declare(net(), where=where), nothing),
    (
        lambda: bf.declare(frozen()),
        "net.requires_grad_()",
        lambda: bf.declare(frozen().requires_grad_()),
    ),
    (
        lambda: normed(nn.BatchNorm1d(6)),
        "nn.GroupNorm in place of batch norm",
        lambda: normed(nn.GroupNorm(1, 6)),
    ),
    (
        lambda: bf.bayesian(net(), dist.Normal(0.0, 1.0)),
        "Gaussian(1.0)",
        lambda: bf.bayesian(net(), bf.Gaussian(1.0)),
    ),
    (
        lambda: bf.bayesian(net(), bf.Prior()),
        "declare for a Prior",
        lambda: bf.declare(net(), bf.Prior()),
    ),
    (
        lambda: bf.declare(net(), where=lambda name, module: True),
        "a predicate without biases",
        lambda: bf.declare(net(), where=lambda name, module: name.endswith("weight")),
    ),
    (
        lambda: tempered(bf.Categorical(temperature=0.2), "auto", 10, 10, where="here"),
        "Categorical(), which leaves it open",
        lambda: tempered(bf.Categorical(), "auto", 10, 10, where="here"),
    ),
    (lambda one: tempered(bf.Categorical(), one, 10, 10, where="here"), -1.0),
    (
        lambda: tempered(Own(), "auto", 10, 10, where="here"),
        "a `temperature` of 1.0",
        lambda: tempered(Own(1.0), None, 10, 10, where="here"),
    ),
    (
        lambda: bf.d_turbo_vbi(bf.declare(net())),
        "observations=len(train)",
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=len(DATA)),
    ),
    # Priors.
    (lambda spike_sd: BernoulliGamma(slab_sd=0.2, spike_sd=spike_sd), 0.28),
    (lambda centre: bf.Gaussian(1.0, centre), torch.tensor(torch.nan)),
    (lambda precision: bf.Gaussian.around(0.0, precision), -1.0),
    (
        lambda: drawn(bf.Gaussian(1.0, torch.zeros(3, 1))),
        "a function of the name that gives each parameter its own centre",
        lambda: drawn(lambda name: bf.Gaussian(1.0, dict(net().named_parameters())[name])),
    ),
    (
        lambda: SpikeAndSlab(0.5, 1.0, 1.0),
        "spike=0.01, slab=1.0",
        lambda: SpikeAndSlab(0.5, spike=0.01, slab=1.0),
    ),
    (
        lambda: drawn(ProductGaussian(2, 1.0)),
        "a prior for each parameter, by name",
        lambda: drawn(lambda name: bf.Gaussian(1.0) if "bias" in name else ProductGaussian(2, 1.0)),
    ),
]
