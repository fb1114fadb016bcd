"""A client that stays alive beside its SuperNode, with model and data in memory:
``python -m bayesfed.flower.worker --socket ...``.

Flower starts a process for every message; with a worker, that process only forwards bytes. The node
finds the worker by ``--node-config 'socket="/run/bayesfed/ward-a.sock"'``. Only the user who
started the worker may write to the socket, and with ``--socket-group`` also the members of a group:
the worker then runs as the user who owns the rows, the node as another user who cannot read them.
What goes wrong is printed in full, with the time; the server gets a text without cells of rows.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import FrameType

from bayesfed.compress.wire import MAX_BYTES
from bayesfed.errors import ArgumentError
from bayesfed.flower.experiment import load
from bayesfed.flower.letters import ROOM
from bayesfed.flower.site import Site
from bayesfed.flower.site_log import print_log

# Permissions of a socket that its owner and a group may use, and nobody else.
SHARED = 0o660


def serve(site: Site, socket: str | Path, group: str = "") -> None:
    """Answer letters at a socket, one at a time, until the process is stopped.

    Parameters
    ----------
    site
        The client that answers.
    socket
        Path of the socket, which is created.
    group
        Name of a group whose members may write to the socket as well. Empty: only the user of this
        process may.

    Raises
    ------
    ArgumentError
        If another worker listens at the socket, it cannot be created, or it cannot be given to the
        group.
    """
    with _listener(str(socket)) as listener:
        if group:
            _share(str(socket), group)
        while True:
            try:
                with listener.accept() as connection:
                    connection.send_bytes(site.handle(connection.recv_bytes(MAX_BYTES + ROOM)))
            except (OSError, EOFError):
                # The caller has gone, or its letter is too long: serve the next one.
                continue


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="bayesfed worker",
        description="Keep a client's model and data alive beside its SuperNode.",
    )
    parser.add_argument("--socket", type=Path, required=True, help="where to listen")
    parser.add_argument(
        "--socket-group",
        default="",
        metavar="GROUP",
        help="a group whose members may use the socket, for a node that runs as another user",
    )
    parser.add_argument("--experiment", required=True, help="module:function, as the run's")
    parser.add_argument("--client", required=True, help="this client's name")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path("~/.bayesfed/memory"),
        help="where its memories are kept",
    )
    parser.add_argument(
        "--path", type=Path, default=Path(), help="the folder of the experiment's module"
    )
    parser.add_argument("--secret-file", type=Path, help="its key, in keyed runs")
    chosen = parser.parse_args(arguments)
    print_log()
    sys.path.insert(0, str(chosen.path.resolve()))
    secret = chosen.secret_file.read_bytes() if chosen.secret_file else None
    site = Site(chosen.client, load(chosen.experiment), chosen.folder.expanduser(), secret=secret)
    rows = len(site.data)
    signal.signal(signal.SIGTERM, _stop)
    print(f"client {chosen.client!r}, {rows} rows, at {chosen.socket}", flush=True)  # noqa: T201
    with contextlib.suppress(KeyboardInterrupt):
        serve(site, chosen.socket, group=chosen.socket_group)
    return 0


def _stop(signal: int, frame: FrameType | None) -> None:
    # Raised so that the socket is removed.
    raise KeyboardInterrupt


def _listener(socket: str) -> Listener:
    if Path(socket).is_socket():
        try:
            Client(socket, family="AF_UNIX").close()
        except OSError:
            Path(socket).unlink()
        else:
            raise ArgumentError(
                "worker", "a socket of its own", f"another worker at {socket}", "another --socket"
            )
    # Nobody but the owner can use the socket from the moment it exists.
    before = os.umask(0o177)
    try:
        return Listener(socket, family="AF_UNIX")
    except OSError as problem:
        raise ArgumentError(
            "worker",
            "a socket that can be made",
            f"{socket}: {problem}",
            "a shorter path in a folder that is there",
        ) from problem
    finally:
        os.umask(before)


def _share(socket: str, group: str) -> None:
    """Let the members of a group write to a socket."""
    try:
        shutil.chown(socket, group=group)
    except (LookupError, OSError) as problem:
        raise ArgumentError(
            "worker, group",
            "a group that the worker's user belongs to",
            f"{group!r}: {problem}",
            "a group of this machine that this user is in: usermod --append --groups GROUP USER",
        ) from problem
    Path(socket).chmod(SHARED)


if __name__ == "__main__":
    sys.exit(main())
