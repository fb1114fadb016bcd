"""Memories of clients in one file, one after another, and `StoredMemories`, which reads them when
they are asked for.

Each entry of the file is its client's name and a safetensors file::

    4 bytes   N, length of the name
    8 bytes   L, length of the tensors
    N bytes   name, UTF-8
    L bytes   tensors (`bayesfed.federated.clients.serialisation`)
"""

from __future__ import annotations

import heapq
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesfed.data.files import pour
from bayesfed.data.population import place_of
from bayesfed.errors import CheckpointError
from bayesfed.federated.clients.serialisation import from_safetensors, to_safetensors
from bayesfed.trees import Tree

HEAD = struct.Struct("<IQ")
ABSENT = -1


class MemoryLog:
    """A file of memories that are only ever appended.

    Parameters
    ----------
    file
        Descriptor of the file, which is closed when the log is no longer used.
    length
        Length of the file in bytes.
    """

    def __init__(self, file: int, length: int = 0) -> None:
        self._file, self.length = file, length
        weakref.finalize(self, os.close, file)

    @classmethod
    def temporary(cls, folder: str | Path | None) -> MemoryLog:
        """Return a new log in a folder, by default that of temporary files. Its file has no name,
        so that it ends with this process.
        """
        try:
            file, path = tempfile.mkstemp(dir=folder, prefix="bayesfed-memories-")
            os.unlink(path)
        except OSError as problem:
            raise _unwritable(problem) from problem
        return cls(file)

    @classmethod
    def of(cls, path: Path) -> MemoryLog:
        """Return the log of an existing file, to be read."""
        return cls(os.open(path, os.O_RDONLY), path.stat().st_size)

    def append(self, client: str, tree: Tree) -> int:
        """Write one memory, and return its offset."""
        return self.append_raw(entry(client, tree))

    def append_raw(self, content: bytes) -> int:
        """Write the bytes of an entry, and return its offset."""
        try:
            os.lseek(self._file, self.length, os.SEEK_SET)
            pour(self._file, content)
        except OSError as problem:
            raise _unwritable(problem) from problem
        self.length += len(content)
        return self.length - len(content)

    def raw(self, offset: int) -> bytes:
        """Return the bytes of the entry at an offset."""
        return self._bytes(offset, self.size(offset))

    def size(self, offset: int) -> int:
        """Return the length of the entry at an offset in bytes."""
        name, tensors = HEAD.unpack(self._bytes(offset, HEAD.size))
        length: int = HEAD.size + name + tensors
        return length

    def read(self, offset: int) -> Tree:
        """Return the memory at an offset."""
        raw = self.raw(offset)
        return from_safetensors(raw[HEAD.size + HEAD.unpack_from(raw)[0] :])

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield the client and the offset of every entry."""
        offset = 0
        while offset < self.length:
            name, _ = HEAD.unpack(self._bytes(offset, HEAD.size))
            yield self._bytes(offset + HEAD.size, name).decode(), offset
            offset += self.size(offset)

    def _bytes(self, offset: int, count: int) -> bytes:
        content = os.pread(self._file, count, offset)
        if len(content) != count:
            raise CheckpointError(
                "memories on disk", f"{count} bytes", len(content), "an undamaged file"
            )
        return content


def entry(client: str, tree: Mapping[str, Any]) -> bytes:
    """Return a client's memory as an entry of a file."""
    name, tensors = client.encode(), to_safetensors(tree)
    return b"".join([HEAD.pack(len(name), len(tensors)), name, tensors])


class StoredMemories(Mapping[str, Tree]):
    """Memories by client as they were at one moment, of which some or all are on disk.

    Parameters
    ----------
    held
        Memories that are not on disk.
    names
        Names of clients, sorted.
    offsets
        Offsets ``(K,)`` of their memories in the log, in the order of the names; -1 for none.
    log
        File of the memories on disk.
    """

    def __init__(
        self,
        held: Mapping[str, Tree],
        names: Sequence[str],
        offsets: np.ndarray[Any, np.dtype[np.int64]],
        log: MemoryLog,
    ) -> None:
        self._held, self._names, self._offsets, self._log = held, names, offsets, log

    @classmethod
    def of(cls, path: Path) -> StoredMemories:
        """Return the memories of a file that `entries` were written to.

        Raises
        ------
        CheckpointError
            If the file is cut short.
        """
        log = MemoryLog.of(path)
        found = sorted(log.entries())
        return cls(
            {},
            tuple(name for name, _ in found),
            np.array([offset for _, offset in found], dtype=np.int64),
            log,
        )

    def entries(self) -> Iterator[bytes]:
        """Yield all memories as entries of a file, in the order of the clients' names. Those on
        disk are copied, not read.
        """
        for name in self:
            yield (
                entry(name, self._held[name])
                if name in self._held
                else self._log.raw(self._offset(name))
            )

    def __len__(self) -> int:
        return len(self._held) + int((self._offsets != ABSENT).sum())

    def __iter__(self) -> Iterator[str]:
        on_disk = (self._names[place] for place in np.flatnonzero(self._offsets != ABSENT).tolist())
        return heapq.merge(sorted(self._held), on_disk)

    def __contains__(self, name: object) -> bool:
        return name in self._held or self._offset(name) != ABSENT

    def __getitem__(self, name: str) -> Tree:
        if name in self._held:
            return dict(self._held[name])
        if (offset := self._offset(name)) == ABSENT:
            raise KeyError(name)
        return self._log.read(offset)

    def __repr__(self) -> str:
        return f"StoredMemories({len(self)} clients, {len(self._held)} of them not on disk)"

    def _offset(self, name: object) -> int:
        place = place_of(self._names, name)
        return ABSENT if place is None else int(self._offsets[place])


def _unwritable(problem: OSError) -> CheckpointError:
    hint = "room there, or memory_folder= on a larger disk"
    return CheckpointError("memories on disk", "a folder that can be written to", problem, hint)
