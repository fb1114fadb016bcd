"""`Memories`: what all clients of a pool keep between rounds. A client that keeps nothing costs
nothing; what is too much for memory is on disk.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bayesfed.federated.clients.memory.log import MemoryLog, StoredMemories
from bayesfed.federated.clients.rosters import NONE, Numbers
from bayesfed.trees import Tree

# Bytes that a memory and each of its leaves are counted with besides their values.
TREE, LEAF = 1 << 9, 1 << 10
# The file is written anew once it has twice the bytes that are still needed, but not for less than
# this.
WASTE = 1 << 26


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
            return dict(self._held[client][0])
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
        held = {client: dict(self._held[client][0]) for client in sorted(self._held)}
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
        self._held: OrderedDict[str, tuple[Tree, int]] = OrderedDict()
        self._bytes = self._on_disk = 0
        self._disk: tuple[MemoryLog, Numbers] | None = None

    def _accept(self, client: str, tree: Tree) -> None:
        self._forget(client)
        if not tree:
            return
        size = TREE + sum(LEAF + leaf.numel() * leaf.element_size() for leaf in tree.values())
        self._held[client] = (tree, size)
        self._bytes += size
        while self._bytes > self._bound:
            self._store(next(iter(self._held)))

    def _forget(self, client: str) -> None:
        if client in self._held:
            self._bytes -= self._held.pop(client)[1]
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
        tree, size = self._held[client]
        before = log.length
        offsets[client] = log.append(client, tree)
        del self._held[client]
        self._bytes -= size
        self._on_disk += log.length - before

    def _rewritten(self, old: MemoryLog, offsets: Numbers) -> tuple[MemoryLog, Numbers]:
        """Copy what is still needed to a new file. The old one stays for as long as a snapshot
        reads from it.
        """
        new, moved = MemoryLog.temporary(self._folder), offsets.updated({})
        for client, offset in offsets.items():
            moved[client] = new.append_raw(old.raw(offset))
        return new, moved
