"""What a client keeps between rounds, in two phases, so that client and server never disagree about it.

What a client makes while it answers waits beside what it had. It counts once the server has taken the payload it belongs to; what
belongs to a payload that was refused, late or lost is dropped. A straggler that was given up on is where it was.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote

from bayesfed import files
from bayesfed.compress.wire import pack, unpack
from bayesfed.errors import ArgumentError, CheckpointError, WireError, complain
from bayesfed.trees import Tree


class Slot(NamedTuple):
    """The exchange a memory was made in: it names the memory on both ends."""

    round: int
    phase: str


class Version(NamedTuple):
    """One memory in a store: its number in the order of making, its slot (None: before any), whether the server took it."""

    number: int
    slot: Slot | None
    accepted: bool


class Store(Protocol):
    """Where versions lie."""

    def versions(self) -> list[Version]:
        """Return all, in the order of their numbers."""
        ...

    def read(self, version: Version) -> Tree:
        """Return a version's tree."""
        ...

    def write(self, version: Version, tree: Tree) -> None:
        """Add a version."""
        ...

    def accept(self, version: Version) -> None:
        """Mark a version as accepted, whole or not at all."""
        ...

    def remove(self, version: Version) -> None:
        """Remove a version; one that is gone already is no error."""
        ...


class InRam:
    """Versions of this process."""

    def __init__(self) -> None:
        self._trees: dict[Version, Tree] = {}

    def versions(self) -> list[Version]:
        """Return all, in the order of their numbers."""
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
    """Versions in a folder of one client and one run: a file each in the wire format (digests, nothing unpickled), written atomically.

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
        """Return all, in the order of their numbers."""
        return sorted((_version(path.stem) for path in self.folder.glob("*.memory")), key=lambda version: version.number)

    def read(self, version: Version) -> Tree:
        """Read a version's tree and check that it is what its name says."""
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
        """Mark a version as accepted: one rename."""
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
        return CheckpointError(complain(f"memory in {self.folder}", expected="undamaged files", actual=problem, hint="restoring it, or a new run"))


class ClientMemory:
    """One client's memory in two phases. Every method may be called again with the same slot and does nothing more.

    Parameters
    ----------
    store
        `InRam()` by default; `InFolder(path)` on a client's own disk, where it outlives the process.
    keep
        How many accepted memories are kept for a server that resumes from an older checkpoint: one that saves every n rounds and keeps
        two may go back ``2 n`` of them.

    Raises
    ------
    CheckpointError
        If a memory is damaged, cannot be written, or the server counts on one that is not here.
    """

    def __init__(self, store: Store | None = None, *, keep: int = 1) -> None:
        if keep < 1:
            raise ArgumentError(complain("ClientMemory", expected="keep >= 1", actual=keep, hint="2"))
        self._store: Store = InRam() if store is None else store
        self._keep = keep

    @property
    def accepted(self) -> Slot | None:
        """The slot of the memory that counts; None before the first."""
        return version.slot if (version := self._newest()) else None

    @property
    def pending(self) -> Slot | None:
        """The slot of the memory that waits."""
        return version.slot if (version := self._waiting()) else None

    def read(self) -> Tree:
        """Return the memory that counts; empty before the first."""
        return self._store.read(version) if (version := self._newest()) else {}

    def pend(self, slot: Slot, tree: Tree) -> None:
        """Let a memory wait until its slot is promoted or dropped, in place of any that waits."""
        versions = self._store.versions()
        self._store.write(Version(1 + max((version.number for version in versions), default=0), slot, False), tree)
        for version in versions:
            if not version.accepted:
                self._store.remove(version)

    def promote(self, slot: Slot) -> None:
        """Let the memory of a slot count: the server has taken its payload."""
        waiting = self._waiting()
        if waiting is None or waiting.slot != slot:
            if self.accepted != slot:
                raise CheckpointError(complain("memory", expected=f"one of {slot}", actual=(self.accepted, self.pending), hint="a new run"))
            return
        self._store.accept(waiting)
        for version in self._accepted()[: -self._keep]:
            self._store.remove(version)

    def drop(self, slot: Slot) -> None:
        """Forget the memory that waits, if it is this slot's: its payload was refused, late or lost."""
        waiting = self._waiting()
        if waiting is not None and waiting.slot == slot:
            self._store.remove(waiting)

    def agree(self, slot: Slot | None) -> None:
        """Go to the slot that the server last accepted from this client (None: nothing yet, forget all): forward, back, or stay.

        A client does this with every message before it reads, which says all there is to say of earlier ones.
        """
        if slot is not None and slot == self.pending:
            self.promote(slot)
        elif slot is not None and slot not in [version.slot for version in self._accepted()]:
            raise CheckpointError(
                complain("memory", expected=f"one of {slot}, which the server counts on", actual=self.accepted, hint="a larger keep, or a new run")
            )
        for version in reversed(self._store.versions()):
            if version.accepted and version.slot == slot:
                break
            self._store.remove(version)

    def replace(self, tree: Tree, slot: Slot | None = None) -> None:
        """Forget all and let `tree` count, as a checkpoint has it."""
        versions = self._store.versions()
        self._store.write(Version(1 + max((version.number for version in versions), default=0), slot, True), tree)
        for version in versions:
            self._store.remove(version)

    def _accepted(self) -> list[Version]:
        return [version for version in self._store.versions() if version.accepted]

    def _newest(self) -> Version | None:
        return found[-1] if (found := self._accepted()) else None

    def _waiting(self) -> Version | None:
        # Whatever waits and is older than what counts was overtaken: a crash came between two steps.
        versions = self._store.versions()
        return versions[-1] if versions and not versions[-1].accepted else None


def _version(name: str) -> Version:
    try:
        number, round, phase, state = name.split(" ")
        slot = Slot(int(round), unquote(phase)) if int(round) >= 0 else None
        return Version(int(number), slot, {"accepted": True, "pending": False}[state])
    except (ValueError, KeyError) as problem:
        raise CheckpointError(complain("memory", expected="files of ours", actual=f"{name!r}", hint="a folder of its own")) from problem


def _meta(version: Version) -> dict[str, str | int]:
    round, phase = version.slot or (-1, "")
    return {"number": version.number, "round": round, "phase": phase}
