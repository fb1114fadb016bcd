"""The ClientApp: ``clientapp = "bayesfed.flower.client_app:app"``.

Flower starts a process for every message. The app passes the bytes to a `Site` in this process or,
if the node has a ``socket``, to the worker there, which keeps model and data in memory; then
nothing heavy is imported here.

====================  ==============================================================================
``--node-config``
====================  ==============================================================================
client                name of this client; without it ``client-000`` for ``partition-id=0`` and so
                      on
folder                folder of its memories; ``~/.bayesfed/memory`` by default
secret-file           file of its key, in keyed runs
socket                socket of its worker (`bayesfed.flower.worker`), which has these settings
                      itself
====================  ==============================================================================
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesfed.errors import ArgumentError, needs, public_text
from bayesfed.flower.messages import ACTION, content_of, record
from bayesfed.flower.site_log import log, print_log

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

# How long a letter waits for a worker that is being started, and how often it looks.
WORKER_WAIT_S = 60.0
POLL_S = 0.2

__all__ = ["app", "client_app", "client_name", "respond"]  # noqa: F822 app is created at first use


def client_app() -> ClientApp:
    """Return a ClientApp that answers the messages of this package.

    Raises
    ------
    MissingExtraError
        If Flower is not installed.
    """
    made: ClientApp = needs("flwr.clientapp", "flower", "flwr").ClientApp()

    def handle(message: Message, context: Context) -> Message:
        from flwr.app import Message

        answer = respond(content_of(message), context.node_config, context.run_config)
        return Message(record(answer), reply_to=message)

    made.query(ACTION)(handle)
    return made


def respond(letter: bytes, node: Mapping[str, Any], run: Mapping[str, Any]) -> bytes:
    """Return the answer to a letter, computed here or by the worker.

    It never raises, since Flower sends the text of an error to the server: if the node has no name,
    the run has no experiment, or no worker listens at the socket, the answer has the stage "app"
    and says so without paths, and the log of the site has all of it.

    Parameters
    ----------
    letter
        The letter.
    node, run
        Flower's ``--node-config`` and ``--run-config``.
    """
    print_log()
    try:
        return _answered(letter, node, run)
    except (Exception, SystemExit) as problem:
        from bayesfed.flower.letters import Answer

        client = client_name(node) if {"client", "partition-id"} & node.keys() else ""
        log.warning("client %r, stage 'app': %s", client, problem, exc_info=problem)
        return Answer(client, -1, "", stage="app", reason=public_text(problem)).write()


def _answered(letter: bytes, node: Mapping[str, Any], run: Mapping[str, Any]) -> bytes:
    if "socket" in node:
        return forward(str(node["socket"]), letter, wait_s=WORKER_WAIT_S)
    if "experiment" not in run:
        raise ArgumentError(
            "run-config", "experiment", sorted(run), 'experiment="experiment:experiment"'
        )
    from bayesfed.flower.experiment import load
    from bayesfed.flower.site import Site

    secret = Path(str(node["secret-file"])).read_bytes() if "secret-file" in node else None
    folder = Path(str(node.get("folder", "~/.bayesfed/memory"))).expanduser()
    return Site(client_name(node), load(str(run["experiment"])), folder, secret=secret).handle(
        letter
    )


def forward(socket: str, letter: bytes, *, wait_s: float = 0.0) -> bytes:
    """Send a letter to the worker at a socket, without pickling, and return its answer.

    Parameters
    ----------
    socket
        Path of the socket.
    letter
        The letter.
    wait_s
        Seconds to wait for a worker that does not listen yet: it is being started.

    Raises
    ------
    ArgumentError
        If no worker listens at the socket, or it stops before it has answered.
    """
    try:
        with _connect(socket, wait_s) as connection:
            connection.send_bytes(letter)
            return connection.recv_bytes()
    except (OSError, EOFError) as problem:
        raise ArgumentError(
            "socket",
            "a worker that answers",
            f"{problem!r} at {socket!r}",
            "python -m bayesfed.flower.worker --socket ...",
        ) from problem


def _connect(socket: str, wait_s: float) -> Connection:
    """Return a connection to a worker, which may start within these seconds."""
    end = time.monotonic() + wait_s
    while True:
        try:
            return Client(socket, family="AF_UNIX")
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() >= end:
                raise
            time.sleep(POLL_S)


def client_name(node: Mapping[str, Any]) -> str:
    """Return the name of the client in a node's configuration.

    Raises
    ------
    ArgumentError
        If the configuration has neither a name nor a number.
    """
    if "client" in node:
        return str(node["client"])
    if "partition-id" in node:
        return f"client-{int(node['partition-id']):03d}"
    raise ArgumentError(
        "node-config", "client or partition-id", sorted(node), "--node-config 'client=\"ward-a\"'"
    )


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(name)
    globals()["app"] = made = client_app()
    return made
