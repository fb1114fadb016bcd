"""What a server and its clients write to each other, the app that is written for a user, and the
worker beside a node.
"""

import contextlib
import grp
import json
import math
import os
import stat
import subprocess
import sys
import threading
import time
from dataclasses import replace
from socket import AF_UNIX
from socket import socket as unix_socket

import pytest

import bayesfed as bf
from bayesfed.compress.wire import seal, unseal
from bayesfed.errors import ArgumentError, ClientError, MissingExtraError, WireError
from bayesfed.federated import Digital, Profile, Task
from bayesfed.federated.clients.memory.memories import Slot
from bayesfed.federated.engine.assembly import assembled
from bayesfed.flower.client_app import client_name, forward, respond
from bayesfed.flower.experiment import Experiment, load
from bayesfed.flower.letters import Answer, Hello, Name, Question, read_reply, read_request
from bayesfed.flower.messages import FlowerMail
from bayesfed.flower.site import Site
from bayesfed.flower.starting import main as start
from bayesfed.flower.starting import new_app
from bayesfed.flower.worker import serve
from bayesfed.keys import Key
from tests.conftest import tree_equal
from tests.flower.flower_grid import FakeGrid, PlainMail, sites
from tests.support.hostile.mutations import mutants

LINKS = {"train": Digital()}
TASK = Task(
    "ward/ä",
    3,
    "train",
    -5,
    b"message",
    bf.Cast(16),
    bf.compress.ErrorFeedback(bf.compress.Coded()),
    LINKS["train"],
    run="a run",
)
QUESTION = Question(TASK, Slot(2, "train"))
ANSWER = Answer("ward/ä", 3, "train", b"payload", {"elbo": math.nan, "steps": 3.0}, 0.25, True)


def test_letters_come_back_as_they_were_written():
    assert read_request(Hello().write(), LINKS) == Hello()
    assert read_request(QUESTION.write(), LINKS) == QUESTION
    assert read_request(replace(QUESTION, slot=None).write(), LINKS).slot is None
    name = Name(Profile("ward", 7, {"speed": 0.1}), "fingerprint")
    assert read_reply(name.write()) == name
    found = read_reply(ANSWER.write())
    assert replace(found, info={}) == replace(ANSWER, info={})
    assert math.isnan(found.info["elbo"])
    assert found.info["steps"] == 3.0
    failure = Answer("ward", 1, "train", stage="fit", reason="boom", field="meta")
    assert read_reply(failure.write()) == failure


def changed(letter, **fields):
    leaves, meta = unseal(letter)
    return seal(leaves, {**meta, **fields})


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        (changed(QUESTION.write(), version=2), "expected version 3, found 2"),
        (changed(QUESTION.write(), kind="answer"), "expected kind 'question', found 'answer'"),
        (
            changed(QUESTION.write(), phase="other"),
            "expected a phase among .'train'., found 'other'",
        ),
        (changed(QUESTION.write(), seed="x"), "invalid literal"),
        (seal([], unseal(QUESTION.write())[1]), "the fields of 'question'"),
        (seal([], {"kind": "question", "version": 3}), "the fields of 'question'"),
        (seal([], {}), "expected version 3, found None"),
        (b"", "message: expected magic"),
    ],
)
def test_a_request_that_is_none_is_refused(letter, words):
    with pytest.raises(WireError, match=words):
        read_request(letter, LINKS)


@pytest.mark.parametrize(
    ("letter", "words"),
    [
        (changed(ANSWER.write(), round="3"), "a round or seconds"),
        (changed(ANSWER.write(), seconds=-1.0), "a round or seconds"),
        (changed(ANSWER.write(), info="[]"), "figures without names"),
        (changed(ANSWER.write(), info="["), "fields of 'answer'"),
        (changed(Name(Profile("x", 1), "").write(), samples=-1), "-1 rows"),
        (
            seal([], {"kind": "name", "version": 3}),
            "fields of 'name'",
        ),
    ],
)
def test_a_reply_that_is_none_is_refused(letter, words):
    with pytest.raises(WireError, match=words):
        read_reply(letter)


