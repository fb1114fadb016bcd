"""`InFolder`: a client's memories on its own disk.

`bayesfed.federated.clients.memory.memories` says which of them are pending and which accepted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from bayesfed.compress import pack, unpack
from bayesfed.data import files
from bayesfed.errors import CheckpointError, WireError
from bayesfed.trees import Tree


class Slot(NamedTuple):
    """The exchange in which a memory was made, which identifies it on both ends."""

    round: int
    phase: str


class Version(NamedTuple):
    """One memory in a store.

    Parameters
    ----------
    number
        Position in the order in which memories were made.
    slot
        Exchange in which it was made; None for one from before the first exchange.
    accepted
        Whether the server accepted its payload.
    """

    number: int
    slot: Slot | None
    accepted: bool


class InFolder:
    """A store in a folder of one client and one run. Each version is a file in the wire format
    (with a digest, never unpickled), written atomically.

    Parameters
    ----------
    folder
        Folder of the files; made if it does not exist.

    Raises
    ------
    CheckpointError
        From any method, if a file cannot be read or written, or is damaged.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        with self._named():
            self.folder.mkdir(parents=True, exist_ok=True)
            files.sweep(self.folder)

    def versions(self) -> list[Version]:
        """Return all versions, in the order of their numbers."""
        found = map(_version, self.folder.glob("*.memory"))
        return sorted(found, key=lambda version: version.number)

    def read(self, version: Version) -> Tree:
        """Return a version's tree, after checking that the file belongs to the version."""
        with self._named():
            tree, meta = unpack(self._path(version).read_bytes())
        if meta != _meta(version):
            raise self._error(f"one of {meta}")
        return tree

    def write(self, version: Version, tree: Tree) -> None:
        """Add a version."""
        with self._named():
            files.write_whole(self._path(version), pack(tree, _meta(version)))

    def accept(self, version: Version) -> None:
        """Mark a version as accepted, by renaming its file."""
        with self._named():
            self._path(version).replace(self._path(version._replace(accepted=True)))
            files.sync(self.folder)

    def remove(self, version: Version) -> None:
        """Remove a version."""
        with self._named():
            self._path(version).unlink(missing_ok=True)

    def _path(self, version: Version) -> Path:
        round, phase = version.slot or (-1, "")
        state = "accepted" if version.accepted else "pending"
        return self.folder / f"{version.number:08d} {round} {quote(phase, safe='')} {state}.memory"

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say which memory cannot be read or written."""
        try:
            yield
        except (OSError, WireError) as problem:
            raise self._error(problem) from problem

    def _error(self, problem: object) -> CheckpointError:
        return CheckpointError(
            f"memory in {self.folder}", "undamaged files", problem, "restoring it, or a new run"
        )


def _version(path: Path) -> Version:
    try:
        number, round, phase, state = path.stem.split(" ")
        slot = Slot(int(round), unquote(phase)) if int(round) >= 0 else None
        return Version(int(number), slot, {"accepted": True, "pending": False}[state])
    except (ValueError, KeyError) as problem:
        raise CheckpointError(
            "memory", "files of ours", repr(path.stem), "a folder of its own"
        ) from problem


def _meta(version: Version) -> dict[str, str | int]:
    round, phase = version.slot or (-1, "")
    return {"number": version.number, "round": round, "phase": phase}
