"""The gate: envelopes and secrets, strays, too few clients, fields of refusals, and that nothing
received is ever executed.
"""

import ast
import contextlib
import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.compress.wire import DIGEST, digest_of, unseal
from bayesfed.errors import (
    ArgumentError,
    ClientError,
    RefusedError,
    TooFewClientsError,
    UpdateError,
    WireError,
)
from bayesfed.federated import Digital, checkpoint, load, rounds
from bayesfed.federated.clients.envelopes import Envelope, masked, opened
from bayesfed.federated.clients.turn import Reply, Task
from bayesfed.federated.engine.gate import Gate
from bayesfed.keys import Key
from bayesfed.testing.law import refuses
from tests.conftest import tree_equal
from tests.support.codecs.shipped import message_codecs
from tests.support.hostile.cases import TRAP, Trap
from tests.support.hostile.mutations import reseal
from tests.support.hostile.pool import Between

PACKAGE = Path(bf.__file__).parent
WORK = bf.Training(steps=2, batch_size=16)
ENVELOPE = Envelope("run", 0, "up", "a", 3, "train")
SECRET = bytes(range(32))
META = {"client": "a", "round": 3, "phase": "train"}
MESSAGE = bf.Cast(32).encode({"w": torch.arange(12.0)}, META, Key(0))


def final(algorithm, pool, count=1, **run):
    return list(rounds(algorithm, pool, rounds=count, **run))[-1]


def secrets_of(clients, seed=0):
    return {name: Key(seed, "secret", name).numpy().bytes(32) for name in clients}


# Envelopes


@pytest.mark.parametrize("secret", [None, SECRET], ids=["plain", "keyed"])
def test_an_envelope_costs_nothing_and_comes_off_again(secret):
    sent = masked(MESSAGE, ENVELOPE, secret)
    assert len(sent) == len(MESSAGE)
    assert sent != MESSAGE
    assert opened(sent, ENVELOPE, secret) == MESSAGE
    with pytest.raises(WireError, match="digest"):
        unseal(sent)


def test_without_run_and_secret_there_is_none():
    assert masked(MESSAGE, replace(ENVELOPE, run="")) == MESSAGE


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"run": "other"}, "run"),
        ({"round": 2}, "round"),
        ({"client": "b"}, "client"),
        ({"phase": "last"}, "phase"),
        ({"direction": "down"}, "nonce"),
    ],
    ids=str,
)
@pytest.mark.parametrize("secret", [None, SECRET], ids=["plain", "keyed"])
def test_another_exchanges_message_is_told_apart(change, field, secret):
    there = replace(ENVELOPE, **change)
    message = bf.Cast(32).encode(
        {"w": torch.arange(12.0)},
        {"client": there.client, "round": there.round, "phase": there.phase},
        Key(0),
    )
    with pytest.raises(WireError) as found:
        opened(masked(message, there, secret), ENVELOPE, secret)
    # A keyed hash tells no more than that it is not the one; a genuine message of another round,
    # phase or client is tried out.
    assert found.value.field == ("digest" if secret and field in {"run", "nonce"} else field)


@pytest.mark.parametrize("secret", [None, SECRET], ids=["plain", "keyed"])
def test_damage_is_a_digest(secret):
    sent = masked(MESSAGE, ENVELOPE, secret)
    for place in range(0, len(sent), 7):
        damaged = sent[:place] + bytes([sent[place] ^ 4]) + sent[place + 1 :]
        with pytest.raises(WireError) as found:
            opened(damaged, ENVELOPE, secret)
        # What hits one half of the mask looks like another run's, or another exchange's.
        assert found.value.field in {"digest", "message"} or (
            place >= len(sent) - DIGEST and not secret
        )


