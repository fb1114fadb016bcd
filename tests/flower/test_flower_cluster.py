"""A real SuperLink and SuperNodes on loopback: the same bits, nodes that are killed, TLS and
registered keys. Needs the extra ``flower``.
"""

import json
import sys
import time

import pytest

import bayesfed as bf
from bayesfed.federated import load, rounds
from bayesfed.flower import new_app
from bayesfed.flower.experiment import load as experiment_of
from bayesfed.flower.messages import content_of, record
from examples.flower.loopback import Loopback
from tests.conftest import tree_equal
from tests.flower.flower_grid import FakeGrid, Letter, sites

# Said by Flower's own command line when it is imported.
pytestmark = [
    pytest.mark.flower,
    pytest.mark.filterwarnings("ignore:'click.utils:DeprecationWarning"),
]
NAMES = ("client-000", "client-001", "client-002")
RECIPES = ("fed_avg", "d_turbo_vbi", "fs_lora", "drawing", "exact")
EXPERIMENTS = '''
import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pyro
import pyro.distributions as dist
import torch

import bayesfed as bf
from bayesfed.flower import Experiment

WORK = bf.Training(steps=3, batch_size=16)


def clients():
    train, _ = bf.digits()
    return bf.federate(train, bf.dirichlet(train.targets, 3, 0.5, bf.Key(0, "partition")))


def net():
    return bf.mlp([64, 16, 10], bf.Key(0, "net"))


def of(algorithm, rounds=2):
    return Experiment(algorithm=algorithm, data=lambda client: clients()[client], rounds=rounds)


def fed_avg():
    return of(bf.fed_avg(net(), training=WORK))


class Drawing(torch.nn.Module):
    """Dropout by a function, stochastic depth, noise, dropout between layers and of attention."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = torch.nn.Linear(64, 16), torch.nn.Linear(16, 10)
        self.memory = torch.nn.LSTM(4, 4, num_layers=2, dropout=0.5, batch_first=True)
        self.focus = torch.nn.MultiheadAttention(4, 1, dropout=0.5, batch_first=True)

    def forward(self, inputs):
        inner = torch.nn.functional.dropout(self.enter(inputs.flatten(1)), 0.5, self.training)
        if self.training:
            inner = inner + 0.1 * torch.randn_like(inner)
        if not self.training or random.random() < 0.5:
            rows = self.memory(inner.view(-1, 4, 4))[0]
            inner = self.focus(rows, rows, rows, need_weights=False)[0].flatten(1)
        return self.leave(inner)


def drawing():
    with bf.keys.forked(bf.Key(0, "drawing")):
        return of(bf.fed_avg(Drawing(), training=WORK))


def d_turbo_vbi():
    declared = bf.declare(net(), likelihood=bf.Categorical(temperature=0.2))
    rows = sum(map(len, clients().values()))
    return of(bf.d_turbo_vbi(declared, observations=rows, training=WORK))


def secure():
    algorithm = bf.fed_avg(net(), training=WORK)
    vault = os.environ["BAYESFED_TEST_VAULT"]
    bounds = dict(participants=3, largest=8.0, heaviest=2000.0)
    return of(bf.secure(algorithm, **bounds, dropouts=0.0, vault=vault))


def fs_lora():
    adapted = bf.lora(net(), 4, bf.Key(0, "lora"))
    return of(bf.fs_lora(adapted, [4, 2, 1], bf.federated.dynamic(3), training=WORK))


def line(inputs, targets=None):
    beta = pyro.sample("beta", dist.Normal(torch.zeros(2), 1.0).to_event(1))
    with pyro.plate("rows", len(inputs)):
        mean = inputs.flatten(1)[:, [20, 43]].double() @ beta
        pyro.sample("y", dist.Normal(mean, 3.0), obs=targets)


def exact():
    return of(bf.federated_svi(line), None)


def slow():
    """Error feedback: clients remember; client-001 hangs in its second round, the first time."""
    algorithm = bf.stc(net(), share=0.1, training=WORK)
    (phase,) = algorithm.phases

    class Hanging:
        kind = phase.local.kind

        def fit(self, message, memory, data, key, options):
            named = os.environ.get("BAYESFED_TEST_MARKER")
            marker = Path(named) if named is not None else None
            if marker and key == bf.Key(0, "train", 1, "client-001", "fit") and not marker.exists():
                marker.touch()
                time.sleep(3600)
            return phase.local.fit(message, memory, data, key, options)

    return of(replace(algorithm, phases=(replace(phase, local=Hanging()),)), rounds=3)
'''


@pytest.fixture
def app(tmp_path, monkeypatch):
    folder = new_app(tmp_path / "app")
    (folder / "experiments.py").write_text(EXPERIMENTS)
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(
        text.replace("experiment:experiment", "experiments:fed_avg")
    )
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delenv("BAYESFED_TEST_MARKER", raising=False)
    yield folder
    sys.modules.pop("experiments", None)


def in_process(name):
    experiment = experiment_of(f"experiments:{name}")
    *_, report = rounds(
        experiment.algorithm,
        bf.InProcess({client: experiment.data(client) for client in NAMES}),
        rounds=experiment.rounds or 100,
    )
    return report.snapshot


