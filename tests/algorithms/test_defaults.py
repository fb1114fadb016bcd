"""Recipes at their default arguments learn in as many rounds as FedAvg does."""

from __future__ import annotations

import pytest
import torch
from sklearn.datasets import load_wine

import bayesfed as bf
from bayesfed import algorithms as shipped
from bayesfed.algorithms.wrappers.on_devices import Planner
from bayesfed.compress.budgets import fit_flexible
from bayesfed.federated import score
from bayesfed.keys import Key
from bayesfed.models import channel_graph, shrunk_shares
from bayesfed.trees import parameters


def wine():
    """Return rows of training and of test: three kinds by 13 measurements."""
    found = load_wine()
    order = torch.randperm(len(found.target), generator=Key(0, "wine").generator()).numpy()
    inputs = (found.data - found.data.mean(0)) / found.data.std(0)
    rows = bf.Dataset(inputs.astype("float32"), found.target)[torch.as_tensor(order)]
    return rows[60:], rows[:60]


ROWS = {"wine": wine, "digits": lambda: bf.digits(Key(0, "digits"))}


def net(train):
    classes = 1 + int(train.targets.max())
    return bf.mlp([train.inputs[0].numel(), 64, 64, 64, classes], Key(0, "net"))


def planner(train):
    sample = train.inputs[:1]
    sizes = shrunk_shares(net(train), channel_graph(net(train), sample), sample, [1.0])
    return Planner(tuple(sizes), 5.0, (1 / 15, 1.0))


def fed_hq(train):
    levels = fit_flexible([parameters(net(train))], Key(0, "levels"), shares=(1.0,))
    return shipped.fed_hq(net(train), planner(train), levels)


MADE = {
    **{
        name: lambda train, name=name: getattr(shipped, name)(net(train))
        for name in ("stc", "fed_l1", "fed_prune", "beta_pred_bayes")
    },
    "anycost_fl": lambda train: bf.anycost_fl(net(train), train.inputs[:1], deadline_s=5.0),
    "on_devices": lambda train: bf.on_devices(bf.stc(net(train)), planner(train)),
    "fed_hq": fed_hq,
    "fed_rlr": lambda train: bf.fed_rlr(net(train), {"1": 8, "3": 8, "5": 8}),
}


def accuracy(make, train, test, rounds):
    clients = bf.federate(train, bf.dirichlet(train.targets, 4, 1.0, Key(0, "partition")))
    devices = bf.fleet(sorted(clients), Key(0, "fleet"))
    pool = bf.InProcess(clients, devices={name: one.figures() for name, one in devices.items()})
    return score(bf.run(make(train), pool, rounds=rounds, progress=False).model, test)


@pytest.mark.parametrize(
    ("rows", "rounds", "name"),
    [
        ("wine", 8, "stc"),
        *(pytest.param("digits", 10, name, marks=pytest.mark.slow) for name in MADE),
    ],
)
def test_a_recipe_at_its_defaults_is_near_fed_avg(rows, rounds, name):
    train, test = ROWS[rows]()
    base = accuracy(lambda train: bf.fed_avg(net(train)), train, test, rounds)
    assert accuracy(MADE[name], train, test, rounds) >= base - 0.05
