"""Messages about networks that are handed to a recipe."""

import warnings

import torch
from torch import nn

import bayesfed as bf
from bayesfed.errors import ConvergenceWarning
from tests.house.wrong_calls.given import CLIENTS, DATA

COMPLETE = (
    "bayesfed/models/live.py",
    "bayesfed/inference/ensembles/dropout.py",
    "bayesfed/running/drawn_weights.py",
)
SIZE, WORK = DATA.inputs[0].numel(), bf.Training(steps=1)


def dropping(rate=0.2):
    """Return a network with dropout."""
    return nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 10), nn.Dropout(rate))


def frozen():
    """Return a network with a part that stays in evaluation mode."""
    return nn.Sequential(nn.BatchNorm1d(SIZE).eval().requires_grad_(False), nn.Linear(SIZE, 10))


def threaded(kind):
    """Run a network with dropout in workers of a kind."""
    with bf.InProcess(CLIENTS, workers=2, kind=kind) as pool:
        bf.run(bf.fed_avg(dropping(), training=WORK), pool, rounds=1, progress=False)


def passed(rate):
    """Predict by passes with dropout of this rate."""
    algorithm = bf.mc_dropout(bf.fed_avg(dropping(rate), training=WORK))
    result = bf.run(algorithm, CLIENTS, rounds=1, progress=False)
    return result.predictive(DATA.inputs, draws=2).probabilities.sum()


class Counting(nn.Linear):
    """A layer that counts its passes."""

    def __init__(self):
        super().__init__(SIZE, 10)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, inputs):
        self.calls += 1
        return super().forward(inputs.flatten(1))


def counted(buffers):
    """Run a network that counts."""
    algorithm = bf.fed_avg(Counting(), buffers=buffers, training=WORK)
    return bf.run(algorithm, CLIENTS, rounds=1, progress=False)


class Drawn(nn.Module):
    """A layer that draws its weight at every call."""

    def __init__(self):
        super().__init__()
        self.mean, self.log_sd = (nn.Parameter(torch.zeros(SIZE, 10)) for _ in range(2))

    def forward(self, x):
        return x.flatten(1) @ (self.mean + self.log_sd.exp() * torch.randn_like(self.mean))


def trained(net):
    """Train a network by its likelihood."""
    bf.run(bf.fed_avg(net, training=WORK), CLIENTS, rounds=1, progress=False)


def inferred(net):
    """Infer the weights of a network of plain layers."""
    model = bf.bayesian(net, bf.Gaussian(1.0))
    options = {"example": DATA[:2], "observations": sum(map(len, CLIENTS.values()))}
    fit = bf.federated_svi(model, temperature=1.0, training=bf.Training(steps=1), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        bf.run(fit, CLIENTS, rounds=1, progress=False)


CASES = [
    (
        lambda: trained(Drawn()),
        "federated_svi(bayesian(net)) of a network of plain layers",
        lambda: inferred(nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 10))),
    ),
    (
        lambda: bf.fed_avg(dropping().eval()),
        "net.train()",
        lambda: bf.fed_avg(dropping().eval().train()),
    ),
    (
        lambda: bf.fed_avg(dropping().eval()),
        "requires_grad_(False)",
        lambda: bf.fed_avg(frozen()),
    ),
    (lambda: threaded("thread"), "kind='process'", lambda: threaded("process")),
    (lambda: passed(0.0), "nn.Dropout(0.2)", lambda: passed(0.2)),
    (lambda: counted("static"), 'buffers="mean"', lambda: counted("mean")),
    (lambda: counted("static"), '"local"', lambda: counted("local")),
]
