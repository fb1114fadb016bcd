"""The gate: strays, too few clients, and fields of refusals."""

import pickle
from dataclasses import replace

import pytest
import torch

import bayesfed as bf
from bayesfed.errors import ArgumentError, ClientError, RefusedError, TooFewClientsError
from bayesfed.federated import Digital, checkpoint, load, rounds
from bayesfed.federated.clients.envelopes import masked
from bayesfed.keys import Key
from tests.conftest import tree_equal
from tests.support.hostile.pool import Between

WORK = bf.Training(steps=2, batch_size=16)
META = {"client": "a", "round": 3, "phase": "train"}


def final(algorithm, pool, count=1, **run):
    return list(rounds(algorithm, pool, rounds=count, **run))[-1]


# Runs


def test_a_run_has_an_id_that_resuming_keeps(net, clients, tmp_path):
    algorithm = bf.fed_avg(net, training=WORK)
    first, again, other = (
        final(algorithm, bf.InProcess(clients), seed=seed).snapshot.run for seed in (0, 0, 1)
    )
    assert first == again != other
    named = bf.run(
        algorithm,
        clients,
        rounds=1,
        progress=False,
        run_id="Tuesday",
        callbacks=[checkpoint(tmp_path / "kept")],
    )
    assert named.snapshot.run == load(tmp_path / "kept").run == "Tuesday"
    assert (
        final(algorithm, bf.InProcess(clients), 2, resume=named.snapshot).snapshot.run == "Tuesday"
    )
    with pytest.raises(ArgumentError, match="run_id: expected 'Tuesday', found 'Friday'"):
        final(algorithm, bf.InProcess(clients), 2, resume=named.snapshot, run_id="Friday")
    with pytest.raises(ArgumentError, match="run_id"):
        final(algorithm, bf.InProcess(clients), run_id="")
    # What is bound to the run is no part of the result.
    assert tree_equal(named.snapshot.state, final(algorithm, bf.InProcess(clients)).state)


# Strays


def strays(clients, act, policy="raise"):
    """Run two rounds; hand in what `act` makes of the second, given the answers of the first."""
    before = {}

    def hook(task, outcome):
        if task.round == 0:
            before[task.client] = (task, outcome)
            return [(task, outcome)]
        return act(task, outcome, before)

    algorithm = bf.fed_avg(bf.mlp([64, 16, 10], bf.Key(0, "net")), training=WORK)
    report = final(algorithm, Between(bf.InProcess(clients), hook), 2, on_client_error=policy)
    return report, final(algorithm, bf.InProcess(clients), 2)


@pytest.mark.parametrize(
    ("stray", "field"),
    [
        (lambda task, reply, before: (task, reply), "duplicate"),
        (
            lambda task, reply, before: (
                task,
                ClientError(task.client, task.round, "worker", "said twice"),
            ),
            "duplicate",
        ),
        (lambda task, reply, before: before[task.client], "round"),
        (lambda task, reply, before: (replace(task, phase="warm-up"), reply), "phase"),
        (lambda task, reply, before: (replace(task, run="another"), reply), "run"),
        (lambda task, reply, before: (replace(task, seed=7), reply), "run"),
        (lambda task, reply, before: (replace(task, client="stranger"), reply), "client"),
    ],
    ids=["second", "second failure", "late", "phase", "run", "seed", "stranger"],
)
@pytest.mark.parametrize("policy", ["raise", "drop"])
def test_strays_are_refused_and_the_first_answer_counts(clients, stray, field, policy):
    """Also where failures end a run: nobody may end it by sending too much."""

    def act(task, outcome, before):
        return [(task, outcome), stray(task, outcome, before)]

    report, honest = strays(clients, act, policy)
    assert tree_equal(report.state, honest.state)
    assert report.refused == ({"stranger": report.refusals[0].reason} if field == "client" else {})
    assert [row.field for row in report.refusals] == [field] * len(clients)
    sent = [row.bits for row in report.refusals]
    assert all(sent) or "failure" in str(report.refusals[0].reason) or sent == [0] * len(clients)


def test_a_late_answer_before_the_right_one_costs_nothing(clients):
    report, honest = strays(
        clients, lambda task, outcome, before: [before[task.client], (task, outcome)]
    )
    assert tree_equal(report.state, honest.state)
    assert {row.field for row in report.refusals} == {"round"}


def test_who_makes_an_answer_up_does_not_use_up_the_clients_turn(clients):
    def act(task, outcome, before):
        return [
            (task, replace(outcome, packed=b"made up, long enough to be read")),
            (task, outcome),
        ]

    report, honest = strays(clients, act)
    assert tree_equal(report.state, honest.state)
    assert not report.refused
    assert {row.field for row in report.refusals} == {"message"}


def test_an_old_message_in_a_new_answer_is_stale(clients):
    def act(task, outcome, before):
        old = (
            replace(outcome, packed=before[task.client][1].packed)
            if task.client == "client-001"
            else outcome
        )
        return [(task, old)]

    report, honest = strays(clients, act, "drop")
    assert {row.client: row.field for row in report.refusals} == {"client-001": "round"}
    assert "expected one of round 1, found one of round 0" in report.refused["client-001"]
    assert not tree_equal(report.state, honest.state)
    with pytest.raises(ClientError, match="client 'client-001', round 1, stage 'gate'"):
        strays(clients, act)


def test_no_answer_is_a_failure_of_the_client(clients):
    report, _ = strays(
        clients,
        lambda task, outcome, before: [] if task.client == "client-000" else [(task, outcome)],
        "drop",
    )
    assert report.refused == {"client-000": "gate: no answer"}
    assert not report.refusals
    with pytest.raises(ClientError, match="client 'client-000', round 1, stage 'gate': no answer"):
        strays(clients, lambda task, outcome, before: [])


