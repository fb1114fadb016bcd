"""Envelopes of messages, and runs whose messages are sealed with secrets."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import bayesfed as bf
from bayesfed.compress.wire import DIGEST, digest_of, unseal
from bayesfed.errors import ArgumentError, ClientError, UpdateError, WireError
from bayesfed.federated import Digital, rounds
from bayesfed.federated.clients.envelopes import Envelope, masked, opened
from bayesfed.federated.clients.turn import Reply, Task
from bayesfed.federated.engine.gate import Gate
from bayesfed.keys import Key
from bayesfed.testing.law import refuses
from tests.conftest import tree_equal
from tests.support.hostile.mutations import reseal
from tests.support.hostile.pool import Between

WORK = bf.Training(steps=2, batch_size=16)
ENVELOPE = Envelope("run", 0, "up", "a", 3, "train")
SECRET = bytes(range(32))
META = {"client": "a", "round": 3, "phase": "train"}
MESSAGE = bf.Cast(32).encode({"w": torch.arange(12.0)}, META, Key(0))


def final(algorithm, pool, count=1, **run):
    return list(rounds(algorithm, pool, rounds=count, **run))[-1]


def secrets_of(clients, seed=0):
    return {name: Key(seed, "secret", name).numpy().bytes(32) for name in clients}


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


def test_tasks_without_a_run_have_plain_messages():
    task = Task("a", 3, "train", 0, MESSAGE, bf.Cast(32), bf.Cast(32), Digital())
    gate = Gate({})
    gate.ask(task, {"w": torch.zeros(12)})
    reply = Reply(MESSAGE, {}, {}, 0.0)
    assert gate.take(task, reply) == MESSAGE
    with pytest.raises(UpdateError, match="a second one"):
        gate.take(task, reply)
    assert np.frombuffer(task.envelope("up").mask, np.uint8).sum() == 0