def test_changed_letters_are_refused_or_read_and_nothing_else():
    requests, replies = (
        [QUESTION.write(), Hello().write()],
        [ANSWER.write(), Name(Profile("x", 1, {"a": 1.0}), "").write()],
    )
    for letters, read in (
        (requests, lambda letter: read_request(letter, LINKS)),
        (replies, read_reply),
    ):
        refused = 0
        for mutant in mutants(letters, Key(0), 300):
            try:
                read(mutant.message)
            except WireError:
                refused += 1
        assert 100 < refused <= 300


# The client's side


def site(net, clients, tmp_path, name="client-000"):
    return Site(
        name,
        Experiment(
            algorithm=bf.fed_avg(net, training=bf.Training(steps=2)),
            data=lambda client: clients[client],
            rounds=1,
        ),
        tmp_path,
    )


def test_a_client_says_what_is_wrong_and_never_raises(net, clients, tmp_path):
    here = site(net, clients, tmp_path)
    assert read_reply(here.handle(b"")).stage == "letter"
    assert (
        read_reply(here.handle(replace(QUESTION, slot=None).write())).reason
        == "WireError, question: expected one for client 'client-000'; see the log of the site"
    )
    lost = read_reply(site(net, clients, tmp_path, "client-999").handle(Hello().write()))
    assert (lost.stage, lost.reason) == ("data", "KeyError; see the log of the site")


def test_a_question_asked_twice_has_one_answer_and_run_and_client_stay_inside_the_folder(
    net, clients, tmp_path
):
    folder = tmp_path / "deep"
    data = {"..": clients["client-000"]}
    algorithm = bf.stc(net, share=0.1, training=bf.Training(steps=2))
    (phase,) = map(assembled, algorithm.phases)
    here = Site(
        "..", Experiment(algorithm=algorithm, data=lambda client: data[client], rounds=1), folder
    )
    assignment = phase.assign(algorithm.initial, 0, Profile("..", 10), Key(0))
    message = assignment.down.encode(
        assignment.view.restrict(phase.server.publish(algorithm.initial, 0, None)),
        {"client": ".."},
        Key(0),
    )
    letter = Question(
        Task("..", 0, phase.name, 0, message, assignment.down, assignment.up, phase.link), None
    ).write()
    first, second = (read_reply(here.handle(letter)) for _ in range(2))
    assert not first.stage
    assert first.remembers
    assert replace(first, seconds=0.0) == replace(second, seconds=0.0)
    assert len(list(folder.rglob("*.memory"))) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"deep"}


def test_a_node_has_a_name_of_ours():
    assert client_name({"client": "ward", "partition-id": 1}) == "ward"
    assert client_name({"partition-id": 7}) == "client-007"
    with pytest.raises(
        ArgumentError, match="node-config: expected client or partition-id, found .'folder'."
    ):
        client_name({"folder": "x"})
    nothing = read_reply(respond(b"", {"client": "ward"}, {}))
    assert (nothing.client, nothing.stage) == ("ward", "app")
    assert nothing.reason == (
        "ArgumentError, run-config: expected experiment; see the log of the site"
    )


# The app that a user starts from


@pytest.fixture
def app(tmp_path, monkeypatch):
    folder = new_app(tmp_path / "app")
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("experiment", None)


def test_the_template_is_an_app_that_runs(app, tmp_path):
    assert {path.name for path in app.iterdir()} == {"pyproject.toml", "experiment.py"}
    experiment = load("experiment:experiment")
    run = {"experiment": "experiment:experiment"}
    node = {"client": "client-001", "folder": str(tmp_path / "memory")}
    name = read_reply(respond(Hello().write(), node, run))
    assert name.profile.name == "client-001"
    assert name.experiment == experiment.fingerprint
    assert name.profile.samples == len(experiment.data("client-001"))
    with pytest.raises(
        ArgumentError, match="expected a folder without these files, found .*pyproject.toml"
    ):
        start([str(app)])