@pytest.mark.parametrize(
    "change",
    [
        {"info": {"loss": "much"}},
        {"info": [1]},
        {"info": {str(n): 0.0 for n in range(100)}},
        {"seconds": float("nan")},
        {"seconds": -1.0},
    ],
    ids=str,
)
def test_figures_that_are_none_are_refused(clients, change):
    report, _ = strays(
        clients,
        lambda task, outcome, before: [
            (task, replace(outcome, **change) if task.client == "client-002" else outcome)
        ],
        "drop",
    )
    assert [(row.client, row.field) for row in report.refusals] == [("client-002", "info")]


def test_an_answer_is_bounded_by_what_was_asked(clients):
    """Far below the codec's own limit of a gibibyte."""

    def act(task, outcome, before):
        huge = bf.Cast(32).encode(
            {"w": torch.zeros(1 << 20)},
            {"client": task.client, "round": 1, "phase": task.phase},
            Key(0),
        )
        return [(task, replace(outcome, packed=masked(huge, task.envelope("up"))))]

    with pytest.raises(ClientError, match="bytes"):
        strays(clients, act)


def test_reasons_do_not_quote_without_end(clients):
    def act(task, outcome, before):
        meta = {"client": task.client, "round": 1, "phase": task.phase, "note": "x" * 30_000}
        return [
            (
                task,
                replace(
                    outcome,
                    packed=masked(bf.Cast(32).encode({}, meta, Key(0)), task.envelope("up")),
                ),
            )
        ]

    with pytest.raises(TooFewClientsError) as found:
        strays(clients, act, "drop")
    assert len(str(found.value)) < 3000


# Too few


def test_too_few_clients_end_the_run_and_the_checkpoint_is_good(net, clients, tmp_path):
    algorithm = bf.fed_avg(net, training=WORK)

    def failing(task, outcome):
        bad = task.round == 2 and task.client in {"client-000", "client-001"}
        return [(task, replace(outcome, packed=b"nothing" * 9) if bad else outcome)]

    def go(pool, **more):
        keep = checkpoint(tmp_path / "run")
        return bf.run(
            algorithm,
            pool,
            rounds=4,
            progress=False,
            on_client_error="drop",
            callbacks=[keep],
            least=3,
            **more,
        )

    pool = Between(bf.InProcess(clients), failing)
    with pytest.raises(
        TooFewClientsError,
        match=(
            "round 2, stage 'train': 2 of at least 3 clients are left .client-000: gate: "
            "message: expected magic"
        ),
    ):
        go(pool)
    kept = load(tmp_path / "run")
    assert kept.round == 2
    resumed = go(bf.InProcess(clients), resume=kept)
    assert tree_equal(resumed.snapshot.state, final(algorithm, bf.InProcess(clients), 4).state)
    assert (
        final(
            algorithm, Between(bf.InProcess(clients), failing), 4, on_client_error="drop", least=2
        ).snapshot.round
        == 4
    )
    with pytest.raises(ArgumentError, match="least"):
        final(algorithm, bf.InProcess(clients), least=0)


# What is in a message


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ({"w": torch.full((2, 3), 1e30)}, "norm"),
        ({"w": torch.zeros(2, 3, dtype=torch.int64)}, "dtype"),
        ({"w": torch.zeros(3, 2)}, "shape"),
        ({}, "leaves"),
        ({"w": torch.zeros(2, 3), "v": torch.zeros(1)}, "leaves"),
    ],
    ids=["norm", "integers", "shape", "missing", "more"],
)
def test_fields_name_what_is_wrong_with_a_payload(payload, field):
    from bayesfed.federated.aggregation.views import Whole
    from bayesfed.federated.core.protocols import Arrival, Assignment
    from bayesfed.federated.links.digital import opened as lifted

    arrival = Arrival(
        "a",
        3,
        Digital().pack(payload, bf.Cast(32), META, Key(0)),
        Assignment(Whole({"w": (2, 3)}), 1.0),
        "value",
        Key(0),
        phase="train",
    )
    with pytest.raises(RefusedError) as found:
        lifted(arrival, 1e6)
    assert found.value.field == field
    assert pickle.loads(pickle.dumps(found.value)).field == field


def test_whatever_a_payload_makes_a_view_raise_is_the_clients_refusal(net, clients):
    class Brittle:
        def __init__(self, view):
            self.view = view

        def restrict(self, tree):
            return self.view.restrict(tree)

        def lift(self, payload, weight, kind):
            raise ZeroDivisionError("a view that was not ready for this")

    algorithm = bf.fed_avg(net, training=WORK)
    (phase,) = algorithm.phases

    def assign(state, round, profile, key):
        plan = phase.assign(state, round, profile, key)
        return replace(plan, view=Brittle(plan.view)) if profile.name == "client-000" else plan

    report = final(
        replace(algorithm, phases=(replace(phase, assign=assign),)),
        bf.InProcess(clients),
        on_client_error="drop",
    )
    (row,) = report.refusals
    assert (row.client, row.field, row.reason) == (
        "client-000",
        "payload",
        "collect: ZeroDivisionError: a view that was not ready for this",
    )


def test_a_client_with_weight_zero_is_legal(net, clients):
    algorithm = bf.fed_avg(net, training=WORK)
    (phase,) = algorithm.phases

    def assign(state, round, profile, key):
        plan = phase.assign(state, round, profile, key)
        return replace(plan, weight=0.0) if profile.name == "client-000" else plan

    report = final(
        replace(algorithm, phases=(replace(phase, assign=assign),)), bf.InProcess(clients)
    )
    others = {name: data for name, data in clients.items() if name != "client-000"}
    assert not report.refused
    assert tree_equal(report.state, final(algorithm, bf.InProcess(others)).state)
