"""`RemoteMemories`: which memory of each client is valid, for a pool whose clients keep their
memories on their own disks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bayesfed.errors import CheckpointError
from bayesfed.federated import Slot
from bayesfed.federated.clients.memory.table import Memories
from bayesfed.trees import Tree

ROUND, PHASE = "slot.round", "slot.phase"


class RemoteMemories:
    """The valid memory of each client as its slot, and that of the answer not settled yet."""

    def __init__(self) -> None:
        self._memories = Memories(())

    def slot(self, client: str) -> Slot | None:
        """Return the slot of a client's valid memory; None if it has none."""
        tree = self._memories.read(client)
        return Slot(int(tree[ROUND]), bytes(tree[PHASE].tolist()).decode()) if tree else None

    def pend(self, client: str, slot: Slot | None) -> None:
        """Note the memory that a client made with its latest answer."""
        tree = Tree()
        if slot:
            phase = torch.tensor(list(slot.phase.encode()), dtype=torch.uint8)
            tree = {ROUND: torch.tensor(slot.round), PHASE: phase}
        self._memories.pend(client, tree)

    def settle(self, client: str, accepted: bool) -> None:
        """Record which memory of the client is valid: that of its latest answer, or the one
        before.
        """
        self._memories.settle(client, accepted)

    def memories(self) -> Mapping[str, Tree]:
        """Return the round and the phase of each client's memory as two leaves; the memory itself
        is on the client's disk.
        """
        return self._memories.taken()

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Go back to these memories; each client does so with its next message.

        Raises
        ------
        CheckpointError
            If they are the memories themselves, from a run in process.
        """
        for client, tree in memories.items():
            if tree.keys() != {ROUND, PHASE}:
                raise CheckpointError(
                    f"memory of {client!r}",
                    f"leaves {ROUND}, {PHASE}",
                    sorted(tree),
                    "a checkpoint of a run over Flower",
                )
        self._memories.restore(memories)
