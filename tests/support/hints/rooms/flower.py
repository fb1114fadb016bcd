"""Messages of `bayesfed.flower`, over a grid of nodes in this process."""

import contextlib
import grp
import os
import sys
import tempfile
import threading
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import torch

import bayesfed as bf
from bayesfed.compress.wire import seal, unseal
from bayesfed.errors import ArgumentError
from bayesfed.federated import Digital, Profile
from bayesfed.flower import Experiment, Flower
from bayesfed.flower.client_app import client_name, forward, respond
from bayesfed.flower.experiment import load
from bayesfed.flower.fingerprint import parts_of
from bayesfed.flower.letters import Answer, Hello, Name, Question, read_reply, read_request
from bayesfed.flower.memories import PHASE, ROUND, RemoteMemories
from bayesfed.flower.server_app import serve
from bayesfed.flower.site import Site
from bayesfed.flower.site_log import print_log
from bayesfed.flower.starting import new_app
from bayesfed.flower.worker import serve as listen
from tests.flower.flower_grid import FakeGrid, PlainMail, sites
from tests.flower.test_flower_letters import QUESTION
from tests.house.wrong_calls.given import CLIENTS, avg

COMPLETE = ("bayesfed/flower",)
HERE = __name__
PARTS = {f"client-00{number}": part for number, part in enumerate(CLIENTS.values())}


def tiny():
    """Return an experiment of one round."""
    return Experiment(algorithm=avg(), data=PARTS.get, rounds=1)


def nothing():
    """Return no experiment."""
    return 3


def folder():
    """Return a new folder."""
    return Path(tempfile.mkdtemp())


def responded(run, **node):
    """Answer a letter of a server."""
    respond(Hello().write(), {"client": "client-000", "folder": str(folder()), **node}, run)


class Worker:
    """A client that answers anything, until it is told to stop."""

    def handle(self, letter):
        """Answer."""
        if letter == b"stop":
            raise SystemExit
        return b"answer"


def until_stopped(socket, group):
    """Answer letters until told to stop."""
    with contextlib.suppress(SystemExit):
        listen(Worker(), socket, group=group)


def at_socket(call, group=""):
    """Make a call while a worker listens at a socket."""
    socket = str(folder() / "socket")
    thread = threading.Thread(target=until_stopped, args=(socket, group))
    thread.start()
    while not Path(socket).is_socket():
        time.sleep(0.001)
    try:
        call(socket)
    finally:
        # The file is there before anybody listens, so that a first letter may be refused.
        while thread.is_alive():
            with contextlib.suppress(ArgumentError):
                forward(socket, b"stop")
            thread.join(0.05)


def pool(nodes=None, clients=2, parts=PARTS, **options):
    """Greet the nodes of a grid."""
    nodes = sites(avg(), parts, folder()) if nodes is None else nodes
    grid = FakeGrid(nodes)
    given = {"mail": PlainMail(), "clock": grid.clock, "wait": grid.wait, **options}
    return Flower(grid, clients, **given), grid


def named(*names):
    """Greet nodes whose clients have these names."""
    nodes = sites(avg(), PARTS, folder())
    made = dict(enumerate(nodes[9000 - 7 * sorted(PARTS).index(name)] for name in names))
    return pool(made, len(names), hello_s=5.0)


def coming(hello_s):
    """Greet a node that starts after ten seconds."""
    (first, one), (later, other) = sites(avg(), PARTS, folder()).items()
    grid = FakeGrid({first: one})
    grid.at(10.0, lambda: grid.start(later, other))
    Flower(grid, 2, hello_s=hello_s, mail=PlainMail(), clock=grid.clock, wait=grid.wait, poll_s=1.0)


def run(over):
    """Run a round over a pool."""
    bf.run(avg(), over, rounds=1, progress=False)


def slow(deadline_s):
    """Wait for nodes that take half a minute."""
    over, grid = pool(deadline_s=deadline_s, poll_s=1.0)
    grid.delays = {(node, 1): 30.0 for node in grid.nodes}
    run(over)


