"""Bytes to the worker beside a node and back, over a socket of this machine; nothing is pickled."""

from __future__ import annotations

from multiprocessing.connection import Client

from bayesfed.errors import ArgumentError, complain


def forward(socket: str, letter: bytes) -> bytes:
    """Hand a letter to the worker and return its answer.

    Raises
    ------
    ArgumentError
        If nobody listens there, or the worker stops before it has answered.
    """
    try:
        with Client(socket, family="AF_UNIX") as connection:
            connection.send_bytes(letter)
            return connection.recv_bytes()
    except (OSError, EOFError) as problem:
        hint = "python -m bayesfed.flower.worker --socket ..."
        raise ArgumentError(complain(f"socket {socket!r}", expected="a worker that answers", actual=repr(problem), hint=hint)) from problem
