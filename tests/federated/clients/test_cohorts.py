"""Cohorts: clients whose steps are batched end where they would one by one, and fail alone; what
cannot be batched says so.
"""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesfed as bf
from bayesfed.compress import Coded, ErrorFeedback, Uniform
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, ClientError
from bayesfed.federated import feedback, layered, rounds
from bayesfed.federated.clients.cohorts import MOST, PARAMETERS, WORK, pays
from bayesfed.federated.core.owners import owned
from tests.conftest import tree_equal

WORK_OF = bf.Training(steps=8, batch_size=8)
ROUNDS = 3


@pytest.fixture(scope="module")
def clients(digits):
    """Ten clients of 8 to 17 rows, one of 5, one of none."""
    train, _ = digits
    parts = {f"client-{k:02d}": train[slice(40 * k, 40 * k + 8 + k)] for k in range(10)}
    return {**parts, "few": train[slice(1000, 1005)], "none": train[slice(0, 0)]}


@pytest.fixture
def net():
    return bf.mlp([64, 16, 10], bf.Key(0, "net"))


def run(algorithm, clients, count=ROUNDS, pool=None, **options):
    pool = pool or {}
    crew = bf.InProcess(clients, **pool)
    return list(rounds(algorithm, crew, rounds=count, **options)), crew


def apart(left, right):
    assert left.keys() == right.keys()
    return max(float((leaf - right[name]).abs().max()) for name, leaf in left.items())


def norms(net):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 16),
        nn.BatchNorm1d(16, track_running_stats=False),
        nn.ReLU(),
        nn.Linear(16, 10),
    )


