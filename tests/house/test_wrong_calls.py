"""Over two hundred wrong calls: each ends at the entry that was called, with an error of the
package that says what to pass instead.

A row is a call, the class of its error, and words that must appear in it. None may end in a
traceback from below, or run on in silence.
"""

import functools
import math
import pathlib
import tempfile
from dataclasses import dataclass, replace

import networkx
import numpy as np
import pyro
import pyro.distributions as dist
import pytest
import torch
from pyro.infer.autoguide import AutoNormal
from torch import nn

import bayesfed as bf
from bayesfed.data import shards
from bayesfed.errors import (
    ArgumentError,
    BayesfedError,
    ClientError,
    DataError,
    KeywordError,
    PriorError,
    TooFewClientsError,
    UpdateError,
)
from bayesfed.federated import Digital, checkpoint, early_stop, evaluate, score
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
    uses_global_randomness: bool = False

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


WRONG = {
    # data
    "Dataset lists": (
        lambda: bf.Dataset([[1.0, 2.0]], [0]),
        DataError,
        "; try torch.tensor(rows), np.array(rows), or a",
    ),
    "Dataset numpy strings": (
        lambda: bf.Dataset(np.array([["a"]]), np.array([0])),
        DataError,
        "; try numbers in place of texts and missing v",
    ),
    "Dataset none": (
        lambda: bf.Dataset(None, None),
        DataError,
        "; try torch.tensor(rows), np.array(rows), or a",
    ),
    "Dataset lengths": (
        lambda: bf.Dataset(torch.zeros(3, 2), torch.zeros(2)),
        DataError,
        "; try the same rows of both",
    ),
    "Dataset scalar": (
        lambda: bf.Dataset(torch.tensor(1.0), torch.tensor(1)),
        DataError,
        "; try the same rows of both",
    ),
    "Dataset nan": (
        lambda: bf.Dataset(torch.tensor([[math.nan]]), torch.zeros(1)),
        DataError,
        "; try dropping or imputing those rows",
    ),
    "Dataset negative": (
        lambda: bf.Dataset(torch.zeros(1, 1), torch.tensor([-1])),
        DataError,
        "; try relabelling",
    ),
    "Dataset index int": (lambda: DATA[0], DataError, "; try data[:5], data[torch.tensor([0, 2])]"),
    "Dataset index list": (
        lambda: DATA[[0, 1]],
        DataError,
        "; try data[:5], data[torch.tensor([0, 2])]",
    ),
    "Dataset classes": (
        lambda: bf.Dataset(torch.zeros(2, 1), torch.tensor([0, 5]), classes=("x", "y")),
        DataError,
        "; try a name for every c",
    ),
    "Dataset domains": (
        lambda: bf.Dataset(torch.zeros(2, 1), torch.tensor([0, 1]), domains=("x",)),
        DataError,
        "; try domains=()",
    ),
    "iid data": (lambda: bf.iid(DATA, 2, KEY), ArgumentError, "; try len(train)"),
    "iid no key": (lambda: bf.iid(6, 2, 0), ArgumentError, "; try Key(0, 'purpose')"),
    "iid clients 0": (lambda: bf.iid(6, 0, KEY), ArgumentError, "; try clients=10"),
    "iid clients float": (
        lambda: bf.iid(6, 2.5, KEY),
        ArgumentError,
        "expected a whole number >= 0, found 2.5; try 1",
    ),
    "iid minimum": (lambda: bf.iid(6, 4, KEY, minimum=2), ArgumentError, "; try a smaller minimum"),
    "dirichlet data": (
        lambda: bf.dirichlet(DATA, 2, 0.5, KEY),
        ArgumentError,
        "; try train.targets",
    ),
    "dirichlet key": (
        lambda: bf.dirichlet(DATA.targets, 2, 0.5, 0),
        ArgumentError,
        "; try Key(0, 'purpose')",
    ),
    "dirichlet alpha": (lambda: bf.dirichlet(DATA.targets, 2, 0, KEY), ArgumentError, "; try 0.5"),
    "dirichlet alpha str": (
        lambda: bf.dirichlet(DATA.targets, 2, "0.5", KEY),
        ArgumentError,
        "; try 0.5",
    ),
    "dirichlet numbers": (
        lambda: bf.dirichlet(torch.randn(6), 2, 0.5, KEY),
        ArgumentError,
        "; try train.targets",
    ),
    "dirichlet list": (
        lambda: bf.dirichlet([0, 1, 2], 2, 0.5, KEY),
        ArgumentError,
        "; try train.targets",
    ),
    "shards": (
        lambda: shards(DATA.targets, 2, 0, KEY),
        ArgumentError,
        "per_client: expected a whole number >= 1, found 0; try 2",
    ),
    "federate swapped": (
        lambda: bf.federate(bf.iid(6, 2, KEY), DATA),
        ArgumentError,
        "; try Dataset(inputs, targets), and the partit",
    ),
    "federate tensors": (
        lambda: bf.federate(DATA.inputs, bf.iid(6, 2, KEY)),
        ArgumentError,
        "; try Dataset(inputs, targets), and the partit",
    ),
    "federate out of range": (
        lambda: bf.federate(DATA, bf.iid(9, 2, KEY)),
        ArgumentError,
        "; try a partition of 6 rows",
    ),
    "federate int": (
        lambda: bf.federate(DATA, 2),
        ArgumentError,
        "; try iid(len(train), 10, Key(0))",
    ),
    "held_out share": (
        lambda: bf.held_out(DATA.targets.tolist(), 2, KEY),
        ArgumentError,
        "; try 0.2",
    ),
    "held_out dataset": (
        lambda: bf.held_out(DATA, 0.5, KEY),
        ArgumentError,
        "; try train.targets.tolist(), or split_rows(tr",
    ),
    "key float": (lambda: bf.Key(0.5), ArgumentError, "; try Key(0, 'fit', 3)"),
    "csv empty": (
        lambda: csv("x, y\n1, a\n, b\n"),
        DataError,
        "; try dropping or imputing empty cells, as",
    ),
    "csv label": (lambda: csv("x, z\n1, a\n"), DataError, "; try one of 'x', 'z'"),
    "csv no file": (
        lambda: bf.from_csv("nowhere.csv", label="y"),
        DataError,
        "; try a path that begins in",
    ),
    "csv frame": (
        lambda: bf.from_csv(None, label="y"),
        DataError,
        "; try Dataset(frame[columns], frame[label])",
    ),
    "npz none": (lambda: bf.data.from_npz("nowhere.npz"), DataError, "; try np.savez(path, ...)"),
    # nets and priors
    "mlp key": (lambda: bf.mlp([4, 3], 0), ArgumentError, "; try Key(0, 'purpose')"),
    "mlp int": (lambda: bf.mlp(4, KEY), ArgumentError, "; try [64, 32, 10]"),
    "mlp widths str": (lambda: bf.mlp("64", KEY), ArgumentError, "; try [64, 32, 10]"),
    "mlp one width": (lambda: bf.mlp([4], KEY), ArgumentError, "; try [64, 32, 10]"),
    "mlp zero": (lambda: bf.mlp([4, 0], KEY), ArgumentError, "; try [64, 32, 10]"),
    "mlp float": (lambda: bf.mlp([4, 2.5], KEY), ArgumentError, "; try [64, 32, 10]"),
    "declare class": (
        lambda: bf.declare(nn.Linear),
        ArgumentError,
        "; try mlp([64, 32, 10], Key(0))",
    ),
    "declare likelihood str": (
        lambda: bf.declare(net(), likelihood="categorical"),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0) fo",
    ),
    "declare likelihood class": (
        lambda: bf.declare(net(), likelihood=bf.Categorical),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0)",
    ),
    "declare prior class": (
        lambda: bf.declare(net(), bf.Prior),
        ArgumentError,
        "; try Prior(), or {'name': Prior()}.get",
    ),
    "declare prior str": (
        lambda: bf.declare(net(), "horseshoe"),
        ArgumentError,
        "; try Prior(), or {'name': Prior()}.get",
    ),
    "Categorical temperature": (
        lambda: bf.Categorical(temperature=0),
        ArgumentError,
        "expected a number in (0, inf), found 0; try 1.0",
    ),
    "Normal sd": (
        lambda: bf.Normal(sd=-1),
        ArgumentError,
        "expected a number in (0, inf), found -1; try 1.0",
    ),
    "Laplace": (
        lambda: bf.Laplace(0),
        ArgumentError,
        "expected a number in (0, inf), found 0; try 1.0",
    ),
    "bayesian prior": (
        lambda: bf.bayesian(net(), "laplace"),
        PriorError,
        "; try Gaussian(1.0), or declare for a Prior",
    ),
    "bayesian prior class": (
        lambda: bf.bayesian(net(), bf.Laplace),
        ArgumentError,
        "; try Gaussian(1.0), or declare for a Prior",
    ),
    "bayesian prior number": (
        lambda: bf.bayesian(net(), 0.2),
        PriorError,
        "; try Gaussian(1.0), or declare for a Prior",
    ),
    # recipes
    "fed_avg class": (
        lambda: bf.fed_avg(nn.Linear),
        ArgumentError,
        "; try mlp([64, 32, 10], Key(0))",
    ),
    "fed_avg state dict": (
        lambda: bf.fed_avg(net().state_dict()),
        ArgumentError,
        "; try mlp([64, 32, 10], Key(0))",
    ),
    "fed_avg step": (
        lambda: bf.fed_avg(net(), step=5),
        KeywordError,
        "; try training=Training(steps=50)",
    ),
    "fed_avg lr": (
        lambda: bf.fed_avg(net(), lr=0.1),
        KeywordError,
        "; try training=Training(optimiser=Sgd(0.1))",
    ),
    "fed_avg steps": (
        lambda: bf.fed_avg(net(), steps=5),
        KeywordError,
        "; try training=Training(steps=50)",
    ),
    "fed_avg training dict": (
        lambda: bf.fed_avg(net(), training={"steps": 5}),
        ArgumentError,
        "; try Training(steps=50, batch_size=64)",
    ),
    "fed_avg training class": (
        lambda: bf.fed_avg(net(), training=bf.Training),
        ArgumentError,
        "; try Training(steps=50, batch_size=64)",
    ),
    "fed_avg likelihood str": (
        lambda: bf.fed_avg(net(), likelihood="normal"),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0) for num",
    ),
    "fed_avg likelihood class": (
        lambda: bf.fed_avg(net(), likelihood=bf.Normal),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0) for ",
    ),
    "fed_avg loss": (
        lambda: bf.fed_avg(net(), likelihood=nn.CrossEntropyLoss()),
        ArgumentError,
        "; try Categorical(), or Normal(sd=1.0) for ",
    ),
    "fed_avg codec class": (
        lambda: bf.fed_avg(net(), codec=bf.Cast),
        ArgumentError,
        "; try Cast(16)",
    ),
    "fed_avg codec int": (lambda: bf.fed_avg(net(), codec=8), ArgumentError, "; try Cast(16)"),
    "fed_avg link class": (
        lambda: bf.fed_avg(net(), link=bf.OverTheAir),
        ArgumentError,
        "; try Digital(), or OverTheAir(snr_db=20.0)",
    ),
    "fed_avg link str": (
        lambda: bf.fed_avg(net(), link="air"),
        ArgumentError,
        "; try Digital(), or OverTheAir(snr_db=20.0)",
    ),
    "fed_avg buffers": (
        lambda: bf.fed_avg(net(), buffers="average"),
        ArgumentError,
        "; try 'static'",
    ),
    "fed_avg frozen": (
        lambda: bf.fed_avg(net().requires_grad_(False)),
        ArgumentError,
        "; try requires_grad_()",
    ),
    "fed_avg batch norm": (
        lambda: bf.fed_avg(nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))),
        ArgumentError,
        '; try nn.GroupNorm, norm="s',
    ),
    "fedavg name": (lambda: bf.fedavg, AttributeError, "did you mean fed_avg"),
    "FedAvg name": (lambda: bf.FedAvg, AttributeError, "did you mean fed_avg"),
    "fed_prox strength": (lambda: bf.fed_prox(net(), strength=-1), ArgumentError, "; try 0.01"),
    "fed_prox mu": (lambda: bf.fed_prox(net(), mu=0.1), KeywordError, "; try strength=0.01"),
    "fed_paq bits": (
        lambda: bf.fed_paq(net(), bits=0),
        ArgumentError,
        "expected an integer from 2 to 24, found 0;",
    ),
    "qsgd levels": (
        lambda: bf.qsgd(net(), levels=0),
        ArgumentError,
        "Qsgd, levels: expected an integer from 1 to 16777216, found 0; try 16",
    ),
    "stc share": (
        lambda: bf.stc(net(), share=2),
        ArgumentError,
        "Ternary, share: expected a share above 0 and at most 1, found 2; try 0.1",
    ),
    "uveqfed bits": (lambda: bf.uveqfed(net(), bits=-1), ArgumentError, "; try Lattice(bits=4)"),
    "dssm share": (
        lambda: bf.dssm(net(), share=0),
        ArgumentError,
        "TopK, share: expected a share above 0 and at most 1, found 0; try 0.1",
    ),
    "hetero_fl net": (
        lambda: bf.hetero_fl(net(), bf.fixed(["a", "b"], 1)),
        ArgumentError,
        "; try [mlp([64, 32, 10], key), mlp([64, 16, 10",
    ),
    "hetero_fl capacity": (
        lambda: bf.hetero_fl([net()], 0.5),
        ArgumentError,
        "; try fixed(sorted(clients), 2), dynamic(2) or",
    ),
    "hetero_fl capacity list": (
        lambda: bf.hetero_fl([net()], [1.0, 0.5]),
        ArgumentError,
        "; try fixed(sorted(clients), 2), dynamic(2) or",
    ),
    "dynamic list": (
        lambda: bf.federated.dynamic([1.0, 0.5]),
        ArgumentError,
        "; try the number of sizes",
    ),
    "fixed int": (lambda: bf.fixed(4, 2), ArgumentError, "; try sorted(clients)"),
    "fixed zero": (
        lambda: bf.fixed(["a"], 0),
        ArgumentError,
        "fixed, count: expected a whole number >= 1",
    ),
    "fed_hm ratios": (
        lambda: bf.fed_hm(net(), 0.5, bf.federated.dynamic(1)),
        ArgumentError,
        "; try [1.0, 0.5, 0.25]",
    ),
    "fed_rlr rank": (
        lambda: bf.fed_rlr(net(), 0),
        ArgumentError,
        "expected a rank from 1 to 3, found 0; try 3",
    ),
    "fed_rlr rank str": (
        lambda: bf.fed_rlr(net(), "8"),
        ArgumentError,
        "expected a rank from 1 to 3, found 8; try 3",
    ),
    "fed_lora no adapters": (lambda: bf.fed_lora(net()), ArgumentError, "; try lora(net, 8, key)"),
    "lora rank": (
        lambda: bf.lora(net(), 0, KEY),
        ArgumentError,
        "expected a rank from 1 to 1048576, found 0; tr",
    ),
    "d_turbo net": (
        lambda: bf.d_turbo_vbi(net(), observations=6),
        ArgumentError,
        "; try declare(net)",
    ),
    "d_turbo observations": (
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=0),
        ArgumentError,
        "; try len(train)",
    ),
    "d_turbo observations data": (
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=DATA),
        ArgumentError,
        "; try len(train)",
    ),
    "d_turbo field": (
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=6, field=-1.5),
        ArgumentError,
        "; try lambda round: -1.5",
    ),
    "d_turbo scale": (
        lambda: bf.d_turbo_vbi(bf.declare(net()), observations=6, likelihood_scale="all"),
        ArgumentError,
        "; try 'global'",
    ),
    "svi fusion": (
        lambda: svi(fusion="pvi"),
        ArgumentError,
        "; try PVI(damping=0.3), or SummedGradients()",
    ),
    "svi fusion class": (lambda: svi(fusion=bf.PVI), ArgumentError, "; try an instance, PVI()"),
    "PVI damping": (lambda: bf.PVI(3.0), ArgumentError, "; try 1 / clients"),
    "PVI damping bool": (
        lambda: bf.PVI(damping=True),
        ArgumentError,
        "found True; try 1 / clients",
    ),
    "swag begin": (
        lambda: bf.swag(bf.fed_avg(net()), begin=1.5),
        ArgumentError,
        "expected a whole number >= 0, found 1.5; try 20",
    ),
    "fed_pa samples": (
        lambda: bf.fed_pa(net(), samples=True),
        ArgumentError,
        "expected a whole number >= 1, found True; try 3",
    ),
    "fed_be draws": (
        lambda: bf.fed_be(net(), draws=2.5),
        ArgumentError,
        "expected a whole number >= 1, found 2.5; try 10",
    ),
    "PVI kind": (lambda: bf.PVI(damping=0.5, adds=True), KeywordError, "; try damping"),
    "svi no obs": (
        lambda: svi(no_obs),
        ArgumentError,
        "; try pyro.sample('y', ..., obs=targets), or p",
    ),
    "svi model net": (
        lambda: svi(net()),
        ArgumentError,
        "; try def model(inputs, targets=None), or baye",
    ),
    "svi guide str": (lambda: svi(guide="AutoNormal"), ArgumentError, "; try AutoNormal"),
    "svi example tensor": (lambda: svi(example=DATA.inputs), ArgumentError, "; try train[:2]"),
    "svi observations": (lambda: svi(observations=0), ArgumentError, "; try len(train)"),
    "svi scale": (lambda: svi(scale="all"), ArgumentError, "; try 'local'"),
    "svi elbo class": (
        lambda: svi(elbo=pyro.infer.Trace_ELBO),
        ArgumentError,
        "; try Trace_ELBO()",
    ),
    "conjugate": (
        lambda: bf.conjugate({}, lambda d: {}),
        ArgumentError,
        "; try {'h': torch.zeros(8)}",
    ),
    "conjugate stats": (
        lambda: bf.conjugate({"h": torch.zeros(1)}, {"h": torch.zeros(1)}),
        ArgumentError,
        "; try lambda rows: {'h': rows.targe",
    ),
    # training
    "Training steps": (
        lambda: bf.Training(steps=2.5),
        ArgumentError,
        "expected a whole number >= 1, found 2.5; try 5",
    ),
    "Training steps 0": (
        lambda: bf.Training(steps=0),
        ArgumentError,
        "expected a whole number >= 1, found 0; try 50",
    ),
    "Training steps str": (
        lambda: bf.Training(steps="5"),
        ArgumentError,
        "expected a whole number >= 1, found '5'; try 5",
    ),
    "Training batch": (
        lambda: bf.Training(batch_size=0),
        ArgumentError,
        "expected a whole number >= 1, found 0; try 64",
    ),
    "Training optimiser": (
        lambda: bf.Training(optimiser=0.1),
        ArgumentError,
        "; try Sgd(0.05), Adam(1e-3)",
    ),
    "Training torch": (
        lambda: bf.Training(optimiser=torch.optim.SGD),
        ArgumentError,
        "; try Sgd(0.05), Adam(1e-3)",
    ),
    "Training optimiser class": (
        lambda: bf.Training(optimiser=bf.Sgd),
        ArgumentError,
        "; try Sgd(0.05), Adam(1e-3)",
    ),
    "Training optimizer": (
        lambda: bf.Training(optimizer=bf.Sgd(0.1)),
        KeywordError,
        "; try optimiser=Sgd(0.1)",
    ),
    "Training lr": (lambda: bf.Training(lr=0.1), KeywordError, "; try optimiser=Sgd(0.1)"),
    "Training schedule": (
        lambda: bf.Training(schedule=0.1),
        ArgumentError,
        "; try cosine(0.1, rounds)",
    ),
    "Training epochs": (
        lambda: bf.Training(epochs=0),
        ArgumentError,
        "expected a number in (0, inf), found 0; try 1.0",
    ),
    "Training epochs nan": (
        lambda: bf.Training(epochs=math.nan),
        ArgumentError,
        "expected a number in (0, inf), found nan; try 1.0",
    ),
    "Sgd rate": (lambda: bf.Sgd(-1), ArgumentError, "; try 1e-3"),
    "Sgd str": (lambda: bf.Sgd("0.1"), ArgumentError, "; try 1e-3"),
    "Adam": (lambda: bf.Adam(0), ArgumentError, "; try 1e-3"),
    "cosine": (lambda: bf.federated.cosine(0.1, 0), ArgumentError, "; try cosine(0.1, 40)"),
    # run
    "run rounds 0": (lambda: go(rounds=0), ArgumentError, "; try rounds=10"),
    "run rounds float": (lambda: go(rounds=2.5), ArgumentError, "; try rounds=10"),
    "run rounds str": (lambda: go(rounds="3"), ArgumentError, "; try rounds=10"),
    "run net": (lambda: go(net()), ArgumentError, "; try fed_avg(net): a recipe called with a net"),
    "run recipe": (
        lambda: go(bf.fed_avg),
        ArgumentError,
        "; try fed_avg(net): a recipe called with a net",
    ),
    "run clients list": (
        lambda: go(clients=[DATA, DATA]),
        ArgumentError,
        "; try {'name': data_set, ...}, federate(train,",
    ),
    "run clients dataset": (
        lambda: go(clients=DATA),
        ArgumentError,
        "; try {'name': data_set, ...}, federate(train,",
    ),
    "run clients empty": (lambda: go(clients={}), DataError, "; try federate(data, iid(...))"),
    "run clients tensors": (
        lambda: go(clients={"a": (DATA.inputs, DATA.targets)}),
        ArgumentError,
        "; try {'name': Dataset(inputs, targets)}",
    ),
    "run clients all empty": (
        lambda: go(clients={"a": DATA[:0]}),
        DataError,
        "; try federate(data, iid(...))",
    ),
    "run clients names": (
        lambda: go(clients={0: DATA}),
        ArgumentError,
        "; try {'name': Dataset(inputs, targets)}",
    ),
    "run test tuple": (
        lambda: go(test=(TEST.inputs, TEST.targets)),
        ArgumentError,
        "; try test=Dataset(inputs, targets)",
    ),
    "run test width": (
        lambda: go(test=rows(4, 5)),
        ArgumentError,
        "; try the test set prepared as the rows are",
    ),
    "run test dtype": (
        lambda: go(test=replace(TEST, inputs=TEST.inputs.double())),
        ArgumentError,
        "; try the test set prepared as the rows a",
    ),
    "run test clients": (
        lambda: go(test={"a": TEST}),
        ArgumentError,
        "; try test=data.concatenated(list(test.values()))",
    ),
    "run test empty": (
        lambda: go(test=TEST[:0]),
        ArgumentError,
        "; try test=Dataset(inputs, targets)",
    ),
    "run test labels": (
        lambda: go(test=replace(TEST, targets=torch.tensor([0, 1, 2, 7]))),
        ArgumentError,
        "; try classes=train.classes when ",
    ),
    "run test regression": (
        lambda: go(test=replace(TEST, targets=torch.randn(4))),
        ArgumentError,
        "; try callbacks=[evaluate(test, metric=la",
    ),
    "run batch width": (
        lambda: go(clients={"a": rows(6, 5)}),
        ClientError,
        "; try rows of the width and type that the netw",
    ),
    "run batch dtype": (
        lambda: go(clients={"a": replace(DATA, inputs=DATA.inputs.double())}),
        ClientError,
        "; try rows of the width and type that t",
    ),
    "run batch ints": (
        lambda: go(clients={"a": replace(DATA, inputs=(DATA.inputs * 10).long())}),
        ClientError,
        "; try rows of the width and type that",
    ),
    "run labels too high": (
        lambda: go(clients={"a": replace(DATA, targets=DATA.targets + 5)}),
        ClientError,
        "; try a last layer with 8 outputs",
    ),
    "run labels float": (
        lambda: go(clients={"a": replace(DATA, targets=DATA.targets.float())}),
        ClientError,
        "; try targets.long()",
    ),
    "run one hot": (
        lambda: go(clients={"a": replace(DATA, targets=torch.eye(3)[DATA.targets])}),
        ClientError,
        "; try targets.argmax(1), since they ",
    ),
    "run one hot int": (
        lambda: go(clients={"a": replace(DATA, targets=torch.eye(3)[DATA.targets].long())}),
        ClientError,
        "; try targets.argmax(1), ",
    ),
    "run (N, 1)": (
        lambda: go(clients={"a": replace(DATA, targets=DATA.targets[:, None])}),
        ClientError,
        "; try targets[:, 0]",
    ),
    "run normal classes": (
        lambda: go(avg(likelihood=bf.Normal())),
        ClientError,
        "; try Categorical() for labels",
    ),
    "run normal width": (
        lambda: go(avg(likelihood=bf.Normal()), {"a": replace(DATA, targets=torch.randn(6))}),
        ClientError,
        "; try a network ",
    ),
    "run seed": (lambda: go(seed=0.5), ArgumentError, "; try Key(0, 'fit', 3)"),
    "run seed str": (lambda: go(seed="x"), ArgumentError, "; try Key(0, 'fit', 3)"),
    "run seed key": (lambda: go(seed=KEY), ArgumentError, "; try Key(0, 'fit', 3)"),
    "run sampler float": (
        lambda: go(sampler=0.5),
        ArgumentError,
        "; try everyone, fraction(0.5), or (round, name",
    ),
    "run sampler str": (
        lambda: go(sampler="everyone"),
        ArgumentError,
        "; try everyone, fraction(0.5), or (round, name",
    ),
    "run callback": (
        lambda: go(callbacks=evaluate(TEST)),
        ArgumentError,
        "; try callbacks=[evaluate(test)]",
    ),
    "run callbacks str": (
        lambda: go(callbacks=["x"]),
        ArgumentError,
        "; try callbacks=[evaluate(test)]",
    ),
    "run on error": (lambda: go(on_client_error="ignore"), ArgumentError, "; try 'drop'"),
    "run resume str": (
        lambda: go(resume="folder"),
        ArgumentError,
        "; try result.snapshot, or newest(folder)",
    ),
    "run resume result": (
        lambda: go(resume=done()),
        ArgumentError,
        "; try result.snapshot, or newest(folder)",
    ),
    "run resume other": (
        lambda: go(bf.fed_prox(net(), strength=0.1), rounds=3, resume=done().snapshot),
        ArgumentError,
        "; try the run's own ",
    ),
    "run least": (
        lambda: go(least=0),
        ArgumentError,
        "least: expected a whole number >= 1, found 0",
    ),
    "run least many": (
        lambda: go(least=3),
        TooFewClientsError,
        "round 0, stage 'train': 2 of at least 3 client",
    ),
    "run secrets": (
        lambda: go(secrets={"a": b"short", "b": b"short"}),
        ArgumentError,
        "; try secrets.token_bytes(32)",
    ),
    "run epochs": (lambda: go(epochs=3), KeywordError, "; try training=Training(steps=50)"),
    "run pool class": (
        lambda: go(clients=bf.InProcess),
        ArgumentError,
        "; try {'name': data_set, ...}, federate(train,",
    ),
    "InProcess workers": (
        lambda: bf.InProcess(CLIENTS, workers=-1),
        ArgumentError,
        "; try workers=2",
    ),
    "InProcess list": (lambda: bf.InProcess([DATA]), ArgumentError, "; try {'name': data_set}"),
    "fraction": (lambda: bf.fraction(0), ArgumentError, "; try 0.5"),
    "fraction 20": (lambda: bf.fraction(20), ArgumentError, "; try 0.5"),
    "evaluate every": (
        lambda: evaluate(TEST, every=0),
        ArgumentError,
        "evaluate, every: expected a whole number >= 1, found 0",
    ),
    "evaluate tensor": (
        lambda: evaluate(TEST.inputs),
        ArgumentError,
        "; try Dataset(inputs, targets)",
    ),
    "early_stop patience": (
        lambda: early_stop("accuracy", patience=0),
        ArgumentError,
        "patience: expected a whole number >= 1, found 0",
    ),
    "checkpoint every": (
        lambda: checkpoint("x", every=0),
        ArgumentError,
        "checkpoint, every: expected a whole number >= 1, found 0",
    ),
    "score": (lambda: score(done().model, TEST[:0]), ArgumentError, "; try a test set"),
    # result
    "final missing": (
        lambda: done().final("acuracy"),
        ArgumentError,
        "; try a callback that enters it",
    ),
    "final no test": (lambda: done().final("accuracy"), ArgumentError, "; try run(..., test=data)"),
    "posterior": (lambda: done().posterior, ArgumentError, "; try d_turbo_vbi"),
    "scores no posterior": (lambda: done().scores(TEST), ArgumentError, "; try d_turbo_vbi"),
    "svi whole numbers": (
        lambda: go(svi(zeros_and_ones), clients={"a": BINARY}),
        ClientError,
        "; try obs=targets.float() in a model",
    ),
    "scores width": (
        lambda: svi_done().scores(rows(3, 5)),
        DataError,
        "; try rows of the width and type that were fit",
    ),
    "scores labels": (
        lambda: svi_done().scores(replace(TEST, targets=torch.tensor([0, 1, 2, 7]))),
        DataError,
        "; try targets.long()",
    ),
    "scores empty": (
        lambda: svi_done().scores(TEST[:0]),
        ArgumentError,
        "; try a test set, or clients with rows",
    ),
    "scores tuple": (
        lambda: svi_done().scores((TEST.inputs, TEST.targets)),
        ArgumentError,
        "; try Dataset(inputs, targets)",
    ),
    "scores draws": (lambda: svi_done().scores(TEST, draws=0), ArgumentError, "; try 100 draws"),
    "predictive dataset": (
        lambda: svi_done().predictive(TEST),
        ArgumentError,
        "; try data.inputs, or torch.as_tensor(array)",
    ),
    "predictive numpy": (
        lambda: svi_done().predictive(TEST.inputs.numpy()),
        ArgumentError,
        "; try data.inputs, or torch.as_tensor(array)",
    ),
    "k_hat draws": (lambda: svi_done().k_hat(DATA, draws=5), ArgumentError, "; try 1,000 draws"),
    "k_hat no posterior": (lambda: done().k_hat(DATA), ArgumentError, "; try d_turbo_vbi"),
    "to_arviz draws": (
        lambda: svi_done().to_arviz(TEST, draws=0),
        ArgumentError,
        "; try draws=100",
    ),
    "to_arviz tensor": (
        lambda: svi_done().to_arviz(TEST.inputs, draws=1),
        ArgumentError,
        "; try Dataset(inputs, targets)",
    ),
    "belief": (lambda: done().belief, ArgumentError, "; try d_turbo_vbi"),
    "bits": (lambda: done().bits("sideways"), ArgumentError, "; try 'up'"),
    "table": (lambda: done().table(every=0), ArgumentError, "; try every=5"),
    "model width": (
        lambda: done().model(torch.zeros(2, 5)),
        DataError,
        "; try rows of the width and type that were tra",
    ),
    "model numpy": (
        lambda: done().model(np.zeros((2, 4), np.float32)),
        DataError,
        "; try data.inputs, torch.as_tensor(array)",
    ),
    "model dataset": (
        lambda: done().model(TEST),
        DataError,
        "; try data.inputs, torch.as_tensor(array)",
    ),
    "model dtype": (
        lambda: done().model(torch.zeros(2, 4).double()),
        DataError,
        "; try rows of the width and type that were tra",
    ),
    # wrappers
    "robust str": (
        lambda: bf.robust(avg(), "median"),
        ArgumentError,
        "; try Median(), TrimmedMean(0.2)",
    ),
    "robust class": (
        lambda: bf.robust(avg(), bf.federated.Median),
        ArgumentError,
        "; try Median(), TrimmedMean(0.2)",
    ),
    "robust net": (
        lambda: bf.robust(net(), bf.federated.Median()),
        ArgumentError,
        "; try fed_avg(net)",
    ),
    "trimmed": (lambda: bf.federated.TrimmedMean(0.7), ArgumentError, "; try TrimmedMean(0.2)"),
    "krum": (lambda: bf.federated.Krum(-1), ArgumentError, "; try Krum(4, 8)"),
    "gate": (lambda: bf.federated.NormGate(0), ArgumentError, "; try NormGate(2.0)"),
    "private key": (
        lambda: bf.private(avg(), clip=1.0, noise=1.0, participants=2, key=0),
        ArgumentError,
        "; try Key(0, 'purpose')",
    ),
    "private clip": (
        lambda: bf.private(avg(), clip=0, noise=1.0, participants=2, key=KEY),
        ArgumentError,
        "; try 1.0",
    ),
    "private net": (
        lambda: bf.private(net(), clip=1, noise=1.0, participants=2, key=KEY),
        ArgumentError,
        "; try fed_avg(net)",
    ),
    "private participants": (
        lambda: bf.private(avg(), clip=1, noise=1.0, participants=2.5, key=KEY),
        ArgumentError,
        "expected a whole number",
    ),
    "private fraction": (
        lambda: bf.private(avg(), clip=1, noise=1.0, participants=0.5, key=KEY),
        ArgumentError,
        "expected a whole number >= 1, found 0.5",
    ),
    "on_devices": (
        lambda: bf.on_devices(avg(), None),
        ArgumentError,
        "; try Planner(shrunk_shares(...), deadline_s=5",
    ),
    "equal_weights": (lambda: bf.equal_weights(net()), ArgumentError, "; try fed_avg(net)"),
    # links codecs
    "OverTheAir none": (bf.OverTheAir, ArgumentError, "; try OverTheAir(snr_db=25.0)"),
    "OverTheAir both": (
        lambda: bf.OverTheAir(snr_db=1.0, power_w=1.0),
        ArgumentError,
        "; try OverTheAir(snr_db=25.0)",
    ),
    "OverTheAir power": (
        lambda: bf.OverTheAir(snr_db=1.0, power="gbma"),
        ArgumentError,
        "; try Gbma(), or ChannelInversion()",
    ),
    "OverTheAir int": (
        lambda: bf.OverTheAir(noise_w=-1, snr_db=1.0),
        ArgumentError,
        "; try noise_w=1.0",
    ),
    "Digital": (lambda: Digital(max_norm=0), ArgumentError, "; try 1e6"),
    "Cast": (lambda: bf.Cast(12), ArgumentError, "; try Cast(32)"),
    "Cast str": (lambda: bf.Cast("8"), ArgumentError, "; try Cast(32)"),
    "Coded": (lambda: bf.compress.Coded("topk"), ArgumentError, "; try TopK(0.1), Qsgd(8)"),
    "Coded class": (
        lambda: bf.compress.Coded(bf.compress.TopK),
        ArgumentError,
        "; try TopK(0.1), Qsgd(8)",
    ),
    "TopK": (
        lambda: bf.compress.TopK(0),
        ArgumentError,
        "TopK, share: expected a share above 0 and at most 1, found 0; try 0.1",
    ),
    "ErrorFeedback": (
        lambda: bf.compress.ErrorFeedback(8),
        ArgumentError,
        "; try Coded(TopK(0.1))",
    ),
    "PosteriorGrid": (lambda: bf.compress.PosteriorGrid(0), ArgumentError, "; try 0.01"),
    # infer
    "infer net": (
        lambda: bf.infer(net()),
        ArgumentError,
        "; try FactorGraph.from_networkx(graph), or a s",
    ),
    "infer none": (
        lambda: bf.infer(None),
        ArgumentError,
        "; try FactorGraph.from_networkx(graph), or a s",
    ),
    "infer method": (lambda: bf.infer(grid(), method="gibbs"), ArgumentError, "; try 'auto'"),
    "infer tol": (lambda: bf.infer(grid(), tol=-1), ArgumentError, "; try 1e-4"),
    "infer damping": (lambda: bf.infer(grid(), damping=2), ArgumentError, "; try 0.5"),
    "infer evidence": (
        lambda: bf.infer(grid(), torch.zeros(2)),
        ArgumentError,
        "; try 0 where nothing is known",
    ),
    "infer networkx": (
        lambda: bf.infer(networkx.path_graph(3)),
        ArgumentError,
        "; try FactorGraph.from_networkx(graph), or a s",
    ),
    "epsilon": (lambda: bf.epsilon(0, 1, 1e-5), ArgumentError, "; try epsilon(1.0, 100, 1e-5)"),
    "epsilon delta": (lambda: bf.epsilon(1, 1, 2), ArgumentError, "; try epsilon(1.0, 100, 1e-5)"),
    # own methods
    "info tensor": (
        lambda: go(own(local=Loc(info={"loss": torch.tensor(1.0)}))),
        ClientError,
        "; try float(figure) in Fit(info=...)",
    ),
    "info array": (
        lambda: go(own(local=Loc(info={"loss": torch.ones(2)}))),
        ClientError,
        "; try float(figure) in Fit(info=...)",
    ),
    "server state only": (
        lambda: go(own(local=Loc(), server=StateOnly())),
        UpdateError,
        "; try return state, {}",
    ),
    "local returns tree": (
        lambda: go(own(local=Loc(result={"w": torch.zeros(1)}))),
        ClientError,
        "; try Fit(tree, {}, {})",
    ),
    "payload names": (
        lambda: go(own(local=Loc(payload={"w": torch.zeros(1)}))),
        ClientError,
        "; try the names published",
    ),
    "payload list": (
        lambda: go(own(local=Loc(payload=[1]))),
        ClientError,
        "; try Fit(tree, {}, {})",
    ),
    "local class": (lambda: go(own(local=Loc)), ArgumentError, "; try an instance of its class"),
    "compose no net": (
        lambda: bf.compose("own", None),
        ArgumentError,
        "; try mlp([64, 32, 10], Key(0))",
    ),
    "half posterior": (
        lambda: go(own(posterior=lambda s: Half())),
        ArgumentError,
        "; try a property or method constants",
    ),
    "local kind": (
        lambda: go(own(local=Loc(kind="weights"))),
        UpdateError,
        "; try a local whose kind is 'value'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_calls_are_named_where_they_are_made(name):
    call, kind, words = WRONG[name]
    with pytest.raises(kind) as caught:
        call()
    assert type(caught.value) is kind
    assert words in str(caught.value)


def test_there_are_enough_of_them_and_all_are_of_the_package():
    assert len(WRONG) > 200
    # A name that a module does not have is Python's own error.
    assert {
        name for name, (_, kind, _) in WRONG.items() if not issubclass(kind, BayesfedError)
    } == {"fedavg name", "FedAvg name"}


def test_keywords_are_those_of_python_as_well():
    with pytest.raises(TypeError):
        bf.fed_avg(net(), lr=0.1)
    with pytest.raises(
        KeywordError,
        match="fed_prox: expected net, strength, .* missing a required argument: 'strength'",
    ):
        bf.fed_prox(net())
    with pytest.raises(
        KeywordError,
        match=(
            r"Training: expected steps, batch_size, .*, found too many positional arguments; try "
            r"each argument by its name"
        ),
    ):
        bf.Training(1, 2, None, bf.federated.cosine(0.1, 3), None, 3)


def test_numbers_of_numpy_are_numbers():
    assert len(bf.iid(np.int64(6), np.int32(2), KEY)) == 2
    assert len(bf.dirichlet(DATA.targets, 2, np.float64(0.5), KEY)) == 2
