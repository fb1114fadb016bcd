"""What a client keeps between rounds, on its own disk (`InFolder`) and committed in two phases
(`ClientMemory`), so that client and server always agree on it.

The memory that a client makes while it answers is pending, beside the accepted one. It is accepted
once the server has accepted the payload that it belongs to. If that payload is refused, late or
lost, the pending memory is dropped, and the client keeps the memory that it had.
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
from bayesfed.errors.checks import checked, whole
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


__all__ = ["ClientMemory", "Slot"]


class ClientMemory:
    """One client's memory, committed in two phases. A second call of a method with the same slot
    has no further effect.

    Parameters
    ----------
    store
        Where memories are stored: `InFolder(path)`, on the client's own disk.
    keep
        Number of accepted memories that are kept for a server that resumes from an older
        checkpoint. A server that saves every n rounds and keeps two checkpoints may go back ``2 n``
        memories.

    Raises
    ------
    ArgumentError
        If `keep` is below 1.
    CheckpointError
        From any method, if a memory is damaged or cannot be written, or the server counts on one
        that is missing.
    """

    @checked(keep=whole(1, "2"))
    def __init__(self, store: InFolder, *, keep: int = 1) -> None:
        self._store, self._keep = store, keep

    @property
    def accepted(self) -> Slot | None:
        """The slot of the newest accepted memory; None before the first."""
        return version.slot if (version := self._newest()) else None

    @property
    def pending(self) -> Slot | None:
        """The slot of the pending memory; None if there is none."""
        return version.slot if (version := self._pending()) else None

    def read(self) -> Tree:
        """Return the newest accepted memory; empty before the first."""
        return self._store.read(version) if (version := self._newest()) else {}

    def pend(self, slot: Slot, tree: Tree) -> None:
        """Store `tree` as pending until its slot is promoted or dropped. It replaces any other
        pending memory.
        """
        for version in self._write(tree, slot, False):
            if not version.accepted:
                self._store.remove(version)

    def promote(self, slot: Slot) -> None:
        """Accept the pending memory of a slot, because the server has accepted its payload.

        Raises
        ------
        CheckpointError
            If the slot's memory is neither pending nor the newest accepted one.
        """
        pending = self._pending()
        if pending is None or pending.slot != slot:
            if self.accepted != slot:
                raise CheckpointError(
                    "memory", f"one of {slot}", (self.accepted, self.pending), "a new run"
                )
            return
        self._store.accept(pending)
        for version in self._accepted()[: -self._keep]:
            self._store.remove(version)

    def drop(self, slot: Slot) -> None:
        """Drop the pending memory if it belongs to this slot, because its payload was refused, late
        or lost.
        """
        pending = self._pending()
        if pending is not None and pending.slot == slot:
            self._store.remove(pending)

    def agree(self, slot: Slot | None) -> None:
        """Go forward or back to the memory of the slot that the server last accepted from this
        client.

        A client calls this for every message before it reads its memory. The slot settles what
        became of all earlier payloads.

        Parameters
        ----------
        slot
            Slot that the server counts on. None if it has accepted nothing yet: all memories are
            then removed.

        Raises
        ------
        CheckpointError
            If the memory of that slot is missing.
        """
        if slot is not None and slot == self.pending:
            self.promote(slot)
        elif slot is not None and slot not in [version.slot for version in self._accepted()]:
            raise CheckpointError(
                "memory",
                f"one of {slot}, which the server counts on",
                self.accepted,
                "a larger keep, or a new run",
            )
        for version in reversed(self._store.versions()):
            if version.accepted and version.slot == slot:
                break
            self._store.remove(version)

    def replace(self, tree: Tree, slot: Slot | None = None) -> None:
        """Remove all memories, and store `tree` as accepted. This restores a checkpoint."""
        for version in self._write(tree, slot, True):
            self._store.remove(version)

    def _write(self, tree: Tree, slot: Slot | None, accepted: bool) -> list[Version]:
        """Add a version, and return those from before."""
        versions = self._store.versions()
        number = versions[-1].number + 1 if versions else 1
        self._store.write(Version(number, slot, accepted), tree)
        return versions

    def _accepted(self) -> list[Version]:
        return [version for version in self._store.versions() if version.accepted]

    def _newest(self) -> Version | None:
        return accepted[-1] if (accepted := self._accepted()) else None

    def _pending(self) -> Version | None:
        # A pending memory that is older than an accepted one is left over from a crash between two
        # steps.
        versions = self._store.versions()
        return versions[-1] if versions and not versions[-1].accepted else None
