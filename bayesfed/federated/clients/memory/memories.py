"""What a client keeps between rounds, on its own disk, committed in two phases, so that client and
server always agree on it.

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


class _Version(NamedTuple):
    """One memory: its place in the order in which they were made, its exchange, and whether the
    server accepted its payload.
    """

    number: int
    slot: Slot
    accepted: bool

    @property
    def meta(self) -> dict[str, str | int]:
        """What the file says of it."""
        return {"number": self.number, **self.slot._asdict()}

    @property
    def file(self) -> str:
        """The name of its file."""
        state = "accepted" if self.accepted else "pending"
        phase = quote(self.slot.phase, safe="")
        return f"{self.number:08d} {self.slot.round} {phase} {state}.memory"


class ClientMemory:
    """One client's memory of one run. Each version is a file in the wire format (with a digest,
    never unpickled), written atomically.

    Parameters
    ----------
    folder
        Folder of the files, on the client's own disk; made if it does not exist. Only its owner may
        enter it (0700) and read the files (0600).
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
    def __init__(self, folder: str | Path, *, keep: int = 1) -> None:
        self._folder, self._keep = Path(folder), keep
        with self._named():
            files.make_private(self._folder)
            self._folder.chmod(files.PRIVATE_FOLDER)
            files.sweep(self._folder)

    @property
    def accepted(self) -> Slot | None:
        """The slot of the newest accepted memory; None before the first."""
        return version.slot if (version := self._newest()) else None

    def read(self) -> Tree:
        """Return the newest accepted memory; empty before the first."""
        if (version := self._newest()) is None:
            return {}
        with self._named():
            tree, meta = unpack((self._folder / version.file).read_bytes())
            if meta != version.meta:
                raise WireError(f"one of {meta}")
        return tree

    def pend(self, slot: Slot, tree: Tree) -> None:
        """Store `tree` as pending until it is known what became of its payload. It replaces any
        other pending memory.
        """
        versions = self._versions()
        made = _Version(versions[-1].number + 1 if versions else 1, slot, False)
        with self._named():
            files.write_whole(self._folder / made.file, pack(tree, made.meta), private=True)
        self._remove([version for version in versions if not version.accepted])

    def agree(self, slot: Slot | None) -> None:
        """Go forward or back to the memory of the slot that the server last accepted from this
        client.

        A client calls this for every message before it reads its memory. The slot settles what
        became of all earlier payloads. A second call with the same slot has no further effect.

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
        versions = self._versions()
        # A pending memory that is not the last is left over from a crash between two steps.
        found = [
            version
            for version in versions
            if version.slot == slot and (version.accepted or version is versions[-1])
        ]
        if slot is not None and not found:
            raise CheckpointError(
                "memory",
                f"one of {slot}, which the server counts on",
                self.accepted,
                "a larger keep, or a new run",
            )
        last = found[-1].number if found else 0
        if found and not found[-1].accepted:
            accepted = found[-1]._replace(accepted=True).file
            with self._named():
                (self._folder / found[-1].file).replace(self._folder / accepted)
                files.sync(self._folder)
        before = [version for version in versions if version.accepted and version.number < last]
        self._remove(before[::-1][self._keep - 1 :])
        self._remove([version for version in versions[::-1] if version.number > last])

    def _newest(self) -> _Version | None:
        accepted = [version for version in self._versions() if version.accepted]
        return accepted[-1] if accepted else None

    def _versions(self) -> list[_Version]:
        return sorted(map(_version, self._folder.glob("*.memory")))

    def _remove(self, versions: list[_Version]) -> None:
        with self._named():
            for version in versions:
                (self._folder / version.file).unlink(missing_ok=True)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Say which memory cannot be read or written."""
        try:
            yield
        except (OSError, WireError) as problem:
            raise CheckpointError(
                "memory",
                "undamaged files",
                f"{problem} in {self._folder}",
                "restoring it, or a new run",
            ) from problem


def _version(path: Path) -> _Version:
    try:
        number, round, phase, state = path.stem.split(" ")
        slot = Slot(int(round), unquote(phase))
        return _Version(int(number), slot, {"accepted": True, "pending": False}[state])
    except (ValueError, KeyError) as problem:
        raise CheckpointError(
            "memory", "files of ours", repr(path.stem), "a folder of its own"
        ) from problem
