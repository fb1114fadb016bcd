"""Messages of wrappers: privacy, robust rules, devices, optimisers, chosen priors."""

import torch

import bayesfed as bf
from bayesfed.algorithms.wrappers.chosen_prior import PRECISIONS, ROUNDS, TakeScore
from bayesfed.algorithms.wrappers.noising import Private
from bayesfed.algorithms.wrappers.on_devices import Planner
from bayesfed.federated import FedAdam, Krum, fraction
from bayesfed.federated.core import Moment, Update
from bayesfed.federated.core.sums import Sum
from tests.house.wrong_calls.given import DATA, ONE, avg, go, net, svi
from tests.security import test_privacy_conditions as conditions
from tests.security.test_privacy_conditions import plain, ran, rephased, sampled
from tests.support.recipes import adapted, planner

FILES = (
    "accounting",
    "averaged",
    "chosen_prior",
    "local_privacy",
    "noising",
    "on_devices",
    "private",
    "robust",
    "server_optimised",
    "timed",
)
COMPLETE = tuple(f"bayesfed/algorithms/wrappers/{name}.py" for name in FILES)
MOMENT = Moment(0, {}, lambda model, round, version: model)
LEAF = {"w": torch.ones(2)}
FOUR = {f"c{number}": DATA for number in range(4)}
SCORED = {"prior/scores": torch.full((len(PRECISIONS),), torch.inf)}


def private(algorithm=None, **changes):
    """Make a method private, of four clients, without a report."""
    return conditions.private(algorithm, **{"delta": None, **changes})


def promised(**changes):
    """Make a method private that reports epsilon."""
    return conditions.private(**changes)


def changed(kind, leaves):
    """Step on a sum of fewer clients than were to take part, of leaves that the state lacks."""
    layer = Private(clip=1.0, participants=4, kind=kind)
    layer.step({}, MOMENT, Update(leaves, 1.0, kind), lambda total: ({}, {}))


def admitted(weight):
    """Take one update of a weight."""
    Private(clip=1.0).admit({}, Update(LEAF, weight, "delta"), MOMENT)


def continued(**changes):
    """Go on with a run under other settings."""
    (before,) = ran(promised(noise=0.1), rounds=1)
    ran(promised(), resume=before.snapshot, resume_anyway=True)


def scored():
    """Score the last precision without any held-out row."""
    number = len(PRECISIONS) * ROUNDS - 1
    reducer = Sum()
    reducer.add("a", Update({"nll": torch.zeros(2, dtype=torch.float64)}, 1.0, "moments"))
    TakeScore(lambda state: None).step(SCORED, reducer, number)


def ditto(network, **options):
    """Return Ditto."""
    return bf.ditto(network, strength=0.1, **options)


def prior(precision, make=bf.fed_avg):
    """Train under a prior of this precision."""
    work = bf.Training(steps=1, prior_precision=precision, observations=len(DATA))
    return make(net(), training=work)


def krum(byzantine, clients=4):
    """Keep the updates that lie closest together."""
    parts = {f"c{number}": DATA for number in range(clients)}
    go(bf.robust(avg(), Krum(byzantine=byzantine)), parts)


def optimised(algorithm, optimiser=None):
    """Step by an optimiser at the server."""
    bf.server_optimised(algorithm, FedAdam(0.01) if optimiser is None else optimiser)


def normed(buffers):
    """Return FedAvg of a network with running statistics."""
    norm = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    return bf.fed_avg(norm, buffers=buffers, training=ONE)


def flexible(make=bf.flex_lora):
    """Return a method of adapters of several ranks."""
    return make(adapted(), [2, 1], bf.fixed(["a", "b"], 2), training=ONE)


