"""`RemoteMemories`: which memory of each client is valid, for a pool whose clients keep their
memories on their own disks.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from bayesfed.errors import CheckpointError
from bayesfed.federated import Slot
from bayesfed.trees import Tree

ROUND, PHASE = "slot.round", "slot.phase"


class RemoteMemories:
    """The valid memory of each client as its slot, and that of the answer not settled yet."""

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._fresh: dict[str, Slot | None] = {}

    def settle(self, client: str, accepted: bool) -> None:
        """Record which memory of the client is valid: that of its latest answer, or the one
        before.
        """
        if client in self._fresh:
            slot = self._fresh.pop(client)
            if accepted and slot is not None:
                self._slots[client] = slot
            elif accepted:
                self._slots.pop(client, None)

    def memories(self) -> dict[str, Tree]:
        """Return the round and the phase of each client's memory as two leaves; the memory itself
        is on the client's disk.
        """
        return {
            client: {
                ROUND: torch.tensor(slot.round),
                PHASE: torch.tensor(list(slot.phase.encode()), dtype=torch.uint8),
            }
            for client, slot in sorted(self._slots.items())
        }

    def restore(self, memories: Mapping[str, Tree]) -> None:
        """Go back to these memories; each client does so with its next message.

        Raises
        ------
        CheckpointError
            If they are the memories themselves, from a run in process.
        """
        slots = {}
        for client, tree in memories.items():
            if tree.keys() != {ROUND, PHASE}:
                hint = "a checkpoint of a run over Flower"
                raise CheckpointError(
                    f"memory of {client!r}", f"leaves {ROUND}, {PHASE}", sorted(tree), hint
                )
            slots[client] = Slot(int(tree[ROUND]), bytes(tree[PHASE].tolist()).decode())
        self._slots, self._fresh = slots, {}
