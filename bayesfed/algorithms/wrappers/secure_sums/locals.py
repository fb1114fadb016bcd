"""The local steps of the four phases: what a client answers.

Its sessions are in a `Vault`, a folder of its own, apart from its memory, which a server can set
back and which checkpoints contain. Only what the wrapped step keeps is in its memory.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import torch
from torch import Tensor

from bayesfed.algorithms.wrappers.secure_sums.primitives import LIMBS, SECRET, Bits, digest
from bayesfed.algorithms.wrappers.secure_sums.sessions import (
    BOX,
    KEYS,
    PAIR,
    Session,
    refusal,
    session_name,
)
from bayesfed.data import Dataset
from bayesfed.data.files import make_private, write_whole
from bayesfed.errors import CheckpointError
from bayesfed.errors.plurals import plural
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around
from bayesfed.keys import Key
from bayesfed.trees import Tree, under

# Sessions of a client that are kept: some for a server that asks again, few since the keys of
# clients that dropped out are in them.
KEEP = 4
NAME = re.compile("[0-9a-f]{32}")
# Names in a client's memory: what the wrapped step keeps if the round is not lost, and the number
# of that round.
PENDING, SINCE = "secure/pending/", "secure/since"


class Vault:
    """A folder of sessions, which only its owner can read.

    Parameters
    ----------
    folder
        Folder on the client's machine, which lasts as long as a round does. Default: a temporary
        one, removed with the process that made it, for simulations in one process or with its
        workers.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self._lasting = folder is not None
        self.folder = (
            Path(folder).expanduser()
            if folder is not None
            else Path(tempfile.gettempdir()) / f"bayesfed-{secrets.token_hex(16)}"
        )
        if not self._lasting:
            # A copy, in a thread or a worker process, uses the same folder and does not remove it.
            weakref.finalize(self, _remove, self.folder, os.getpid())

    def add(self, client: str) -> Session:
        """Return a new session of a client. Its oldest sessions are removed."""
        session, folder = Session.fresh(), self._of(client)
        make_private(folder)
        old = sorted(folder.glob("*.session"), key=lambda path: path.stat().st_mtime_ns)
        for path in old[: len(old) + 1 - KEEP]:
            path.unlink(missing_ok=True)
        self._write(folder / f"{session.name}.session", session)
        return session

    @contextmanager
    def opened(self, client: str, name: str) -> Iterator[Session]:
        """Let the block use a session of a client. What the block changed is kept when it ends
        without an error, before anything is answered.

        Raises
        ------
        CheckpointError
            If there is no such session, or it is damaged.
        """
        path = self._of(client) / f"{name}.session"
        try:
            # A server says the name.
            content = path.read_bytes() if NAME.fullmatch(name) else b""
            session = Session.model_validate_json(content)
        except (OSError, ValueError) as problem:
            raise CheckpointError(
                f"secure sums, client {client!r}",
                "the keys of this round",
                f"{type(problem).__name__} in {self.folder}",
                "vault=FOLDER beside participants= or secure=, where each question has a process "
                "of its own",
            ) from problem
        before = session.model_copy()
        yield session
        if session != before:
            self._write(path, session)

    def _of(self, client: str) -> Path:
        return self.folder / quote(client, safe="")

    def _write(self, path: Path, session: Session) -> None:
        content = session.model_dump_json().encode()
        if self._lasting:
            write_whole(path, content, private=True)
            return
        # No crash of the machine needs to be survived, so nothing waits for the disk.
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(path)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def settled(memory: Tree, lost: Collection[int]) -> Tree:
    """Return what the wrapped step keeps: what it made in the last round in which the client was
    summed, unless that round was lost.
    """
    if SINCE in memory and int(memory[SINCE]) not in lost:
        return under(memory, PENDING)
    return {
        name: leaf
        for name, leaf in memory.items()
        if name != SINCE and not name.startswith(PENDING)
    }


@dataclass(frozen=True)
class KeysLocal(Around):
    """The first phase: draw the keys of a session and send the public ones.

    Parameters
    ----------
    local
        The wrapped local step.
    vault
        Where clients keep their sessions.
    """

    vault: Vault

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Return the public keys. The memory of the last round in which the client took part is
        settled.
        """
        session = self.vault.add(client_of(key))
        return Fit({"keys": _tensor(session.public)}, settled(memory, message["lost"].tolist()), {})


@dataclass(frozen=True)
class SessionLocal(Around):
    """The second and the fourth phase: answer a question for shares, which leaves the memory as it
    is.

    Parameters
    ----------
    local
        The wrapped local step.
    vault
        Where clients keep their sessions.
    answer
        What a session answers to a message.
    """

    vault: Vault
    answer: Callable[[Session, Tree], Tree]

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Let the session that the message names answer."""
        own = _rows(message, "session", KEYS)[0]
        with self.vault.opened(client_of(key), session_name(own)) as session:
            return Fit(self.answer(session, message), memory, {})


def shares(session: Session, message: Tree) -> Tree:
    """Share the secrets of a session: a sealed pair of shares for each neighbour, and digests."""
    session.share(_rows(message, "neighbours", KEYS), int(message["threshold"]))
    return {
        "boxes": _tensor(b"".join(session.boxes)).reshape(-1, BOX),
        "digests": _tensor(session.digests).reshape(-1, PAIR),
        "seed": _tensor(digest(session.seed)),
    }


def opened(session: Session, message: Tree) -> Tree:
    """Give the shares that take the masks off the sum, zeros where there is none to give."""
    active, dropped = message["active"].tolist(), message["dropped"].tolist()
    given = session.open(active, dropped, _rows(message, "boxes", BOX))
    return {"shares": _tensor(b"".join(given)).reshape(-1, SECRET)}


@dataclass(frozen=True)
class MaskedLocal(Around):
    """The third phase: the integers of a `FixedPointLocal`, masked. What it keeps counts only once
    the round is known not to be lost.

    Parameters
    ----------
    local
        The local step in fixed point.
    vault
        Where clients keep their sessions.
    bits
        Bits of an integer.
    """

    vault: Vault
    bits: Bits

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Run the step, and mask."""
        fit = self.local.fit(message, memory, data, key, options)
        vector = fit.payload["vector"].numpy()
        partners: str = options.secure_partners  # type: ignore[attr-defined]
        name: str = options.secure_session  # type: ignore[attr-defined]
        with self.vault.opened(client_of(key), name) as session:
            flags = [flag == "1" for flag in partners]
            masked = session.mask(vector.view(LIMBS[self.bits]), flags, self.bits)
        payload = {"vector": torch.from_numpy(masked.view(vector.dtype))}
        if not (fit.memory or memory):
            return Fit(payload, {}, {})
        pending = {f"{PENDING}{name}": leaf for name, leaf in fit.memory.items()}
        since = {SINCE: torch.tensor(int(key.path[1]))}
        return Fit(payload, memory | pending | since, {})


def client_of(key: Key) -> str:
    """Return the name of the client whose turn has this key."""
    return str(key.path[2])


def _rows(message: Tree, name: str, length: int) -> list[bytes]:
    """Return the rows of a leaf of bytes."""
    leaf = message[name]
    if leaf.dtype is not torch.uint8 or leaf.ndim != 2 or leaf.shape[1] != length or not len(leaf):
        raise refusal(
            f"rows of {plural(length, 'byte')} in leaf {name!r}",
            f"{leaf.dtype} {tuple(leaf.shape)}",
            "shape",
        )
    return [row.tobytes() for row in leaf.numpy()]


def _tensor(content: bytes) -> Tensor:
    return torch.tensor(list(content), dtype=torch.uint8)
