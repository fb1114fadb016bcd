"""Where a client's memories are stored: `InRam`, in this process, or `InFolder`, on the client's
own disk.

`bayesfed.federated.clients.memory.memories` says which of them are pending and which accepted.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from bayesfed.compress.wire import pack, unpack
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


class Store(Protocol):
    """Where the versions of one client's memory are stored."""

    def versions(self) -> list[Version]:
        """Return all versions, in the order of their numbers."""
        ...

    def read(self, version: Version) -> Tree:
        """Return a version's tree."""
        ...

    def write(self, version: Version, tree: Tree) -> None:
        """Add a version."""
        ...

    def accept(self, version: Version) -> None:
        """Mark a version as accepted, atomically."""
        ...

    def remove(self, version: Version) -> None:
        """Remove a version. One that does not exist is no error."""
        ...


class InRam:
    """A store in the memory of this process."""

    def __init__(self) -> None:
        self._trees: dict[Version, Tree] = {}

    def versions(self) -> list[Version]:
        """Return all versions, in the order of their numbers."""
        return sorted(self._trees, key=lambda version: version.number)

    def read(self, version: Version) -> Tree:
        """Return a copy of the tree that shares its tensors."""
        return dict(self._trees[version])

    def write(self, version: Version, tree: Tree) -> None:
        """Add a version."""
        self._trees[version] = tree

    def accept(self, version: Version) -> None:
        """Mark a version as accepted."""
        self._trees[version._replace(accepted=True)] = self._trees.pop(version)

    def remove(self, version: Version) -> None:
        """Remove a version."""
        self._trees.pop(version, None)


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
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            files.sweep(self.folder)
        except OSError as problem:
            raise self._error(problem) from problem

    def versions(self) -> list[Version]:
        """Return all versions, in the order of their numbers."""
        return sorted(
            (_version(path.stem) for path in self.folder.glob("*.memory")),
            key=lambda version: version.number,
        )

    def read(self, version: Version) -> Tree:
        """Return a version's tree, after checking that the file belongs to the version."""
        path = self._path(version)
        try:
            tree, meta = unpack(path.read_bytes())
        except (OSError, WireError) as problem:
            raise self._error(problem) from problem
        if meta != _meta(version):
            raise self._error(f"one of {meta}")
        return tree

    def write(self, version: Version, tree: Tree) -> None:
        """Add a version."""
        try:
            files.write_whole(self._path(version), pack(tree, _meta(version)))
        except (OSError, WireError) as problem:
            raise self._error(problem) from problem

    def accept(self, version: Version) -> None:
        """Mark a version as accepted, by renaming its file."""
        try:
            self._path(version).replace(self._path(version._replace(accepted=True)))
            files.sync(self.folder)
        except OSError as problem:
            raise self._error(problem) from problem

    def remove(self, version: Version) -> None:
        """Remove a version."""
        try:
            self._path(version).unlink(missing_ok=True)
        except OSError as problem:
            raise self._error(problem) from problem

    def _path(self, version: Version) -> Path:
        round, phase = version.slot or (-1, "")
        state = "accepted" if version.accepted else "pending"
        return self.folder / f"{version.number:08d} {round} {quote(phase, safe='')} {state}.memory"

    def _error(self, problem: object) -> CheckpointError:
        return CheckpointError(
            f"memory in {self.folder}", "undamaged files", problem, "restoring it, or a new run"
        )


def _version(name: str) -> Version:
    try:
        number, round, phase, state = name.split(" ")
        slot = Slot(int(round), unquote(phase)) if int(round) >= 0 else None
        return Version(int(number), slot, {"accepted": True, "pending": False}[state])
    except (ValueError, KeyError) as problem:
        raise CheckpointError(
            "memory", "files of ours", f"{name!r}", "a folder of its own"
        ) from problem


def _meta(version: Version) -> dict[str, str | int]:
    round, phase = version.slot or (-1, "")
    return {"number": version.number, "round": round, "phase": phase}
