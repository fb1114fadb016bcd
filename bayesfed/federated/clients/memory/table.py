"""`Memories`: what all clients of a pool keep between rounds. A client that keeps nothing costs
nothing; what is too much for memory is on disk, in a `MemoryLog`, and `StoredMemories` reads it
when it is asked for.

Each entry of the file is its client's name and a safetensors file::

    4 bytes   N, length of the name
    8 bytes   L, length of the tensors
    N bytes   name, UTF-8
    L bytes   tensors (`bayesfed.federated.clients.serialisation`)
"""

from __future__ import annotations

import math
import os
import struct
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bayesfed.data.files import pour
from bayesfed.errors import CheckpointError
from bayesfed.errors.plurals import plural
from bayesfed.federated.clients.rosters import NONE, Numbers
from bayesfed.federated.clients.serialisation import from_safetensors, to_safetensors
from bayesfed.trees import Tree

HEAD = struct.Struct("<IQ")
# Bytes that a memory and each of its leaves are counted with besides their values.
TREE, LEAF = 1 << 9, 1 << 10
# The file is written anew once it has twice the bytes that are still needed, but not for less than
# this.
WASTE = 1 << 26


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

    def append(self, content: bytes) -> int:
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
    offsets
        Offsets of the others in the log, by client.
    log
        File of the memories on disk.
    """

    def __init__(self, held: Mapping[str, Tree], offsets: Numbers, log: MemoryLog) -> None:
        self._held, self._offsets, self._log = held, offsets, log

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
        names, offsets = [name for name, _ in found], [offset for _, offset in found]
        return cls({}, Numbers(names, np.array(offsets, dtype=np.int64)), log)

    def entries(self) -> Iterator[bytes]:
        """Yield all memories as entries of a file, in the order of the clients' names. Those on
        disk are copied, not read.
        """
        for name in self:
            held = self._held.get(name)
            yield self._log.raw(self._offsets[name]) if held is None else entry(name, held)

    def __len__(self) -> int:
        return len(self._held) + len(self._offsets)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._held, *self._offsets]))

    def __contains__(self, name: object) -> bool:
        return name in self._held or name in self._offsets

    def __getitem__(self, name: str) -> Tree:
        if name in self._held:
            return dict(self._held[name])
        return self._log.read(self._offsets[name])

    def __repr__(self) -> str:
        return (
            f"StoredMemories({plural(len(self), 'client')}, {len(self._held)} of them not on disk)"
        )


def _size(tree: Tree) -> int:
    """Return the bytes of a memory."""
    return TREE + sum(LEAF + leaf.numel() * leaf.element_size() for leaf in tree.values())


def _unwritable(problem: OSError) -> CheckpointError:
    hint = "room there, or memory_folder= on a larger disk"
    return CheckpointError("memories on disk", "a folder that can be written to", problem, hint)


class Memories:
    """Memories of the clients of one pool, committed in two steps as `ClientMemory` does it.

    Parameters
    ----------
    names
        Names of the clients, sorted.
    bound
        Bytes of memories that are held by this process. The clients that were not accepted for
        longest have theirs on disk beyond it.
    folder
        Folder of the file on disk. Default: that of temporary files.

    Raises
    ------
    CheckpointError
        From `settle` and `restore`, if the disk cannot be written to.
    """

    def __init__(
        self, names: Sequence[str], bound: float = math.inf, folder: str | Path | None = None
    ) -> None:
        self._names, self._bound, self._folder = names, bound, folder
        self._pending: dict[str, Tree] = {}
        self._clear()

    def read(self, client: str) -> Tree:
        """Return what a client keeps, by its last accepted answer; empty if it keeps nothing."""
        if client in self._held:
            return dict(self._held[client])
        if self._disk and client in self._disk[1]:
            return self._disk[0].read(self._disk[1][client])
        return {}

    def pend(self, client: str, tree: Tree) -> None:
        """Note what a client keeps if its answer is accepted."""
        self._pending[client] = tree

    def settle(self, client: str, accepted: bool) -> None:
        """Keep or drop what was noted."""
        tree = self._pending.pop(client, None)
        if tree is not None and accepted:
            self._accept(client, tree)

    def taken(self) -> Mapping[str, Tree]:
        """Return all memories as they are now. Later rounds do not change them."""
        held = {client: dict(tree) for client, tree in sorted(self._held.items())}
        if self._disk is None or not self._on_disk:
            return held
        log, offsets = self._disk
        return StoredMemories(held, offsets.updated({}), log)

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Replace all memories, one by one, so that no more of them are in memory than the bound
        allows.
        """
        self._pending.clear()
        self._clear()
        for client, tree in memories.items():
            self._accept(client, dict(tree))

    def _clear(self) -> None:
        self._held: OrderedDict[str, Tree] = OrderedDict()
        self._bytes = self._on_disk = 0
        self._disk: tuple[MemoryLog, Numbers] | None = None

    def _accept(self, client: str, tree: Tree) -> None:
        self._forget(client)
        if not tree:
            return
        self._held[client] = tree
        self._bytes += _size(tree)
        while self._bytes > self._bound:
            self._store(next(iter(self._held)))

    def _forget(self, client: str) -> None:
        if client in self._held:
            self._bytes -= _size(self._held.pop(client))
        elif self._disk and client in self._disk[1]:
            log, offsets = self._disk
            self._on_disk -= log.size(offsets.pop(client))

    def _store(self, client: str) -> None:
        """Move a client's memory to the disk."""
        if self._disk is None:
            nowhere = np.full(len(self._names), NONE, dtype=np.int64)
            self._disk = MemoryLog.temporary(self._folder), Numbers(self._names, nowhere)
        elif self._disk[0].length > max(WASTE, 2 * self._on_disk):
            self._disk = self._rewritten(*self._disk)
        log, offsets = self._disk
        tree = self._held[client]
        offsets[client] = log.append(entry(client, tree))
        del self._held[client]
        self._bytes -= _size(tree)
        self._on_disk += log.size(offsets[client])

    def _rewritten(self, old: MemoryLog, offsets: Numbers) -> tuple[MemoryLog, Numbers]:
        """Copy what is still needed to a new file. The old one stays for as long as a snapshot
        reads from it.
        """
        new, moved = MemoryLog.temporary(self._folder), offsets.updated({})
        for client, offset in offsets.items():
            moved[client] = new.append(old.raw(offset))
        return new, moved