def test_the_server_app_writes_what_came_of_it_and_goes_on(app, tmp_path):
    from bayesfed.flower.server_app import serve

    experiment = load("experiment:experiment")
    nodes = sites(
        experiment.algorithm,
        {client: experiment.data(client) for client in ("client-000", "client-001", "client-002")},
        tmp_path / "memory",
    )
    run = {
        "experiment": "experiment:experiment",
        "clients": "client-002, client-000,client-001",
        "out": str(tmp_path / "out"),
        "deadline-s": 60,
    }

    def served(**changes):
        grid = FakeGrid(nodes)
        return serve(grid, {**run, **changes}, mail=PlainMail(), clock=grid.clock, wait=grid.wait)

    result = served()
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "rounds.jsonl").read_text().splitlines()
    ]
    assert [line["round"] for line in lines] == [0, 1, 2, 3, 4]
    assert lines[-1]["metrics"]["accuracy"] == result.final("accuracy") > 0.5
    assert (
        sum(line["bits_down"] for line in lines)
        == result.bits("down")
        < 8 * lines[-1]["bytes_sent"]
    )
    assert "accuracy" in (tmp_path / "out" / "rounds.txt").read_text()
    with pytest.raises(
        ArgumentError, match="out: expected a folder without checkpoints, found .*out, round 5"
    ):
        served()
    assert tree_equal(served(resume=True).snapshot.state, result.snapshot.state)
    with pytest.raises(ArgumentError, match=r"run-config: expected \['clients'\] too"):
        serve(None, {"experiment": "experiment:experiment", "out": "x"})


def test_the_server_app_keys_its_messages(app, tmp_path):
    from bayesfed.flower.server_app import serve

    experiment = load("experiment:experiment")
    clients = {
        client: experiment.data(client) for client in ("client-000", "client-001", "client-002")
    }
    secrets = {client: client.encode() * 2 for client in clients}
    (tmp_path / "keys").mkdir()
    for client, secret in secrets.items():
        (tmp_path / "keys" / client).write_bytes(secret)

    def served(out, held, **changes):
        grid = FakeGrid(
            sites(experiment.algorithm, clients, tmp_path / out / "memory", secrets=held)
        )
        run = {
            "experiment": "experiment:experiment",
            "clients": ",".join(clients),
            "out": str(tmp_path / out),
            "deadline-s": 60,
            **changes,
        }
        return serve(grid, run, mail=PlainMail(), clock=grid.clock, wait=grid.wait)

    keyed, plain = served("keyed", secrets, secrets=str(tmp_path / "keys")), served("plain", None)
    assert tree_equal(keyed.snapshot.state, plain.snapshot.state)
    assert keyed.bits() == plain.bits()
    assert keyed.snapshot.run != plain.snapshot.run
    with pytest.raises(ClientError, match="no client is left .*digest"):
        served(
            "unlike", dict.fromkeys(clients, b"another key of it"), secrets=str(tmp_path / "keys")
        )
    (tmp_path / "keys" / "client-001").unlink()
    with pytest.raises(
        ArgumentError,
        match=r"secrets: expected a secret for every client, found none for \['client-001'\]",
    ):
        served("missing", secrets, secrets=str(tmp_path / "keys"))
    with pytest.raises(ArgumentError, match="secrets: expected a folder"):
        served("nowhere", secrets, secrets=str(tmp_path / "no folder"))


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("experiment:nothing", "'nothing'"),
        ("nowhere:f", "No module named 'nowhere'"),
        ("experiment", "can be imported"),
        ("", "imported"),
    ],
)
def test_an_experiment_that_is_not_there_is_said(app, reference, words):
    with pytest.raises(ArgumentError, match=words):
        load(reference)


def test_an_experiment_is_checked(app):
    (app / "other.py").write_text("def f():\n    return 3\n")
    with pytest.raises(ArgumentError, match="other:f: expected an Experiment, found int"):
        load("other:f")
    with pytest.raises(ArgumentError, match="save_every: expected a whole number >= 1"):
        replace(load("experiment:experiment"), save_every=0)


def test_a_fingerprint_tells_experiments_apart(net, clients):
    def fingerprint(algorithm):
        return Experiment(algorithm=algorithm, data=clients.get, rounds=1).fingerprint

    assert fingerprint(bf.fed_avg(net)) == fingerprint(bf.fed_avg(net))
    others = [
        bf.fed_avg(net),
        bf.fed_avg(net, training=bf.Training(steps=3)),
        bf.fed_paq(net),
        bf.fed_avg(bf.mlp([64, 17, 10], Key(0))),
    ]
    assert len({fingerprint(algorithm) for algorithm in others}) == 4


# The worker


