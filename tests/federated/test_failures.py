"""Failing, hostile and misconfigured clients: named, refused, and never the end of a round that may
go on.
"""

import itertools
import os
from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.algorithms.d_turbo_vbi import ramp
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError, ClientError, DataError
from bayesfed.errors.plurals import plural
from bayesfed.federated import (
    Descent,
    Digital,
    Sgd,
    checkpoint,
    cosine,
    early_stop,
    fraction,
    inverse,
    keep,
    rounds,
    score,
)
from tests.federated.test_engine import WORK, final, tree_equal


def poisoned(clients):
    data = clients["client-002"]
    return {**clients, "client-002": Dataset(data.inputs, data.targets + 7)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_failing_client_is_named_and_can_be_dropped(net, clients, workers):
    with bf.InProcess(poisoned(clients), workers=workers) as pool:
        with pytest.raises(
            ClientError,
            match=r"client 'client-002', round 0, stage 'fit': .* labels: expected 0 to 9",
        ):
            final(bf.fed_avg(net, training=WORK), pool)
        report = final(bf.fed_avg(net, training=WORK), pool, on_client_error="drop")
    assert set(report.refused) == {"client-002"}
    assert "last layer with" in report.refused["client-002"]
    without = {name: data for name, data in clients.items() if name != "client-002"}
    assert tree_equal(
        report.state, final(bf.fed_avg(net, training=WORK), bf.InProcess(without)).state
    )


class Dies:
    """A local that takes its process down where the data say so."""

    kind = "value"

    def __init__(self, honest):
        self.honest = honest

    def fit(self, message, memory, data, key, options):
        if int(data.targets.min()) >= 7:
            os._exit(1)
        return self.honest.fit(message, memory, data, key, options)


def test_a_worker_that_dies_costs_its_own_client_only(net, clients):
    honest = bf.fed_avg(net, training=WORK)
    algorithm = replace(
        honest, phases=(replace(honest.phases[0], local=Dies(honest.phases[0].local)),)
    )
    with bf.InProcess(poisoned(clients), workers=2) as pool:
        report = final(algorithm, pool, on_client_error="drop")
        with pytest.raises(
            ClientError,
            match="client 'client-002', round 0, stage 'worker': its worker process died",
        ):
            final(algorithm, pool)
    assert list(report.refused) == ["client-002"]
    without = {name: data for name, data in clients.items() if name != "client-002"}
    assert tree_equal(report.state, final(honest, bf.InProcess(without)).state)


class Hostile:
    """A link on which one client sends something else."""

    def __init__(self, change):
        self.change, self.honest = change, Digital(max_norm=1e4)

    def pack(self, payload, codec, meta, key):
        message = self.honest.pack(payload, codec, meta, key)
        return self.change(payload, codec, meta, key) if meta["client"] == "client-001" else message

    def collect(self, arrivals, reducer, key):
        return self.honest.collect(arrivals, reducer, key)


def sending(change):
    def pack(payload, codec, meta, key):
        name = next(iter(payload))
        return bf.Cast(32).encode({**payload, name: change(payload[name])}, meta, key)

    return pack


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (sending(lambda leaf: 1e30 * torch.ones_like(leaf)), "norm <= 10000"),
        (sending(lambda leaf: leaf[:1]), "expected shape"),
        (sending(lambda leaf: leaf[None]), "expected shape"),
        (sending(lambda leaf: leaf.T), "expected shape"),
        (sending(lambda leaf: leaf[:0]), "expected shape"),
        (lambda payload, codec, meta, key: codec.encode({}, meta, key), "no such leaf"),
        (
            lambda payload, codec, meta, key: codec.encode(
                {**payload, "x": torch.ones(1)}, meta, key
            ),
            "an extra leaf",
        ),
        (lambda payload, codec, meta, key: codec.encode(payload, meta, key)[:-3], "digest"),
        (lambda payload, codec, meta, key: b"\x80\x04\x95 a pickle, or so it says", "magic"),
        (
            lambda payload, codec, meta, key: codec.encode(
                payload, {**meta, "client": "client-000"}, key
            ),
            "one of client 'client-001'",
        ),
        (
            lambda payload, codec, meta, key: codec.encode(payload, {**meta, "round": 7}, key),
            "one of round 0",
        ),
    ],
)
def test_a_hostile_update_is_refused_and_the_round_goes_on(net, clients, change, words):
    honest = bf.fed_avg(net, training=WORK)
    phase = replace(honest.phases[0], link=Hostile(change))
    algorithm = replace(honest, phases=(phase,))
    report = final(algorithm, bf.InProcess(clients), rounds=1, on_client_error="drop")
    assert list(report.refused) == ["client-001"]
    assert words in report.refused["client-001"]
    without = {name: data for name, data in clients.items() if name != "client-001"}
    assert tree_equal(report.state, final(honest, bf.InProcess(without), rounds=1).state)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_bad_weights_are_refused(net, clients, weight):
    honest = bf.fed_avg(net, training=WORK)
    assign = honest.phases[0].assign

    def bad(state, round, profile, key):
        plan = assign(state, round, profile, key)
        return replace(plan, weight=weight) if profile.name == "client-003" else plan

    algorithm = replace(honest, phases=(replace(honest.phases[0], assign=bad),))
    report = final(algorithm, bf.InProcess(clients), rounds=1, on_client_error="drop")
    assert "a finite number >= 0" in report.refused["client-003"]