CASES = [
    (
        lambda: bf.algorithms.epsilon(1.0, 3, 1e-5, participants=20),
        "participants=20, population=1000",
        lambda: bf.algorithms.epsilon(1.0, 3, 1e-5, participants=20, population=1000),
    ),
    (
        lambda: ran(promised(delta=0.3)),
        "delta=0.03",
        lambda: ran(promised(delta=0.03)),
    ),
    (lambda: bf.averaged(svi(), begin=0), "fed_avg", lambda: bf.averaged(avg(), begin=0)),
    (
        lambda: bf.averaged(svi(), begin=0),
        "fed_lora",
        lambda: bf.averaged(bf.fed_lora(adapted()), begin=0),
    ),
    (
        lambda: bf.averaged(svi(), begin=0),
        "fs_lora",
        lambda: bf.averaged(flexible(bf.fs_lora), begin=0),
    ),
    (
        lambda: prior("auto", ditto),
        "prior_precision=0.3",
        lambda: prior(0.3, ditto),
    ),
    (scored, "prior_precision=0.3", lambda: go(prior(0.3))),
    (
        lambda: admitted(3.0),
        "the update of one client",
        lambda: admitted(1.0),
    ),
    (
        lambda: ran(private(conditions.by_entry())),
        "a view that covers everything",
        lambda: ran(private()),
    ),
    (
        lambda: ran(private(participants=3)),
        "participants=4",
        lambda: ran(private(participants=4)),
    ),
    (
        lambda: ran(private(participants=3)),
        "a sampler of fewer",
        lambda: ran(private(participants=3), sampler=fraction(0.5)),
    ),
    (
        lambda: changed("value", LEAF),
        "a method that sends changes",
        lambda: changed("delta", LEAF),
    ),
    (lambda clip: private(clip=clip), float("inf")),
    (
        lambda: promised(algorithm=svi()),
        "federated_svi(..., fusion=SummedGradients())",
        lambda: ran(promised(algorithm=svi(fusion=bf.SummedGradients(), observations=24)), FOUR),
    ),
    (lambda: promised(algorithm=svi()), "fed_avg", lambda: promised(algorithm=avg())),
    (
        lambda: promised(algorithm=svi()),
        "fed_lora",
        lambda: promised(algorithm=bf.fed_lora(adapted())),
    ),
    (lambda beta: Planner(planner().sizes, 5.0, beta), (1.0, 0.5)),
    (lambda delta: private(population=4, delta=delta), None),
    (
        lambda: ran(rephased(promised(), layers=())),
        "the method as it was made, alone",
        lambda: ran(promised()),
    ),
    (continued, "a new run", lambda: ran(promised())),
    (
        lambda: ran(sampled(population=9), sampler=fraction(0.5)),
        "population=4",
        lambda: ran(sampled(population=4), sampler=fraction(0.5)),
    ),
    (
        lambda: ran(sampled(), sampler=fraction(0.75)),
        "sampler=fraction(2 / 4)",
        lambda: ran(sampled(), sampler=fraction(2 / 4)),
    ),
    (
        lambda: ran(sampled(algorithm=plain(keeps=True)), sampler=fraction(0.5)),
        "private(...) without population",
        lambda: ran(promised(algorithm=plain(keeps=True), participants=2), sampler=fraction(0.5)),
    ),
    (
        lambda: ran(sampled(algorithm=plain(keeps=True)), sampler=fraction(0.5)),
        "a method and codec without memory",
        lambda: ran(sampled(algorithm=plain(keeps=False)), sampler=fraction(0.5)),
    ),
    (lambda: krum(1), "fewer byzantine", lambda: krum(0)),
    (lambda: krum(1), "more a round", lambda: krum(1, clients=5)),
    (
        lambda: optimised(bf.ensemble([avg(), avg()])),
        "fed_avg",
        lambda: optimised(avg()),
    ),
    (
        lambda: optimised(normed("mean")),
        "buffers='local'",
        lambda: optimised(normed("local")),
    ),
    (
        lambda: optimised(flexible()),
        "FedAvgM(1.0, 0.5)",
        lambda: optimised(flexible(), bf.FedAvgM(1.0, 0.5)),
    ),
]