@pytest.mark.slow
def test_a_worker_answers_as_the_client_itself_and_takes_its_socket_away(app, tmp_path):
    socket = tmp_path / "w.sock"
    command = [
        "--socket",
        str(socket),
        "--experiment",
        "experiment:experiment",
        "--client",
        "client-001",
        "--folder",
        str(tmp_path / "memory"),
    ]
    worker = subprocess.Popen(
        [sys.executable, "-m", "bayesfed.flower.worker", *command, "--path", str(app)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        assert worker.stdout.readline().startswith("client 'client-001', 4")
        while not socket.is_socket():
            time.sleep(0.05)
        node = {"socket": str(socket)}
        direct = respond(
            Hello().write(), {"client": "client-001"}, {"experiment": "experiment:experiment"}
        )
        assert respond(Hello().write(), node, {}) == direct
        assert stat.S_IMODE(os.stat(socket).st_mode) & 0o077 == 0
        assert read_reply(forward(str(socket), b"nonsense")).stage == "letter"
        assert respond(Hello().write(), node, {}) == direct
    finally:
        worker.terminate()
        worker.wait(30)
        worker.stdout.close()
    assert worker.returncode == 0
    assert not socket.exists()
    with pytest.raises(ArgumentError, match="expected a worker that answers"):
        forward(str(socket), b"")


class Echo:
    """A client that answers with the letter, and whose worker stops at b"stop"."""

    def handle(self, letter):
        if letter == b"stop":
            raise SystemExit
        return letter


def permissions_while_serving(socket, **options):
    """Serve an `Echo` at a socket and return the permissions and the group of the socket."""

    def serve_until_stopped():
        with contextlib.suppress(SystemExit):
            serve(Echo(), socket, **options)

    thread = threading.Thread(target=serve_until_stopped)
    thread.start()
    while thread.is_alive():
        with contextlib.suppress(ArgumentError):
            assert forward(str(socket), b"letter") == b"letter"
            break
    status = os.stat(socket)
    with contextlib.suppress(ArgumentError):
        forward(str(socket), b"stop")
    thread.join()
    return stat.S_IMODE(status.st_mode), status.st_gid


def test_a_group_may_use_the_socket_of_a_worker_and_nobody_else(tmp_path):
    # Root may give a socket to any group, and others to those they belong to.
    group = grp.getgrnam("nogroup") if os.getuid() == 0 else grp.getgrgid(os.getgid())
    socket = tmp_path / "w.sock"
    assert permissions_while_serving(socket, group=group.gr_name) == (0o660, group.gr_gid)
    assert permissions_while_serving(socket)[0] == 0o600


def test_a_letter_waits_for_a_worker_that_is_being_started(tmp_path):
    socket = tmp_path / "w.sock"

    def serve_until_stopped():
        with contextlib.suppress(SystemExit):
            serve(Echo(), socket)

    starting = threading.Timer(0.5, serve_until_stopped)
    starting.start()
    assert forward(str(socket), b"letter", wait_s=30.0) == b"letter"
    with pytest.raises(ArgumentError, match="EOFError"):
        forward(str(socket), b"stop")
    starting.join()
    # What a worker that was killed leaves: a socket at which nobody listens.
    with unix_socket(AF_UNIX) as abandoned:
        abandoned.bind(str(socket))
    start = time.monotonic()
    with pytest.raises(ArgumentError, match="ConnectionRefusedError"):
        forward(str(socket), b"letter", wait_s=0.4)
    assert time.monotonic() - start >= 0.4


def test_a_socket_for_a_group_that_is_not_there_is_refused_and_removed(tmp_path):
    socket = tmp_path / "w.sock"
    with pytest.raises(ArgumentError, match="'no such group': no such group"):
        serve(Echo(), socket, group="no such group")
    assert not socket.exists()


def test_a_client_app_with_a_worker_imports_nothing_heavy():
    code = (
        "import sys, bayesfed.flower.client_app; print([m for m in "
        "('torch', 'pyro', 'flwr') if m in sys.modules])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "[]"
    )


def test_flower_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.app", None)
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bayesfed\[flower\]'"):
        FlowerMail()
    import bayesfed.flower.client_app
    import bayesfed.flower.server_app

    for module in (bayesfed.flower.client_app, bayesfed.flower.server_app):
        with pytest.raises(MissingExtraError, match="flwr is not installed"):
            module.app  # noqa: B018
        with pytest.raises(AttributeError):
            module.nothing  # noqa: B018
