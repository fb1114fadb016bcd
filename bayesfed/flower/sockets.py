"""Sends bytes to the worker beside a node over a local socket, without pickling."""

from __future__ import annotations

from multiprocessing.connection import Client

from bayesfed.errors import ArgumentError


def forward(socket: str, letter: bytes) -> bytes:
    """Send a letter to the worker at a socket and return its answer.

    Raises
    ------
    ArgumentError
        If no worker listens at the socket, or it stops before it has answered.
    """
    try:
        with Client(socket, family="AF_UNIX") as connection:
            connection.send_bytes(letter)
            return connection.recv_bytes()
    except (OSError, EOFError) as problem:
        hint = "python -m bayesfed.flower.worker --socket ..."
        raise ArgumentError(
            f"socket {socket!r}", "a worker that answers", repr(problem), hint
        ) from problem