def test_a_diverged_client_says_so(net, clients):
    with pytest.raises(
        ClientError,
        match=r"round 0, stage 'fit': local training: expected a finite loss, found nan",
    ):
        final(
            bf.fed_avg(net, training=replace(WORK, optimiser=bf.Sgd(1e20))), bf.InProcess(clients)
        )
    numbers = {
        name: bf.Dataset(rows.inputs, rows.inputs.flatten(1)[:, :1])
        for name, rows in clients.items()
    }
    shape = [numbers["client-001"].inputs[0].numel(), 1]
    sure = bf.fed_avg(
        bf.mlp(shape, bf.Key(0)),
        likelihood=bf.Normal(0.01),
        training=replace(WORK, optimiser=bf.Sgd(1e20)),
    )
    with pytest.raises(
        ClientError,
        match=(
            r"local training: expected a finite loss, found (nan|inf); try a smaller learning "
            r"rate"
        ),
    ):
        final(sure, bf.InProcess(numbers))
    with pytest.raises(ClientError, match="no client is left"):
        final(
            bf.fed_avg(net, training=replace(WORK, optimiser=bf.Sgd(1e20))),
            bf.InProcess(clients),
            on_client_error="drop",
        )


def test_wrong_shapes_are_the_clients_own_failure(net, clients):
    bad = {"a": Dataset(torch.ones(5, 9), torch.zeros(5).long()), **clients}
    with pytest.raises(
        ClientError, match=r"client 'a', round 0, stage 'fit': local step: .*mat1 and mat2"
    ):
        final(bf.fed_avg(net, training=WORK), bf.InProcess(bad))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda a, p: final(a, p, rounds=0), ArgumentError, "more than the 0 rounds already made"),
        (
            lambda a, p: final(a, p, on_client_error="ignore"),
            ArgumentError,
            "one of 'raise', 'drop'",
        ),
        (
            lambda a, p: final(a, p, sampler=lambda *_: []),
            ArgumentError,
            "sampler, round 0: expected at least one client, found none",
        ),
        (
            lambda a, p: final(a, p, sampler=lambda *_: ["stranger"]),
            ArgumentError,
            r"expected clients of this run \(\d+ clients?: .*\), found 'stranger'",
        ),
        (
            lambda a, p: final(a, p, sampler=lambda round, names, key: [names[0]] * 2),
            ArgumentError,
            "expected distinct clients, found '.*' more than once",
        ),
        (
            lambda a, p: final(a, p, sampler=lambda *_: "client"),
            ArgumentError,
            "expected names of clients, found 'client'",
        ),
        (lambda a, p: fraction(0.0), ArgumentError, "fraction, share"),
        (lambda a, p: bf.InProcess({}), DataError, "a client with data"),
        (
            lambda a, p: bf.InProcess({"a": Dataset(torch.empty(0, 3), torch.empty(0))}),
            DataError,
            "1 client, all empty",
        ),
        (
            lambda a, p: bf.InProcess({"a": Dataset(torch.ones(1, 3), torch.ones(1))}, workers=-1),
            ArgumentError,
            "workers: expected a whole number >= 0",
        ),
        (lambda a, p: Descent(None, Sgd(), 0, 8), ArgumentError, "Descent, steps"),
        (lambda a, p: Sgd(-1.0), ArgumentError, "Sgd, learning_rate"),
        (lambda a, p: cosine(0.0, 3), ArgumentError, "cosine"),
        (lambda a, p: inverse(0.0), ArgumentError, "inverse"),
        (lambda a, p: ramp(-1.0, 0), ArgumentError, "ramp"),
        (lambda a, p: Digital(max_norm=0.0), ArgumentError, "Digital, max_norm"),
        (lambda a, p: replace(a, phases=()), ArgumentError, "phases of distinct names"),
        (lambda a, p: early_stop("x", patience=0), ArgumentError, "early_stop, patience"),
        (lambda a, p: checkpoint("x", every=0), ArgumentError, "checkpoint, every"),
        (
            lambda a, p: bf.run(a, p, rounds=1, progress=False, callbacks=[keep("x", {})]),
            ArgumentError,
            "found 'x'",
        ),
        (
            lambda a, p: score(lambda x: x, Dataset(torch.empty(0, 3), torch.empty(0))),
            ArgumentError,
            "data to score on",
        ),
    ],
)
def test_bad_arguments_are_refused(net, clients, call, error, words):
    with pytest.raises(error, match=words):
        call(bf.fed_avg(net, training=WORK), bf.InProcess(clients))


