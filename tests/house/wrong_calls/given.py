"""What the tables of wrong calls are made of: rows, networks, models, a run that was made."""

import functools
import pathlib
import tempfile
from dataclasses import dataclass, replace

import pyro
import pyro.distributions as dist
import torch
from pyro.infer.autoguide import AutoNormal

import bayesfed as bf
from bayesfed.federated.core.protocols import Fit

KEY = bf.Key(0)
ONE = bf.Training(steps=1)


def rows(count=6, width=4, seed=0):
    drawn = torch.randn(count, width, generator=bf.Key(seed, "rows").generator())
    return bf.Dataset(drawn, torch.arange(count) % 3)


DATA, TEST = rows(), rows(4, seed=1)
BINARY = replace(DATA, targets=DATA.targets.clamp(max=1))
CLIENTS = {"a": DATA[:3], "b": DATA[3:]}


def net():
    return bf.mlp([4, 3], KEY)


def avg(**changes):
    return bf.fed_avg(net(), training=ONE, **changes)


def go(algorithm=None, clients=None, **changes):
    return bf.run(
        avg() if algorithm is None else algorithm,
        CLIENTS if clients is None else clients,
        **{"rounds": 1, "progress": False, **changes},
    )


@functools.cache
def done():
    return go(rounds=2)


@functools.cache
def svi_done():
    return go(svi())


def line(inputs, targets=None):
    weights = pyro.sample("w", dist.Normal(torch.zeros(4, 3), 1.0).to_event(2))
    with pyro.plate("rows", len(inputs)):
        return pyro.sample("y", dist.Categorical(logits=inputs @ weights), obs=targets)


def no_obs(inputs, targets=None):
    weights = pyro.sample("w", dist.Normal(torch.zeros(4, 3), 1.0).to_event(2))
    with pyro.plate("rows", len(inputs)):
        return pyro.sample("y", dist.Normal((inputs @ weights)[:, 0], 1.0))


def zeros_and_ones(inputs, targets=None):
    weights = pyro.sample("w", dist.Normal(torch.zeros(4), 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        return pyro.sample("y", dist.Bernoulli(logits=inputs @ weights), obs=targets)


def svi(model=line, guide=AutoNormal, **changes):
    given = {
        "fusion": bf.PVI(damping=0.5),
        "scale": "local",
        "observations": 6,
        "example": DATA[:2],
        "training": bf.Training(2, batch_size=None),
    }
    return bf.federated_svi(model, guide, **{**given, **changes})


def csv(text, **changes):
    path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    path.write_text(text)
    return bf.from_csv(path, **{"label": "y", **changes})


def grid():
    return bf.models.MarkovGrid().lower((3, 3))


@dataclass(frozen=True)
class Loc:
    info: object = None
    payload: object = None
    result: object = None
    kind: str = "delta"

    def fit(self, message, memory, data, key, options):
        zeros = {name: torch.zeros_like(leaf) for name, leaf in message.items()}
        return self.result or Fit(self.payload or zeros, {}, self.info or {})


@dataclass(frozen=True)
class StateOnly:
    def step(self, state, reducer, round):
        return state


class Half:
    def draw(self, key):
        return {}

    def observe(self, draw, inputs, key):
        return None


def own(**changes):
    return bf.compose("own", net(), **changes)