def test_nobody_without_the_secret_is_taken():
    """Among them the tag of a genuine message put on another body, and its difference from the
    digest, which cheats an envelope without a secret.
    """
    genuine, other = (
        masked(MESSAGE, ENVELOPE, SECRET),
        reseal(MESSAGE[:-DIGEST].replace(b"train", b"tRain")),
    )
    mask = bytes(
        a ^ b for a, b in zip(genuine[-DIGEST:], digest_of(MESSAGE[:-DIGEST]), strict=True)
    )
    moved = other[:-DIGEST] + bytes(a ^ b for a, b in zip(mask, other[-DIGEST:], strict=True))
    tagged = other[:-DIGEST] + genuine[-DIGEST:]
    forged = [
        MESSAGE,
        masked(MESSAGE, ENVELOPE),
        masked(MESSAGE, ENVELOPE, bytes(32)),
        moved,
        tagged,
        reseal(genuine[:-DIGEST]),
        b"",
        b"x" * 15,
    ]
    for message in forged:
        refuses(lambda message=message: opened(message, ENVELOPE, SECRET), WireError, "forged")
    plain = masked(other, ENVELOPE)
    assert opened(plain, ENVELOPE) == other  # without a secret this is anybody's to do


def test_what_ends_with_neither_digest_nor_tag_stays_as_it_is():
    """So whoever takes messages out of their envelopes never computes a tag for what somebody else
    wrote.
    """
    for end in (
        bytes(DIGEST),
        masked(MESSAGE, replace(ENVELOPE, round=2), SECRET)[-DIGEST:],
        digest_of(b""),
    ):
        stray = MESSAGE[:-DIGEST] + end
        assert masked(stray, ENVELOPE, SECRET) == stray
        with pytest.raises(WireError, match="digest"):
            unseal(stray)


def test_seed_and_run_are_under_the_secret():
    for change in ({"seed": 1}, {"run": "r2"}, {"direction": "down"}):
        refuses(
            lambda change=change: opened(
                masked(MESSAGE, replace(ENVELOPE, **change), SECRET), ENVELOPE, SECRET
            ),
            WireError,
            str(change),
        )


# Keyed runs


@pytest.mark.parametrize(
    "options",
    [{}, {"workers": 2}, {"workers": 2, "kind": "thread"}],
    ids=["serial", "processes", "threads"],
)
def test_keyed_runs_are_the_same_runs(net, clients, options):
    secrets, algorithm = secrets_of(clients), bf.fed_avg(net, training=WORK)
    plain = final(algorithm, bf.InProcess(clients), 2)
    with bf.InProcess(clients, secrets=secrets, **options) as pool:
        keyed = final(algorithm, pool, 2, secrets=secrets)
    assert tree_equal(plain.state, keyed.state)
    assert [row.cost for row in plain.rows] == [row.cost for row in keyed.rows]


def test_a_client_without_the_secret_is_out_both_ways(net, clients):
    algorithm, secrets = bf.fed_avg(net, training=WORK), secrets_of(clients)
    wrong = {**secrets, "client-002": bytes(16)}
    report = final(
        algorithm, bf.InProcess(clients, secrets=wrong), on_client_error="drop", secrets=secrets
    )
    (row,) = report.refusals
    assert (row.client, row.field, row.reason[:7]) == ("client-002", "digest", "decode:")
    others = {name: data for name, data in clients.items() if name != "client-002"}
    assert tree_equal(report.state, final(algorithm, bf.InProcess(others)).state)
    # Neither side takes the other's messages without.
    with pytest.raises(ClientError, match="stage 'decode'.*digest"):
        final(algorithm, bf.InProcess(clients), secrets=secrets)
    with pytest.raises(ClientError, match="stage 'decode'.*digest"):
        final(algorithm, bf.InProcess(clients, secrets=secrets))