def test_recipes_refuse_bad_arguments(net, declared):
    for call, words in (
        (
            lambda: bf.fed_prox(net, strength=-1.0),
            r"fed_prox, strength: expected a number in \[0, inf\), found -1.0",
        ),
        (
            lambda: bf.fed_avg(torch.nn.Sequential(torch.nn.BatchNorm1d(3))),
            "without running statistics",
        ),
        (
            lambda: bf.d_turbo_vbi(declared, observations=0),
            "observations: expected a whole",
        ),
        (
            lambda: bf.d_turbo_vbi(declared, observations=5, initial_sd=0.0),
            "initial_sd: expected",
        ),
        (
            lambda: bf.d_turbo_vbi(declared, observations=5, likelihood_scale="N"),
            "one of 'global', 'local'",
        ),
    ):
        with pytest.raises(ArgumentError, match=words):
            call()


def test_dropout_may_not_run_in_threads(net, clients):
    noisy = torch.nn.Sequential(net, torch.nn.Dropout(0.5))
    with pytest.raises(ArgumentError, match="draw from no global generator"):
        final(bf.fed_avg(noisy, training=WORK), bf.InProcess(clients, workers=2, kind="thread"))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_round_without_clients_changes_nothing_where_clients_may_drop(net, workers):
    """A sampler by which every client takes part with a probability may choose nobody."""
    algorithm = bf.fed_avg(net, training=WORK)
    rows = {name: Dataset(torch.randn(6, 64), torch.arange(6)) for name in "ab"}
    sampler = lambda round, names, key: names if round % 2 else []  # noqa: E731
    with bf.InProcess(rows, workers=workers) as pool:
        made = rounds(algorithm, pool, rounds=3, sampler=sampler, on_client_error="drop")
        reports = list(made)
    states = [algorithm.initial, *(report.state for report in reports)]
    assert [tree_equal(one, two) for one, two in itertools.pairwise(states)] == [True, False, True]
    assert [len(report.rows) for report in reports] == [0, 4, 0]


def test_plurals_of_messages():
    said = [plural(count, "row of one client") for count in (0, 1, 2)]
    assert said == ["0 rows of one client", "1 row of one client", "2 rows of one client"]
    assert plural(1000, "shared leaf", ",") == "1,000 shared leaves"
    assert plural(1, "entry") == "1 entry"