def gone(back):
    """Run with a node that goes while it works, and comes back or does not."""
    over, grid = pool(poll_s=1.0)
    node, handler = next(iter(grid.nodes.items()))
    grid.delays[node, 1] = 5.0
    grid.at(2.0, lambda: grid.kill(node, seen=not back))
    grid.at(2.5, lambda: grid.start(1, handler) if back else None)
    run(over)


def pushed():
    """Run where Flower takes no message."""
    over, grid = pool()
    grid.push_messages = lambda messages: [None for _ in messages]
    run(over)


def replied(change=lambda reply: reply):
    """Run with clients whose answers are changed on the way."""
    over, grid = pool()
    grid.tamper = lambda replies: [change(reply) for reply in replies]
    run(over)


def instead(letter):
    """Run with clients that answer with another letter."""
    replied(lambda reply: replace(reply, content=letter.write()))


def mistaken(name="client-000", experiment="", phases=None):
    """Ask a client what is meant for another one, or of another experiment; its log is printed."""
    print_log()
    given = Experiment(algorithm=avg(), data=PARTS.get, rounds=1)
    task = replace(QUESTION.task, client="client-000")
    site = Site(name, given, folder())
    reply = read_reply(site.handle(Question(task, None, experiment=experiment).write()))
    if reply.stage == "letter":
        sys.stdout.write(reply.reason)


def described(value=1.0):
    """Return the parts of an experiment with a value."""
    return parts_of(replace(avg(), origin={"value": value}))


def nested():
    """Return a value that is nested too deeply."""
    value = []
    for _ in range(100):
        value = [value]
    return value


def sourceless():
    """Return a function without source text."""
    names = {}
    exec("def function():\n    return 1\n", names)
    return names["function"]


def served(**changes):
    """Run the app of a server."""
    grid = FakeGrid(sites(avg(), PARTS, folder()))
    run = {"experiment": f"{HERE}:tiny", "clients": 2, "out": str(folder()), **changes}
    run = {name: value for name, value in run.items() if value is not None}
    serve(grid, run, mail=PlainMail(), clock=grid.clock, wait=grid.wait)


def keyed():
    """Run it with a key for each client."""
    place, secrets = folder(), {name: 2 * name.encode() for name in PARTS}
    for name, secret in secrets.items():
        (place / name).write_bytes(secret)
    grid = FakeGrid(sites(avg(), PARTS, folder(), secrets))
    run = {"experiment": f"{HERE}:tiny", "clients": 2, "out": str(folder())}
    given = {"mail": PlainMail(), "clock": grid.clock, "wait": grid.wait}
    serve(grid, {**run, "secrets": str(place)}, **given)


def again(**changes):
    """Run it twice into one folder."""
    out = str(folder())
    served(out=out)
    served(out=out, **changes)


def template():
    """Run it with what the template's configuration has."""
    text = (new_app(folder() / "app") / "pyproject.toml").read_text()
    keys = tomllib.loads(text)["tool"]["flwr"]["app"]["config"].keys()
    assert {"experiment", "clients", "out"} <= keys
    served()


def asked(phases=("train",), **fields):
    """Read a letter of a server."""
    leaves, meta = unseal(QUESTION.write())
    read_request(seal(leaves, {**meta, **fields}), dict.fromkeys(phases, Digital()))


def cut():
    """Read a question without its sections."""
    read_request(seal([], unseal(QUESTION.write())[1]), {"train": Digital()})


def restored(memory):
    """Go back to memories of a checkpoint."""
    RemoteMemories().restore({"client-000": memory})


def app(there):
    """Write the template into a folder in which it may be already."""
    place = folder()
    new_app(place)
    new_app(place if there else folder())