def test_secrets_are_not_shown_and_do_not_travel(net, clients):
    secrets, seen = secrets_of(clients), []

    def note(task, outcome):
        seen.extend([repr(task), repr(outcome), repr(task.envelope("up"))])
        assert not any(secret in task.message + outcome.packed for secret in secrets.values())
        return [(task, outcome)]

    pool = Between(bf.InProcess(clients, secrets=secrets), note)
    report = final(bf.fed_avg(net, training=WORK), pool, secrets=secrets)
    text = " ".join([*seen, repr(report), repr(pool), repr(Gate(secrets))])
    assert not any(
        repr(secret)[2:12] in text or secret.hex()[:12] in text for secret in secrets.values()
    )


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        ({}, "none for"),
        ({"*": b"short"}, "found 5 bytes"),
        ({"*": "a string of sixteen"}, "found str"),
        ({"*": bytes(65)}, "found 65 bytes"),
    ],
    ids=["none", "short", "text", "long"],
)
def test_secrets_that_are_none_are_refused_unseen(net, clients, secrets, words):
    given = {name: secret for name in clients for secret in secrets.values()}
    for call in (
        lambda: final(bf.fed_avg(net, training=WORK), bf.InProcess(clients), secrets=given),
        lambda: bf.InProcess(clients, secrets=given),
    ):
        with pytest.raises(ArgumentError, match=words) as found:
            call()
        assert "sixteen" not in str(found.value)


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


# Nothing received is executed


FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
# The pool of processes talks to its own children, over pipes that it made.
OWN_CHILDREN = {f"federated/clients/{name}.py" for name in ("worker", "worker_loop", "workers")}
# A recipe, network or data set of a user's own file, which the experiment file names as
# ``file.py:function``. It imports cloudpickle to have that module written by value for spawned
# workers; it reads no pickle.
OWN_FILES = {("running/experiments/own.py", done) for done in ("exec", "compile", "import")}


def test_no_reader_can_execute_what_it_reads():
    found = []
    for path in PACKAGE.rglob("*.py"):
        where = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name.split(".")[0] for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [(node.module or "").split(".")[0]]
            if FORBIDDEN & set(names):
                found.append((where, "import"))
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                if called in {
                    "eval",
                    "exec",
                    "compile",
                    "__import__",
                    "torch.load",
                    "yaml.load",
                    "yaml.unsafe_load",
                }:
                    found.append((where, called))
                if called.endswith("np.load") and any(
                    k.arg == "allow_pickle" and ast.unparse(k.value) != "False"
                    for k in node.keywords
                ):
                    found.append((where, called))
    assert {entry for entry in found if entry[0] not in OWN_CHILDREN} == {
        # Asks whether an error of this rank survives the trip to others; what it reads it wrote
        # itself.
        ("federated/clients/process_group.py", "import"),
        *OWN_FILES,
    }


@pytest.mark.parametrize("codec", message_codecs(1 << 20).values(), ids=message_codecs())
def test_no_codec_unpickles(codec, tmp_path):
    trap = Trap(str(tmp_path / "sprung"))
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        raw = pickle.dumps(trap, protocol)
        header = json.dumps(
            {"meta": META, "leaves": [["w", "f4", [len(raw) // 4], len(raw)]]}
        ).encode()
        for message in (
            raw,
            reseal(raw),
            reseal(b"BFD1" + len(header).to_bytes(4, "little") + header + raw),
        ):
            with contextlib.suppress(RefusedError):
                codec.decode(message, Key(0))
    assert not os.path.exists(trap.path)
    assert not os.path.exists(TRAP)


def test_the_trap_works(tmp_path):
    pickle.loads(pickle.dumps(Trap(str(tmp_path / "sprung"))))
    assert (tmp_path / "sprung").is_dir()


def test_tasks_without_a_run_have_plain_messages():
    task = Task("a", 3, "train", 0, MESSAGE, bf.Cast(32), bf.Cast(32), Digital())
    gate = Gate({})
    gate.ask(task, {"w": torch.zeros(12)})
    assert gate.admit(task, Reply(MESSAGE, {}, {}, 0.0)) == MESSAGE
    with pytest.raises(UpdateError, match="a second one"):
        gate.turn(task)
    assert np.frombuffer(task.envelope("up").mask, np.uint8).sum() == 0
