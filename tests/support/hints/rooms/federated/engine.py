"""Messages of runs: their arguments, layers, callbacks, and asynchronous rounds."""

from dataclasses import dataclass, replace

import torch
from torch import nn

import bayesfed as bf
from bayesfed import data
from bayesfed.compress import Coded, ErrorFeedback, Uniform
from bayesfed.federated import (
    Layer,
    early_stop,
    evaluate,
    evidence,
    feedback,
    keep,
    layered,
    score,
)
from tests.house.wrong_calls.given import (
    CLIENTS,
    DATA,
    KEY,
    TEST,
    Half,
    StateOnly,
    avg,
    done,
    go,
    net,
    own,
    rows,
    svi,
)
from tests.support.hints.rooms import doors
from tests.support.logged import Logged
from tests.support.recipes import tiny_recipes

COMPLETE = (
    "bayesfed/federated/engine/arguments.py",
    "bayesfed/federated/engine/assembly.py",
    "bayesfed/federated/engine/callbacks.py",
    "bayesfed/federated/engine/asynchronous",
)
NUMBERS = replace(DATA, targets=DATA.inputs[:, :1].clone())
THREE = torch.eye(3)[TEST.targets].long()
LATER = bf.federated.FedBuff(size=2, concurrency=2, seconds=lambda profile, cost: 2.0)


class Whole(Half):
    """A posterior that has all that is asked of it."""

    constants = axes = draw_prior = None


def believing(posterior):
    """Run a method with this posterior."""
    go(own(posterior=lambda state: posterior()))


def regression(**changes):
    """Run a regression."""
    line = nn.Linear(4, 1)
    go(bf.fed_avg(line, likelihood=bf.Normal(), training=bf.Training(1)), {"a": NUMBERS}, **changes)


def scored(targets, width=3):
    """Run with these targets of the test set."""
    algorithm = bf.fed_avg(bf.mlp([4, width], KEY), training=bf.Training(1))
    go(algorithm, test=replace(TEST, targets=targets))


def coding(up):
    """Return FedAvg with a codec of the up-link."""
    algorithm = avg()
    (phase,) = algorithm.phases

    def assign(*given):
        return replace(phase.assign(*given), up=up)

    return replace(algorithm, phases=(replace(phase, assign=assign),))


@dataclass(frozen=True)
class Moving(Layer):
    """A layer that moves the model after the server's step."""

    owner: str = "moving"

    def step(self, own, moment, total, inner):
        model, figures = inner(total)
        return own, {name: leaf + 1 for name, leaf in model.items()}, figures


class Telling(bf.federated.Digital):
    """A link whose clients send a leaf of another owner."""

    def pack(self, payload, codec, meta, key):
        return super().pack({**payload, "/stranger/w": torch.zeros(1)}, codec, meta, key)


@dataclass(frozen=True)
class Pair:
    """A server that returns state and figures."""

    def step(self, state, reducer, round):
        return state, {}


def later(algorithm=None, buffer=LATER, clients=CLIENTS, **changes):
    """Run asynchronously."""
    go(algorithm or avg(), clients, asynchronous=buffer, on_client_error="drop", **changes)


def known(name, buffer=LATER):
    """Run a small recipe asynchronously."""
    tiny = tiny_recipes()[name]()
    later(tiny.algorithm, buffer, tiny.pool())


def on_devices(make, buffer=LATER):
    """Run a method on devices asynchronously."""
    devices = {name: bf.Device().figures() for name in CLIENTS}
    later(make(avg()), buffer, bf.InProcess(CLIENTS, devices=devices))


