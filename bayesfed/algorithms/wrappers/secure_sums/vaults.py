"""Where a client keeps its sessions: in a folder of its own, apart from its memory, which a server
can set back and which checkpoints contain.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from bayesfed.algorithms.wrappers.secure_sums.sessions import Session
from bayesfed.data.files import write_whole
from bayesfed.errors import CheckpointError

# Sessions of a client that are kept: some for a server that asks again, few since the keys of
# clients that dropped out are in them.
KEEP = 4
NAME = re.compile("[0-9a-f]{32}")


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
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
            where, expected = (
                f"secure sums, client {client!r}",
                f"the keys of this round in {self.folder}",
            )
            hint = "secure(..., vault=FOLDER) where each question has a process of its own"
            raise CheckpointError(where, expected, type(problem).__name__, hint) from problem
        before = session.model_copy()
        yield session
        if session != before:
            self._write(path, session)

    def _of(self, client: str) -> Path:
        return self.folder / quote(client, safe="")

    def _write(self, path: Path, session: Session) -> None:
        content = session.model_dump_json().encode()
        if self._lasting:
            write_whole(path, content)
            return
        # No crash of the machine needs to be survived, so nothing waits for the disk.
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(content)
        partial.replace(path)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