CASES = [
    (
        lambda: responded({}),
        'experiment="experiment:experiment"',
        lambda: responded({"experiment": f"{HERE}:tiny"}),
    ),
    (
        lambda: forward(str(folder() / "nobody"), b"letter"),
        "python -m bayesfed.flower.worker --socket ...",
        lambda: at_socket(lambda socket: forward(socket, b"letter")),
    ),
    (
        lambda: client_name({"folder": "x"}),
        "--node-config 'client=\"ward-a\"'",
        lambda: client_name({"client": "ward-a"}),
    ),
    (
        lambda: load(f"{HERE}:nobody"),
        "module:function, the module beside the app's pyproject.toml",
        lambda: load(f"{HERE}:tiny"),
    ),
    (lambda: load(f"{HERE}:nothing"), "return Experiment(...)", lambda: load(f"{HERE}:tiny")),
    (lambda: asked(["other"]), "one experiment on both sides", asked),
    (lambda: asked(kind="answer"), "one version of bayesfed on both sides", asked),
    (lambda: asked(version=2), "one version of bayesfed on both sides", asked),
    (cut, "sending it again", asked),
    (
        lambda: restored({"feedback/x": torch.zeros(1)}),
        "a checkpoint of a run over Flower",
        lambda: restored({ROUND: torch.tensor(1), PHASE: torch.tensor([97], dtype=torch.uint8)}),
    ),
    (lambda: pool(clients=0), "clients=3", lambda: named(*PARTS)),
    (
        lambda: named("client-000", "client-000"),
        "a name of its own for each node",
        lambda: named("client-000", "client-001"),
    ),
    (lambda: coming(5.0), "a larger hello_s", lambda: coming(50.0)),
    (lambda: coming(5.0), "starting their nodes", pool),
    (
        lambda: pool(clients=1),
        "the names of those that are meant as clients",
        lambda: pool(clients=["client-001"]),
    ),
    (
        lambda: pool(parts={name: part[:0] for name, part in PARTS.items()}),
        "the data function",
        pool,
    ),
    (lambda: served(clients=None), "the template's pyproject.toml", template),
    (again, "resume=true", lambda: again(resume=True)),
    (
        lambda: served(secrets="nowhere"),
        "its full path",
        keyed,
    ),
    (lambda: slow(10.0), "a larger deadline_s", lambda: slow(100.0)),
    (lambda: gone(False), "starting it again", lambda: gone(True)),
    (pushed, "Flower did not take the message", None),
    (lambda: replied(lambda reply: replace(reply, error="Flower's error")), "error", None),
    (lambda: replied(lambda reply: replace(reply, content=b"")), "a message from seal", replied),
    (
        lambda: instead(Name(Profile("x", 1), "")),
        "one version of bayesfed on both sides",
        replied,
    ),
    (
        lambda: instead(Answer("client-009", 0, "train")),
        "one version of bayesfed on both sides",
        replied,
    ),
    (lambda: instead(Answer("x", 0, "train", stage="fit", reason="boom")), "boom", None),
    (
        lambda: mistaken("client-001"),
        "a name of its own for each node",
        lambda: mistaken("client-000"),
    ),
    (
        lambda: mistaken(experiment="another"),
        "one experiment on both sides",
        lambda: mistaken(experiment=Experiment(algorithm=avg(), data=PARTS.get).fingerprint),
    ),
    (lambda: described(nested()), "an algorithm without such a value", described),
    (
        lambda: described(sourceless()),
        "def in a file that both sides have",
        lambda: described(nested),
    ),
    (
        lambda: listen(Worker(), str(folder() / "s"), "no such group"),
        "a group of this machine that this user is in",
        lambda: at_socket(print),
    ),
    (
        lambda: Experiment(algorithm=avg(), data=3),
        "lambda client: Dataset(inputs, targets)",
        lambda: Experiment(algorithm=avg(), data=lambda client: PARTS[client]),
    ),
    (lambda: app(True), "another folder", lambda: app(False)),
    (
        lambda: at_socket(lambda socket: listen(Worker(), socket)),
        "another --socket",
        lambda: at_socket(print),
    ),
    (
        lambda: listen(Worker(), str(folder() / "nowhere" / "socket")),
        "a shorter path in a folder that is there",
        lambda: at_socket(print),
    ),
    (
        lambda: listen(Worker(), str(folder() / "socket"), group="no such group"),
        "usermod --append --groups GROUP USER",
        lambda: at_socket(print, group=grp.getgrgid(os.getgid()).gr_name),
    ),
]
