"""A client that stays alive beside its SuperNode, model and data in memory: ``python -m bayesfed.flower.worker --socket ...``.

Flower starts a process for every message; with a worker that process only passes bytes on. The node is told of it by
``--node-config 'socket="/run/bayesfed/ward-a.sock"'``. Whoever may write to the socket may ask the client: it is this user's alone.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing.connection import Client, Listener
from pathlib import Path
from types import FrameType

from bayesfed.compress.wire import MAX_BYTES
from bayesfed.errors import ArgumentError, complain
from bayesfed.flower.experiment import load
from bayesfed.flower.letters import ROOM
from bayesfed.flower.site import Site


def serve(site: Site, socket: str | Path) -> None:
    """Answer letters at a socket until the process is told to stop, one at a time.

    Raises
    ------
    ArgumentError
        If a worker listens there already, or the socket cannot be made.
    """
    with _listener(str(socket)) as listener:
        while True:
            try:
                with listener.accept() as connection:
                    connection.send_bytes(site.handle(connection.recv_bytes(MAX_BYTES + ROOM)))
            except (OSError, EOFError):
                # Whoever asked has gone, or sent what is too long: the next one is served.
                continue


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(prog="bayesfed worker", description="Keep a client's model and data alive beside its SuperNode.")
    parser.add_argument("--socket", type=Path, required=True, help="where to listen")
    parser.add_argument("--experiment", required=True, help="module:function, as the run's")
    parser.add_argument("--client", required=True, help="this client's name")
    parser.add_argument("--folder", type=Path, default=Path("~/.bayesfed/memory"), help="where its memories are kept")
    parser.add_argument("--path", type=Path, default=Path(), help="the folder of the experiment's module")
    parser.add_argument("--secret-file", type=Path, help="its key, in keyed runs")
    chosen = parser.parse_args(arguments)
    sys.path.insert(0, str(chosen.path.resolve()))
    secret = chosen.secret_file.read_bytes() if chosen.secret_file else None
    site = Site(chosen.client, load(chosen.experiment), chosen.folder.expanduser(), secret=secret)
    rows = len(site.data)
    signal.signal(signal.SIGTERM, _stop)
    print(f"client {chosen.client!r}, {rows} rows, at {chosen.socket}", flush=True)  # noqa: T201
    with contextlib.suppress(KeyboardInterrupt):
        serve(site, chosen.socket)
    return 0


def _stop(signal: int, frame: FrameType | None) -> None:
    # So that the socket is taken away.
    raise KeyboardInterrupt


def _listener(socket: str) -> Listener:
    if Path(socket).is_socket():
        try:
            Client(socket, family="AF_UNIX").close()
        except OSError:
            Path(socket).unlink()
        else:
            raise ArgumentError(complain("worker", expected="a socket of its own", actual=f"another worker at {socket}", hint="another --socket"))
    before = os.umask(0o077)
    try:
        return Listener(socket, family="AF_UNIX")
    except OSError as problem:
        hint = "a shorter path in a folder that is there"
        raise ArgumentError(complain("worker", expected="a socket that can be made", actual=f"{socket}: {problem}", hint=hint)) from problem
    finally:
        os.umask(before)


if __name__ == "__main__":
    sys.exit(main())
