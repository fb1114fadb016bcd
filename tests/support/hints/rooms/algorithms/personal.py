"""Messages of methods with a model for each client."""

from dataclasses import replace

import torch
from torch import nn

import bayesfed as bf
from bayesfed.algorithms.personal.pooled.unlabelled import UnseenModel
from bayesfed.federated import Whole
from bayesfed.models import resnet18
from bayesfed.trees import parameters, shapes
from tests.house.wrong_calls import given
from tests.house.wrong_calls.given import CLIENTS, KEY, ONE, go

COMPLETE = ("bayesfed/algorithms/personal",)


def tuned(algorithm=None, **options):
    """Return a method with fine-tuning."""
    return bf.personalised(algorithm or given.avg(), steps=1, **options)


def others():
    """Return the methods that hints name."""
    return tuned(), tuned(bf.fed_prox(given.net(), strength=0.1)), tuned(bf.fed_lora(adapted()))


def adapted():
    """Return a network under adapters."""
    return bf.lora(given.net(), 2, KEY)


class Stays:
    """A server that never learns."""

    def step(self, state, reducer, round):
        return state, {}


class Less(Whole):
    """A view without the weights."""

    def restrict(self, state):
        return {"1.bias": state["1.bias"]}


def partly(begin):
    """Run fine-tuning of a method whose messages lack a leaf from some round on."""
    net = given.net()

    def view(turn):
        return (Whole if turn.round < begin else Less)(shapes(parameters(net)))

    method = bf.compose("own", net, local=given.Loc(), server=Stays(), training=ONE, view=view)
    go(tuned(method), rounds=2)


def normed(layer):
    """Return FedAvg of a network with a layer in it."""
    net = nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3))
    return bf.fed_avg(net, training=ONE, buffers="mean")


def none(name, module):
    """Choose no parameter."""
    return False


def every(name, module):
    """Choose every parameter."""
    return True


def two():
    """Return a network of two layers."""
    return bf.mlp([4, 5, 3], KEY)


def pooled(net=None, **options):
    """Return partial pooling."""
    return bf.pooled(net or two(), training=ONE, **options)


def wide(count):
    """Return a network with so many parameters in its head."""
    return nn.Sequential(nn.Linear(4, count - 1), nn.Linear(count - 1, 1))


def words():
    """Return clients with whole numbers as inputs."""
    return {name: replace(part, inputs=part.inputs.long()) for name, part in CLIENTS.items()}


def by_inputs(clients, covariates="inputs"):
    """Pool factors under covariates."""
    go(pooled(local="factors", covariates=covariates), clients)


class Backwards(nn.Module):
    """Registers its output layer first, or last."""

    def __init__(self, last):
        super().__init__()
        if not last:
            self.out = nn.Linear(5, 3)
        self.body = nn.Linear(4, 5)
        if last:
            self.out = nn.Linear(5, 3)

    def forward(self, inputs):
        return self.out(torch.relu(self.body(inputs)))


def by_classes(last):
    """Pool shares of classes."""
    go(pooled(Backwards(last), local="classes"))


def unsettled(weight):
    """Adapt to two inputs of which nothing is known, where clients have one class each."""
    net = nn.Linear(2, 2, bias=False)
    net.weight.data.copy_(torch.tensor([[1e-3, 0.0], [0.0, 2e-3]]))
    base = torch.tensor([0.5, 0.5])
    UnseenModel(net, parameters(net), base, 1e-3 * base).adapted(torch.eye(2), weight)


def images(norm):
    """Pool networks for images."""
    pooled(resnet18((1, 8, 8), 3, KEY, width=1 / 64, norm=norm))


def still():
    """Return a network whose head is frozen."""
    made = two()
    made[-1].requires_grad_(False)
    return made


CASES = [
    (lambda: tuned(bf.p_fed_bayes(given.net())), "fed_avg, fed_prox, fed_lora", others),
    (lambda: partly(begin=1), "fed_avg, fed_lora, fed_per", others),
    (lambda: partly(begin=0), "fed_avg, fed_per", lambda: go(tuned(bf.fed_per(two())))),
    (
        lambda: tuned(bf.feature_density(given.net())),
        "fed_avg, fed_prox, fed_lora",
        others,
    ),
    (
        lambda: tuned(normed(nn.BatchNorm1d(4))),
        "nn.GroupNorm",
        lambda: tuned(normed(nn.GroupNorm(2, 4))),
    ),
    (lambda: tuned(where=none), "where=None", lambda: tuned(where=None)),
    (
        lambda: bf.fed_per(two(), local=every),
        "local=None",
        lambda: bf.fed_per(two(), local=None),
    ),
    (
        lambda: bf.fed_per(given.net()),
        "a network of two layers or more",
        lambda: bf.fed_per(two()),
    ),
    (
        lambda: by_inputs(words()),
        "images and measurements as floats",
        lambda: by_inputs(CLIENTS),
    ),
    (
        lambda: by_inputs(words()),
        "for others covariates=None",
        lambda: pooled(local="factors", covariates=None),
    ),
    (
        lambda: pooled(nn.Sequential(nn.Flatten(), nn.LayerNorm(4)), local="factors"),
        "local='offsets'",
        lambda: pooled(nn.Sequential(nn.Flatten(), nn.LayerNorm(4)), local="offsets"),
    ),
    (
        lambda: pooled(wide(800), approximation="variational"),
        "covariance='full'",
        lambda: pooled(wide(800), approximation="variational", covariance="full"),
    ),
    *(
        (
            lambda options=options: pooled(wide(2100), approximation="variational", **options),
            "approximation='laplace'",
            lambda: pooled(wide(2100), approximation="laplace", covariance="diagonal"),
        )
        for options in ({}, {"covariance": "full"})
    ),
    (
        lambda: pooled(wide(2100), covariance="full"),
        "covariance='diagonal'",
        lambda: pooled(wide(2100), covariance="diagonal"),
    ),
    (
        lambda: pooled(covariates="inputs"),
        "local='factors', covariates='inputs'",
        lambda: pooled(local="factors", covariates="inputs"),
    ),
    (
        lambda: pooled(local="classes", covariance="full"),
        "local='head'",
        lambda: pooled(local="head", covariance="full"),
    ),
    (
        lambda: bf.pooled(two(), training=bf.Training(prior_precision=1.0, observations=6)),
        "prior='layer', initial_sd=0.3, Training without one",
        lambda: bf.pooled(two(), prior="layer", initial_sd=0.3, training=bf.Training()),
    ),
    (lambda: images("static"), 'norm="group"', lambda: images("group")),
    (
        lambda: pooled(still()),
        "requires_grad_()",
        lambda: pooled(still().requires_grad_()),
    ),
    (
        lambda: pooled(still()),
        "another local=",
        lambda: pooled(still(), local="offsets"),
    ),
    (
        lambda: by_classes(last=False),
        "a network that registers its output layer last",
        lambda: by_classes(last=True),
    ),
    (lambda: unsettled(1.0), "a smaller weight", lambda: unsettled(0.1)),
]