LABELLED = bf.Dataset(torch.zeros(4, 5, 3), torch.zeros(4, 5).long())
IGNORED = bf.Dataset(LABELLED.inputs, LABELLED.targets - 100)
CASES = [
    (
        lambda: score(nn.Identity(), IGNORED, likelihood=bf.models.Labels()),
        "a test set",
        lambda: score(nn.Identity(), LABELLED, likelihood=bf.models.Labels()),
    ),
    (
        lambda: go(net()),
        "fed_avg(net): a recipe called with a network",
        lambda: go(bf.fed_avg(net())),
    ),
    (lambda rounds: go(rounds=rounds), 2.5),
    (lambda: go(sampler=0.5), "everyone", lambda: go(sampler=bf.federated.everyone)),
    (lambda: go(sampler=0.5), "fraction(0.5)", lambda: go(sampler=bf.fraction(0.5))),
    (
        lambda: go(sampler=0.5),
        "(round, names, key) -> names",
        lambda: go(sampler=lambda round, names, key: names),
    ),
    (
        lambda: go(resume="folder", rounds=3),
        "result.snapshot",
        lambda: go(resume=done().snapshot, rounds=3),
    ),
    (lambda: go(clients=[DATA]), "{'name': data_set, ...}", lambda: go(clients={"name": DATA})),
    (
        lambda: go(clients=DATA),
        "federate(train, iid(len(train), 10, key))",
        lambda: go(clients=bf.federate(rows(20), bf.iid(20, 10, KEY))),
    ),
    (lambda: go(clients=DATA), "a pool", lambda: go(clients=bf.InProcess(CLIENTS))),
    (lambda clients: go(clients=clients), {0: DATA}),
    (
        lambda: believing(Half),
        "a property or method constants",
        lambda: believing(Whole),
    ),
    (
        lambda: doors.wide(doors.CODES),
        "labels.unique(return_inverse=True)[1] of all rows",
        lambda: doors.wide(
            replace(doors.CODES, targets=doors.CODES.targets.unique(return_inverse=True)[1])
        ),
    ),
    # The test set.
    (lambda test: go(test=test), DATA.inputs),
    (
        lambda: go(test={"a": TEST, "b": TEST}),
        "test=data.concatenated(list(test.values()))",
        lambda: go(test=data.concatenated([TEST, TEST])),
    ),
    (
        lambda: go(test={"a": TEST}),
        "Result.personal_scores(test)",
        lambda: done().personal_scores({"a": TEST}),
    ),
    (
        lambda: regression(test=NUMBERS),
        "callbacks=[evaluate(test, metric='mse')]",
        lambda: regression(callbacks=[evaluate(NUMBERS, metric="mse")]),
    ),
    (
        lambda: go(test=rows(4, 5)),
        "the test set prepared as the rows are",
        lambda: go(test=rows(4, 4)),
    ),
    (
        lambda: scored(torch.tensor([0, 1, 2, 7])),
        "a last layer with 8 outputs",
        lambda: scored(torch.tensor([0, 1, 2, 7]), 8),
    ),
    (lambda: scored(THREE), "targets.argmax(1)", lambda: scored(THREE.argmax(1))),
    # Layers.
    (
        lambda: go(coding(ErrorFeedback(Coded(Uniform(4))))),
        "layered(algorithm, feedback())",
        lambda: go(layered(coding(Coded(Uniform(4))), feedback())),
    ),
    (
        lambda: go(layered(bf.stc(net(), share=0.5), Moving())),
        "a layer that moves the model, around a method that sends it whole",
        lambda: go(layered(avg(), Moving())),
    ),
    (
        lambda: go(own(server=StateOnly())),
        "return state, {}",
        lambda: go(own(server=Pair())),
    ),
    (
        lambda: go(layered(avg(link=Telling()), Logged())),
        "the method of this run",
        lambda: go(layered(avg(), Logged())),
    ),
    # Callbacks.
    (
        lambda: go(callbacks=[evidence(DATA, draws=2)]),
        "federated_svi",
        lambda: list(
            map(
                evidence(DATA, draws=2),
                bf.federated.rounds(svi(), bf.InProcess(CLIENTS), rounds=1),
            )
        ),
    ),
    (
        lambda: go(callbacks=[early_stop("acuracy", patience=2)]),
        "evaluate(test, name='acuracy') before it",
        lambda: go(callbacks=[evaluate(TEST, name="acuracy"), early_stop("acuracy", patience=2)]),
    ),
    (
        lambda: go(callbacks=[keep("model/1.bais", {})]),
        "'model/1.bias'",
        lambda: go(callbacks=[keep("model/1.bias", {})]),
    ),
    (
        lambda: go(callbacks=[keep("quite another thing", {})]),
        "a leaf of the state",
        lambda: go(callbacks=[keep("model/1.weight", {})]),
    ),
    # Asynchronous rounds.
    (
        lambda: later(buffer=bf.federated.FedBuff(2, 2)),
        "timed(algorithm, macs)",
        lambda: on_devices(
            lambda algorithm: bf.timed(algorithm, 100.0), bf.federated.FedBuff(2, 2)
        ),
    ),
    (
        lambda: later(buffer=bf.federated.FedBuff(2, 2)),
        "FedBuff(seconds=lambda profile, cost: ...)",
        later,
    ),
    (lambda: known("ensemble"), "fed_avg, stc, federated_svi", lambda: known("stc")),
    (
        lambda: later(buffer=replace(LATER, concurrency=9)),
        "FedBuff(2, 2)",
        later,
    ),
    (lambda: later(sampler=bf.fraction(0.5)), "no sampler", later),
    (lambda clients: later(clients=clients), bf.federated.Ranks(CLIENTS, mixed=True)),
    (
        lambda: known("scaffold"),
        "fed_avg, fed_prox, stc",
        lambda: [known(name) for name in ("fed_avg", "fed_prox", "stc")],
    ),
    (
        lambda: known("scaffold"),
        "federated_svi with PVI",
        lambda: known("federated_svi pvi", replace(LATER, staleness="constant")),
    ),
    (
        lambda: known("federated_svi pvi"),
        "FedBuff(..., staleness='constant')",
        lambda: known("federated_svi pvi", replace(LATER, staleness="constant")),
    ),
    (
        lambda: on_devices(lambda algorithm: bf.timed(algorithm, 100.0, deadline_s=5.0)),
        "timed(algorithm, macs)",
        lambda: on_devices(lambda algorithm: bf.timed(algorithm, 100.0)),
    ),
    (lambda: known("fed_avg on air"), "the link Digital()", lambda: known("fed_avg")),
]