def reports(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


class FlowerGrid(FakeGrid):
    """The fake grid, whose letters go through Flower's messages and serialiser."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.waiting = {}

    def push_messages(self, messages):
        for message in messages:
            message.metadata.__dict__["_message_id"] = message.object_id
        sent = [through(message) for message in messages]
        ids = super().push_messages(
            [
                Letter(content_of(message), message.metadata.dst_node_id, message.metadata.ttl)
                for message in sent
            ]
        )
        self.waiting |= dict(zip(ids, messages, strict=True))
        return ids

    def pull_messages(self, message_ids):
        from flwr.app import Message

        replies = []
        for reply in super().pull_messages(message_ids):
            message = through(Message(record(reply.content), reply_to=self.waiting[reply.id]))
            message.metadata.__dict__["_reply_to_message_id"] = reply.id
            replies.append(message)
        return replies


def through(message):
    """Send a message through Flower's serialiser."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    objects = {key: value.deflate() for key, value in get_all_nested_objects(message).items()}
    return inflate_object_from_contents(message.object_id, objects)


def test_flowers_own_messages_carry_our_bytes(app, tmp_path, monkeypatch):
    from flwr.supercore.task_identity import TaskIdentity

    from bayesfed.flower.pool import Flower

    # Outside a task of Flower's no message can be made.
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    experiment = experiment_of("experiments:fs_lora")
    grid = FlowerGrid(
        sites(
            experiment.algorithm,
            {client: experiment.data(client) for client in NAMES},
            tmp_path / "memory",
        )
    )
    pool = Flower(grid, NAMES, experiment=experiment.fingerprint, clock=grid.clock, wait=grid.wait)
    *_, report = rounds(experiment.algorithm, pool, rounds=experiment.rounds)
    assert tree_equal(report.state, in_process("fs_lora").state)


def test_recipes_over_supernodes(app, tmp_path):
    with Loopback(tmp_path / "net", NAMES, path=app) as net:
        for name in RECIPES:
            out = tmp_path / name
            ended = net.run(
                app, {"experiment": f"experiments:{name}", "out": str(out), "deadline-s": 300}
            )
            assert ended["status"] == "finished:completed"
            assert tree_equal(load(out / "checkpoints").state, in_process(name).state), name
            sent = reports(out)[-1]
            assert sent["bytes_sent"] > sum(line["bits_down"] for line in reports(out)) / 8 > 0


def test_secure_sums_over_supernodes(app, tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESFED_TEST_VAULT", str(tmp_path / "vault"))
    with Loopback(tmp_path / "net", NAMES, path=app) as net:
        out = tmp_path / "secure"
        net.run(app, {"experiment": "experiments:secure", "out": str(out), "deadline-s": 300})
    # Masks cancel, so other keys give the same bits.
    assert tree_equal(load(out / "checkpoints").state, in_process("secure").state)
    assert len(list((tmp_path / "vault").rglob("*.session"))) > len(NAMES)


def test_a_node_that_is_killed_in_its_turn_and_started_again(app, tmp_path, monkeypatch):
    marker, out = tmp_path / "marker", tmp_path / "slow"
    monkeypatch.setenv("BAYESFED_TEST_MARKER", str(marker))
    with Loopback(tmp_path / "net", NAMES, path=app) as net:
        run = net.submit(
            app, {"experiment": "experiments:slow", "out": str(out), "deadline-s": 300}
        )
        wait_for(marker.exists)
        net.kill_node("client-001")
        net.start_node("client-001")
        assert net.wait(run)["status"] == "finished:completed"
    lines = reports(out)
    assert len(lines) == 3
    assert lines[1]["refused"] or lines[1]["clients"]["client-001"]["attempts"] == 2
    monkeypatch.delenv("BAYESFED_TEST_MARKER")
    if not lines[1]["refused"]:
        assert tree_equal(load(out / "checkpoints").state, in_process("slow").state)


def wait_for(ready, seconds=300.0):
    end = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.2)


def test_tls_registered_keys_workers_and_a_restart(app, tmp_path):
    with Loopback(
        tmp_path / "net", NAMES, secure=True, worker="experiments:fed_avg", path=app
    ) as net:
        first = net.run(app, {"out": str(tmp_path / "first"), "deadline-s": 300})
        net.kill_node("client-002")
        # A key counts once: the node is taken back when Flower has seen that the old one is dead.
        wait_for(lambda: net.online() == 2)
        net.start_node("client-002")
        wait_for(lambda: net.online() == 3)
        second = net.run(app, {"out": str(tmp_path / "second"), "deadline-s": 300})
        assert {first["status"], second["status"]} == {"finished:completed"}
    expected = in_process("fed_avg").state
    for out in ("first", "second"):
        assert tree_equal(load(tmp_path / out / "checkpoints").state, expected)


def test_an_app_that_fails_is_said_with_what_it_printed(app, tmp_path):
    with (
        Loopback(tmp_path / "net", ["client-000"], path=app) as net,
        pytest.raises(RuntimeError, match=r"finished:failed(.|\n)*'nothing'"),
    ):
        net.run(app, {"experiment": "experiments:nothing", "out": str(tmp_path / "out")})