class Branches(nn.Module):
    """A network that looks at values, which cannot be batched."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, inputs):
        return self.net(inputs) if float(inputs.sum()) > -1.0 else self.net(-inputs)


# The same numbers


RECIPES = {
    "fed_avg": lambda net: bf.fed_avg(net, training=WORK_OF),
    "momentum and decay": lambda net: bf.fed_avg(
        net, training=replace(WORK_OF, optimiser=bf.Sgd(0.05, momentum=0.9, weight_decay=0.01))
    ),
    "schedule": lambda net: bf.fed_avg(
        net, training=replace(WORK_OF, schedule=bf.federated.cosine(0.1, ROUNDS))
    ),
    "adam": lambda net: bf.fed_avg(net, training=replace(WORK_OF, optimiser=bf.Adam(1e-3))),
    "fed_prox": lambda net: bf.fed_prox(net, strength=0.1, training=WORK_OF),
    "convolutions": lambda net: bf.fed_avg(
        nn.Sequential(
            nn.Flatten(),
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(144, 10),
        ),
        training=bf.Training(steps=4, batch_size=8),
    ),
    "a parameter out of use": lambda net: bf.fed_avg(
        Spare(net), training=replace(WORK_OF, optimiser=bf.Sgd(0.05, weight_decay=0.1))
    ),
    "tied and frozen": lambda net: bf.fed_avg(tied(net), training=WORK_OF),
}


class Spare(nn.Module):
    """A network with a parameter that no batch reaches: it has no gradient, and does not decay."""

    def __init__(self, net):
        super().__init__()
        self.net, self.spare = net, nn.Parameter(torch.ones(3))

    def forward(self, inputs):
        return self.net(inputs)


def tied(net):
    one = nn.Linear(16, 16)
    layers = list(net)
    layers[1].bias.requires_grad_(False)
    return nn.Sequential(*layers[:-1], one, nn.Tanh(), one, layers[-1])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_cohort_ends_where_its_clients_would_alone(net, clients, recipe):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        algorithm = RECIPES[recipe](net)
    alone, _ = run(algorithm, clients)
    at_once, pool = run(algorithm, clients, pool={"cohort": 20})
    for left, right in zip(alone, at_once, strict=True):
        assert apart(left.state, right.state) <= 1e-6
        assert left.clients.keys() == right.clients.keys()
        assert all(
            abs(left.clients[name]["loss"] - right.clients[name]["loss"]) <= 1e-5
            for name in left.clients
        )
        assert [(row.client, row.direction, row.bits) for row in left.rows] == [
            (row.client, row.direction, row.bits) for row in right.rows
        ]
    assert not tree_equal(algorithm.initial, at_once[-1].state)
    assert pool.cohorts.turns == {
        "train": {"batched": 30, "one by one: no others of its shape": 3, "one by one: no rows": 3}
    }
    assert {
        name: info.get("cohort")
        for name, info in at_once[-1].clients.items()
        if name != "client-00"
    } == {**{f"client-{k:02d}": 10.0 for k in range(1, 10)}, "few": None, "none": None}


def test_regressions_are_batched(clients):
    parts = {
        name: Dataset(data.inputs, data.inputs.flatten(1).sum(1, keepdim=True) / 10)
        for name, data in clients.items()
    }
    algorithm = bf.fed_avg(
        bf.mlp([64, 8, 1], bf.Key(0, "net")),
        likelihood=bf.Normal(1.0),
        training=bf.Training(steps=5, batch_size=8, optimiser=bf.Sgd(0.01)),
    )
    alone, _ = run(algorithm, parts)
    at_once, pool = run(algorithm, parts, pool={"cohort": 20})
    assert apart(alone[-1].state, at_once[-1].state) <= 1e-6
    assert pool.cohorts.turns["train"]["batched"] == 30


def test_large_cohorts_come_in_parts_and_resume_to_the_same_bits(net, clients):
    algorithm = bf.fed_avg(net, training=WORK_OF)
    whole, pool = run(algorithm, clients, pool={"cohort": 4}, sampler=bf.fraction(0.75))
    assert all(info["cohort"] <= 4 for info in whole[-1].clients.values() if "cohort" in info)
    assert pool.cohorts.turns["train"]["batched"] > 0
    first, _ = run(algorithm, clients, 1, pool={"cohort": 4}, sampler=bf.fraction(0.75))
    again, _ = run(
        algorithm, clients, pool={"cohort": 4}, sampler=bf.fraction(0.75), resume=first[-1].snapshot
    )
    assert tree_equal(whole[-1].state, again[-1].state)


# Codecs, memories, secrets


def test_error_feedback_keeps_what_was_not_sent(net, clients):
    base = bf.fed_paq(net, training=WORK_OF)
    (phase,) = base.phases

    def coding(up):
        def assign(state, round, profile, key):
            return replace(phase.assign(state, round, profile, key), up=up)

        return replace(base, phases=(replace(phase, assign=assign),))

    with pytest.raises(ArgumentError, match=r"a plain codec.*try layered\(algorithm, feedback"):
        run(coding(ErrorFeedback(Coded(Uniform(4)))), clients, 1)
    algorithm = layered(coding(Coded(Uniform(4))), feedback())
    alone, _ = run(algorithm, clients, 1)
    at_once, _ = run(algorithm, clients, 1, pool={"cohort": 20})
    # A last bit may round a code the other way; what was sent and what is kept add up to what was
    # trained.
    assert apart(_complete(alone[0], clients), _complete(at_once[0], clients)) <= 1e-6
    later, _ = run(algorithm, clients, pool={"cohort": 20})
    assert not any(report.refused for report in later)
    assert later[-1].snapshot.memories.keys() == alone[0].snapshot.memories.keys()


def _complete(report, clients):
    memories, total = report.snapshot.memories, sum(len(data) for data in clients.values())
    assert memories
    state = dict(report.state)
    for client, memory in memories.items():
        for name, leaf in owned(memory, "feedback/error").items():
            base = f"model/{name}"
            state[base] = state[base] + leaf * (len(clients[client]) / total)
    return state


def test_keyed_messages(net, clients):
    secrets = {name: name.encode().ljust(16, b".") for name in clients}
    algorithm = bf.fed_avg(net, training=WORK_OF)
    plain, _ = run(algorithm, clients, pool={"cohort": 20})
    keyed, _ = run(algorithm, clients, pool={"cohort": 20, "secrets": secrets}, secrets=secrets)
    assert tree_equal(plain[-1].state, keyed[-1].state)
    wrong = secrets | {"client-03": b"another secret.."}
    reports, _ = run(
        algorithm,
        clients,
        pool={"cohort": 20, "secrets": wrong},
        secrets=secrets,
        on_client_error="drop",
    )
    assert all(
        report.refused.keys() == {"client-03"} and "decode" in report.refused["client-03"]
        for report in reports
    )


# Failures


@pytest.mark.parametrize("policy", ["diverges", "out of range"])
def test_a_client_fails_alone(net, clients, policy):
    bad, parts = "client-04", dict(clients)
    data, optimiser = clients[bad], bf.Sgd(0.05)
    parts[bad] = (
        Dataset(data.inputs * 1e30, data.targets)
        if policy == "diverges"
        else Dataset(data.inputs, data.targets + 10)
    )
    algorithm = bf.fed_avg(net, training=replace(WORK_OF, optimiser=optimiser))
    alone, _ = run(algorithm, parts, on_client_error="drop")
    at_once, pool = run(algorithm, parts, pool={"cohort": 20}, on_client_error="drop")
    for left, right in zip(alone, at_once, strict=True):
        assert left.refused == right.refused
        assert list(right.refused) == [bad]
        assert apart(left.state, right.state) <= 1e-6
    words = {"diverges": "expected a finite loss", "out of range": "Categorical labels"}[policy]
    assert words in at_once[0].refused[bad]
    assert pool.cohorts.turns["train"]["batched"] == 30
    with pytest.raises(ClientError, match=bad):
        run(algorithm, parts, pool={"cohort": 20})


# What cannot be batched


OBSTACLES = {
    "dropout": (
        lambda net: bf.fed_avg(nn.Sequential(net, nn.Dropout(0.2)), training=WORK_OF),
        "dropout",
    ),
    "batch norm": (lambda net: bf.fed_avg(norms(net), training=WORK_OF), "batch norm"),
    "own classes": (
        lambda net: bf.fed_avg(net, masked=True, training=WORK_OF),
        "LocalClasses does more than gradient steps",
    ),
    "posterior": (
        lambda net: bf.d_turbo_vbi(
            bf.declare(net), observations=130, training=bf.Training(steps=2)
        ),
        "Scored does more than gradient steps",
    ),
    "branches": (lambda net: bf.fed_avg(Branches(net), training=WORK_OF), "vmap"),
}


@pytest.mark.parametrize("case", OBSTACLES)
def test_what_cannot_be_batched_is_refused_or_goes_on_alone_and_says_so(net, clients, case):
    make, words = OBSTACLES[case]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        algorithm = make(net)
    with pytest.raises(ArgumentError, match=words):
        run(algorithm, clients, 1, pool={"cohort": 8})
    alone, _ = run(algorithm, clients, 2)
    auto, pool = run(algorithm, clients, 2, pool={"cohort": "auto"})
    assert tree_equal(alone[-1].state, auto[-1].state)
    assert not any("cohort" in info for report in auto for info in report.clients.values())
    (counted,) = pool.cohorts.turns.values()
    assert (
        sum(count for reason, count in counted.items() if words in reason) == counted.total() == 24
    )


@pytest.mark.parametrize("cohort", [0, -1, True, 2.5, "all", None])
def test_a_cohort_is_a_number_of_clients_or_auto(clients, cohort):
    with pytest.raises(ArgumentError, match="cohort"):
        bf.InProcess(clients, cohort=cohort)


@pytest.mark.parametrize("kind", ["process", "thread"])
def test_workers_and_cohorts_exclude_each_other(clients, kind):
    with pytest.raises(ArgumentError, match="a cohort is one process"):
        bf.InProcess(clients, workers=2, kind=kind, cohort="auto")


# The choice by measurement


def test_by_default_clients_train_one_by_one(net, clients):
    reports, pool = run(bf.fed_avg(net, training=WORK_OF), clients, 1)
    assert pool.cohorts is None
    assert not any("cohort" in info for info in reports[0].clients.values())


def test_auto_batches_small_networks_and_enough_clients(net, clients):
    alone, _ = run(bf.fed_avg(net, training=WORK_OF), clients)
    reports, pool = run(bf.fed_avg(net, training=WORK_OF), clients, pool={"cohort": "auto"})
    assert pool.cohorts.turns["train"]["batched"] == 30
    assert apart(alone[-1].state, reports[-1].state) <= 1e-6
    few = {name: clients[name] for name in list(clients)[:3]}
    reports, pool = run(bf.fed_avg(net, training=WORK_OF), few, pool={"cohort": "auto"})
    assert tree_equal(run(bf.fed_avg(net, training=WORK_OF), few)[0][-1].state, reports[-1].state)
    assert pool.cohorts.turns == {
        "train": Counter(
            {
                (
                    "one by one: nothing is won by batching 3 clients of 1,210 parameters and "
                    "8 rows a step"
                ): 9
            }
        )
    }


def test_auto_leaves_large_networks_alone():
    assert pays(2410, 16, 100)
    assert not pays(2410, 16, 2)
    assert not pays(269_322, 64, MOST)
    assert not pays(PARAMETERS + 1, 1, MOST)
    assert not pays(1000, WORK // 1000 + 1, MOST)
