"""Pairs of experiments that differ in one thing, whose fingerprints must differ, and experiments
that are the same when they are made twice or in another process, whose fingerprints must not.

    python -m tests.support.letters.experiments

prints the fingerprint of every first one of a pair as JSON.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from pyro.infer.autoguide import AutoDiagonalNormal, AutoNormal
from torch import nn

import bayesfed as bf
from bayesfed.flower import Experiment
from bayesfed.inference.variational.fusion import PVI, MeanParameters
from tests.support.letters.markers import ONE

# A file of a user. What is in capitals is replaced.
TEXT = """
import pyro
import pyro.distributions as dist
import torch
from pyro.nn import PyroModule, PyroSample

SD = 1.0
TABLE = torch.tensor([1.0, 2.0])
WIDE = {"age": 2.0}


def helped(x):
    return x * FACTOR


FACTOR = 1.0


def model(inputs, targets=None, strength=3.0):
    slope = pyro.sample("slope", dist.Normal(0.0, 1.0))
    mean = helped(slope * inputs[:, 0]) + strength * TABLE[0] + WIDE["age"]
    with pyro.plate("rows", len(inputs)):
        pyro.sample("y", dist.Normal(mean, SD), obs=targets)


def closed(prior):
    def model(inputs, targets=None):
        slope = pyro.sample("slope", prior)
        with pyro.plate("rows", len(inputs)):
            pyro.sample("y", dist.Normal(slope * inputs[:, 0], 1.0), obs=targets)

    return model


class Line(PyroModule):
    power = 1.0

    def __init__(self, sd=1.0):
        super().__init__()
        self.sd = sd
        self._shift = 0.5
        self.slope = PyroSample(dist.Normal(0.0, 1.0))

    def curve(self, x):
        return helped(x) ** self.power

    def forward(self, inputs, targets=None):
        mean = self.slope * self.curve(inputs[:, 0]) + self._shift
        with pyro.plate("rows", len(inputs)):
            return pyro.sample("y", dist.Normal(mean, self.sd), obs=targets)


class Net(torch.nn.Module):
    def __init__(self, rate=0.0, gain=1.0):
        super().__init__()
        self.body = torch.nn.Linear(2, 3)
        self.rate, self._gain = rate, gain
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x):
        return self._gain * self.body(x * self.scale)
"""
NUMBERS = itertools.count()


def own(old: str = "", new: str = "") -> Any:
    """Return the module of a user's file, with a part of its text replaced."""
    if TEXT.count(old) < 1:
        raise ValueError(f"no {old!r}")
    name = f"own_{os.getpid()}_{next(NUMBERS)}"
    path = Path(tempfile.mkdtemp()) / f"{name}.py"
    path.write_text(TEXT.replace(old, new, 1) if old else TEXT)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def formula(text: str = "died ~ age + ward", family: str = "bernoulli", **options: Any) -> Any:
    """Return a regression."""
    frame = options.pop("frame", ONE)
    frames = options.pop("frames", {"basel": frame, "bern": frame})
    return bf.running.prepared(text, frames, cast(Any, family), **options).algorithm


def svi(old: str = "", new: str = "", name: str = "model", **options: Any) -> Any:
    """Return `federated_svi` of a user's model."""
    return bf.federated_svi(getattr(own(old, new), name), **options)


def closed(sd: float = 1.0, mean: torch.Tensor | float = 0.0) -> Any:
    """Return `federated_svi` of a model that closes over its prior."""
    import pyro.distributions as dist

    return bf.federated_svi(own().closed(dist.Normal(torch.as_tensor(mean), sd)))


def lined(old: str = "", new: str = "", **options: Any) -> Any:
    """Return `federated_svi` of a user's class."""
    return bf.federated_svi(own(old, new).Line(**options))


def mean(guide: Any = AutoNormal, **options: Any) -> Any:
    """Return the fit of a guide."""
    rows = bf.Dataset(torch.ones(2, 2), torch.ones(2))
    given: dict[str, Any] = {"training": bf.Training(steps=2), "fusion": PVI()} | options
    return bf.federated_svi(own().model, guide, example=rows, **given)


def averaged(net: Any = None, **options: Any) -> Any:
    """Return federated averaging."""
    made = bf.mlp([2, 4, 3], bf.Key(0)) if net is None else net
    given: dict[str, Any] = {"training": bf.Training(steps=2)} | options
    return bf.fed_avg(made, **given)


