"""Messages of local training."""

import torch
from torch import nn

import bayesfed as bf
from bayesfed.federated import Ivon, by_device, fixed
from tests.house.wrong_calls.given import CLIENTS, DATA, ONE, go, net, rows, svi

COMPLETE = ("bayesfed/federated/training",)
MANY = {"a": rows(20), "b": rows(20, seed=1)}


def normed(norm=nn.BatchNorm1d, **changes):
    """Run a network with a norm."""
    layers = nn.Linear(4, 4), norm(4), nn.Linear(4, 3)
    go(bf.fed_avg(nn.Sequential(*layers), training=ONE, **changes))


def frozen(*, trained):
    """Run a network of which all is frozen, or all but a layer."""
    made = net().requires_grad_(False)
    made[-1].requires_grad_(trained)
    go(bf.fed_avg(made, training=ONE))


def fast(rate):
    """Train with this learning rate."""
    deep = bf.mlp([4, 8, 3], bf.Key(0))
    go(bf.fed_avg(deep, training=bf.Training(steps=4, optimiser=bf.Sgd(rate))))


def masked(**changes):
    """Train networks of two sizes, on the classes of each client."""
    capacity = fixed(sorted(CLIENTS), 1)
    go(bf.hetero_fl([net()], capacity, training=ONE, **{"masked": True, **changes}))


def sized(capacity):
    """Train two sizes of a network."""
    devices = {name: {"memory_bytes": 1e9} for name in CLIENTS}
    algorithm = bf.hetero_fl([bf.mlp([4, 3], bf.Key(0))] * 2, capacity, training=ONE)
    go(algorithm, bf.InProcess(CLIENTS, devices=devices))


def tempered(scale):
    """Choose a temperature on rows that are held out, of which one has another scale."""
    data = rows(20)
    data.inputs[9] *= scale
    clients = {"a": data, "b": rows(20, seed=1)}
    go(
        bf.d_turbo_vbi(bf.declare(net()), observations=40, temperature="auto", training=ONE),
        clients,
    )


def counted(observations):
    """Make a round of a method that was told the number of rows."""
    list(bf.federated.rounds(svi(observations=observations), bf.InProcess(MANY), rounds=1))


def augmented(augment):
    """Train on rows that are augmented."""
    go(bf.fed_avg(net(), training=bf.Training(1, augment=augment)))


def convolutions(norm):
    """Run a network of images."""
    images = bf.Dataset(torch.randn(3, 32, 32), torch.arange(3))
    net = bf.models.mobilenet((1, 32, 32), 3, bf.Key(0), width=0.1, norm=norm)
    go(bf.fed_avg(net, training=ONE), {"a": images})


CASES = [
    (
        lambda: augmented(lambda inputs: inputs[0]),
        "a function of all inputs",
        lambda: augmented(lambda inputs: inputs + 1.0),
    ),
    (
        lambda: bf.fed_rlr(net(), 1, training=bf.Training(1, bfloat16=True)),
        "Training without bfloat16",
        lambda: bf.fed_rlr(net(), 1, training=bf.Training(1)),
    ),
    (
        lambda: bf.fed_rlr(net(), 1, training=bf.Training(1, bfloat16=True)),
        "or fed_avg",
        lambda: bf.fed_avg(net(), training=bf.Training(1, bfloat16=True)),
    ),
    (normed, "nn.GroupNorm", lambda: normed(lambda width: nn.GroupNorm(2, width))),
    (lambda: convolutions("batch"), 'norm="static"', lambda: convolutions("static")),
    (normed, 'buffers="mean"', lambda: normed(buffers="mean")),
    (normed, '"local"', lambda: normed(buffers="local")),
    (lambda: frozen(trained=False), "requires_grad_()", lambda: frozen(trained=True)),
    (lambda: fast(1e20), "a smaller learning rate", lambda: fast(0.1)),
    (lambda: masked(likelihood=bf.Normal()), "masked=False", lambda: masked(masked=False)),
    (lambda: masked(likelihood=bf.Normal()), "Categorical()", masked),
    (lambda: tempered(1e38), "inputs on one scale", lambda: tempered(1.0)),
    (
        lambda: bf.Training(steps=3, epochs=1.0),
        "Training(epochs=1.0)",
        lambda: bf.Training(epochs=1.0),
    ),
    (
        lambda: bf.Training(prior_precision=0.3),
        "Training(prior_precision=0.3, observations=len(train))",
        lambda: bf.Training(prior_precision=0.3, observations=len(DATA)),
    ),
    (
        lambda: sized(fixed(["a"], 2)),
        "all clients of the pool",
        lambda: sized(fixed(sorted(CLIENTS), 2)),
    ),
    (
        lambda: sized(by_device("memory_bytes", {0: 8e9, 1: 2e9})),
        "a smaller size",
        lambda: sized(by_device("memory_bytes", {0: 8e9, 1: 1e8})),
    ),
    (lambda observations: go(svi(observations=observations)), 60),
    (
        lambda: counted(39),
        "observations=40",
        lambda: counted(40),
    ),
    (
        lambda optimiser: go(bf.fed_avg(net(), training=bf.Training(1, optimiser=optimiser))),
        Ivon(),
    ),
]