def net(old: str = "", new: str = "", scale: float = 1.0, **options: Any) -> Any:
    """Return a user's network."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = own(old, new).Net(**options)
    made.scale.mul_(scale)
    return made


def frozen(value: float) -> Any:
    """Return a network with a frozen layer."""
    made = net()
    made.body.requires_grad_(requires_grad=False)
    made.body.bias.fill_(value)
    return nn.Sequential(made, nn.Linear(3, 3))


@dataclass(frozen=True)
class Scaled:
    """A codec of a user."""

    by: float = 1.0


def scheduled(rate: float) -> Any:
    """Return a schedule."""
    return lambda round: rate


other = ONE.assign(age=ONE["age"] * 2)
third = ONE.assign(ward=["east", "west", "north"] * 2)
HOMES = {"basel": ONE, "bern": ONE.assign(ward="east")}
KIN = {"basel": ONE, "bern": ONE.assign(ward=["east", "west"] * 3)}
Make = Callable[[], Any]
TRAINED = bf.Training(steps=2, optimiser=bf.Sgd(0.1))
PAIRS: dict[str, tuple[Make, Make]] = {
    "formula": (formula, partial(formula, "died ~ bmi + ward")),
    "a formula of the same columns": (formula, partial(formula, "died ~ ward + age")),
    "response": (formula, partial(formula, "I(1 - died) ~ age + ward")),
    "family": (
        partial(formula, "events ~ age", "poisson"),
        partial(formula, "events ~ age", "negative_binomial"),
    ),
    "levels": (formula, partial(formula, frame=third)),
    "moments": (formula, partial(formula, frame=other)),
    "name of the site": (formula, partial(formula, site="hospital")),
    "missing": (formula, partial(formula, missing="drop")),
    "least_rows": (formula, partial(formula, least_rows=20)),
    "secure": (partial(formula, secure=3), partial(formula, secure=4)),
    "sites of groups": (
        partial(formula, "died ~ (1 | ward)", frames=HOMES),
        partial(formula, "died ~ (1 | ward)", frames=KIN),
    ),
    "prior": (svi, partial(svi, "dist.Normal(0.0, 1.0)", "dist.Normal(0.0, 2.0)")),
    "kind of prior": (svi, partial(svi, "dist.Normal(0.0, 1.0)", "dist.Cauchy(0.0, 1.0)")),
    "operator": (svi, partial(svi, "+ strength", "- strength")),
    "default argument": (svi, partial(svi, "strength=3.0", "strength=4.0")),
    "constant of the module": (svi, partial(svi, "SD = 1.0", "SD = 2.0")),
    "tensor of the module": (svi, partial(svi, "[1.0, 2.0]", "[1.0, 3.0]")),
    "table of the module": (svi, partial(svi, '"age": 2.0', '"age": 2.5')),
    "helper": (svi, partial(svi, "x * FACTOR", "x / FACTOR")),
    "constant of a helper": (svi, partial(svi, "FACTOR = 1.0", "FACTOR = 1.5")),
    "closure": (closed, partial(closed, 2.0)),
    "tensor in a closure": (closed, partial(closed, mean=torch.tensor(1.0))),
    "plate of clients": (svi, partial(svi, client_plate="site")),
    "attribute of a model": (lined, partial(lined, sd=2.0)),
    "private attribute of a model": (lined, partial(lined, "self._shift = 0.5", "self._shift = 0")),
    "attribute of a class": (lined, partial(lined, "power = 1.0", "power = 2.0")),
    "method of a class": (lined, partial(lined, "helped(x) **", "2 * helped(x) **")),
    "helper of a method": (lined, partial(lined, "x * FACTOR", "x + FACTOR")),
    "prior of a class": (
        lined,
        partial(lined, "PyroSample(dist.Normal(0.0", "PyroSample(dist.Normal(1.0"),
    ),
    "guide": (mean, partial(mean, AutoDiagonalNormal)),
    "setting of a guide": (
        partial(mean, partial(AutoNormal, init_scale=0.1)),
        partial(mean, partial(AutoNormal, init_scale=0.2)),
    ),
    "rule of fusion": (mean, partial(mean, fusion=MeanParameters())),
    "setting of a rule": (mean, partial(mean, fusion=PVI(damping=0.5))),
    "antithetic": (mean, partial(mean, antithetic=False)),
    "steps": (averaged, partial(averaged, training=bf.Training(steps=3))),
    "rows of a step": (averaged, partial(averaged, training=bf.Training(steps=2, batch_size=4))),
    "optimiser": (
        partial(averaged, training=TRAINED),
        partial(averaged, training=bf.Training(steps=2, optimiser=bf.Adam(0.1))),
    ),
    "step size": (
        partial(averaged, training=TRAINED),
        partial(averaged, training=bf.Training(steps=2, optimiser=bf.Sgd(0.2))),
    ),
    "schedule": (
        partial(averaged, training=bf.Training(steps=2, schedule=bf.federated.cosine(0.1, 5))),
        partial(averaged, training=bf.Training(steps=2, schedule=bf.federated.cosine(0.1, 6))),
    ),
    "schedule of a user": (
        lambda: averaged(training=bf.Training(steps=2, schedule=scheduled(0.1))),
        lambda: averaged(training=bf.Training(steps=2, schedule=scheduled(0.2))),
    ),
    "a lambda": (
        lambda: averaged(training=bf.Training(steps=2, schedule=lambda round: 0.1 / (1 + round))),
        lambda: averaged(training=bf.Training(steps=2, schedule=lambda round: 0.1 / (2 + round))),
    ),
    "likelihood": (averaged, partial(averaged, likelihood=bf.Normal(sd=1.0))),
    "setting of a likelihood": (
        partial(averaged, likelihood=bf.Normal(sd=1.0)),
        partial(averaged, likelihood=bf.Normal(sd=2.0)),
    ),
    "codec": (averaged, partial(averaged, codec=bf.Cast(16))),
    "link": (averaged, partial(averaged, link=bf.OverTheAir(snr_db=20.0))),
    "setting of a link": (
        partial(averaged, link=bf.OverTheAir(snr_db=20.0)),
        partial(averaged, link=bf.OverTheAir(snr_db=10.0)),
    ),
    "method": (averaged, lambda: bf.fed_prox(bf.mlp([2, 4, 3], bf.Key(0)), strength=0.1)),
    "strength": (
        lambda: bf.fed_prox(bf.mlp([2, 4, 3], bf.Key(0)), strength=0.1),
        lambda: bf.fed_prox(bf.mlp([2, 4, 3], bf.Key(0)), strength=0.2),
    ),
    "wrapper": (averaged, lambda: bf.averaged(averaged(), begin=1)),
    "width": (averaged, lambda: averaged(bf.mlp([2, 5, 3], bf.Key(0)))),
    "activation": (
        lambda: averaged(nn.Sequential(net(), nn.ReLU(), nn.Linear(3, 3))),
        lambda: averaged(nn.Sequential(net(), nn.Tanh(), nn.Linear(3, 3))),
    ),
    "forward of a network": (
        lambda: averaged(net()),
        lambda: averaged(net("x * self.scale", "x / self.scale")),
    ),
    "attribute of a network": (lambda: averaged(net()), lambda: averaged(net(rate=0.5))),
    "private attribute of a network": (lambda: averaged(net()), lambda: averaged(net(gain=2.0))),
    "buffer": (lambda: averaged(net()), lambda: averaged(net(scale=2.0))),
    "frozen weights": (lambda: averaged(frozen(0.0)), lambda: averaged(frozen(1.0))),
    "type of the state": (
        lambda: averaged(bf.mlp([2, 4, 3], bf.Key(0))),
        lambda: averaged(bf.mlp([2, 4, 3], bf.Key(0)).double()),
    ),
}


def nobody(client: str) -> bf.Dataset:
    """Return no rows."""
    return bf.Dataset(torch.zeros(0, 2), torch.zeros(0))


def fingerprint(make: Make, codecs: tuple[type, ...] = ()) -> str:
    """Return the fingerprint of an experiment, which is made anew."""
    return Experiment(algorithm=make(), data=nobody, codecs=codecs).fingerprint


def parts(make: Make) -> dict[str, str]:
    """Return the digests of its parts."""
    return dict(Experiment(algorithm=make(), data=nobody).parts)


def alike() -> list[str]:
    """Return the pairs that differ in one thing and have one fingerprint."""
    return [name for name, (one, two) in PAIRS.items() if fingerprint(one) == fingerprint(two)]


def unlike() -> list[str]:
    """Return the pairs whose first experiment has two fingerprints: made twice here, and once in
    another process with another order of hashes.
    """
    here = {name: fingerprint(one) for name, (one, _) in PAIRS.items()}
    again = {name: fingerprint(one) for name, (one, _) in PAIRS.items()}
    command = [sys.executable, "-W", "ignore", "-m", __name__]
    environment = {**os.environ, "PYTHONHASHSEED": "77"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    there = json.loads(done.stdout)
    return [name for name in here if {here[name]} != {again[name], there[name]}]


if __name__ == "__main__":
    print(json.dumps({name: fingerprint(one) for name, (one, _) in PAIRS.items()}))  # noqa: T201
