"""One turn of a hostile client: the task and the honest reply that it starts from, and the ways to
change that reply.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from bayesfed.compress.headers import inflated
from bayesfed.compress.wire import BRIEF, MAGIC, Leaf, pack, seal, unseal
from bayesfed.federated.clients.envelopes import masked
from bayesfed.federated.clients.turn import Reply, Task
from bayesfed.keys import Key
from bayesfed.trees import Tree
from tests.support.hostile.mutations import reseal
from tests.support.hostile.pool import Arrivals


@dataclass(frozen=True)
class Turn:
    """What a hostile client has at hand.

    Parameters
    ----------
    task
        The task of this round.
    reply
        Its honest reply.
    before
        Its honest reply of the round before.
    secret
        Its key, in keyed runs.
    """

    task: Task
    reply: Reply
    before: Reply
    secret: bytes | None = None

    @property
    def message(self) -> bytes:
        """The honest message, out of its envelope."""
        return masked(self.reply.packed, self.task.envelope("up"), self.secret)

    @property
    def key(self) -> Key:
        """The key of the codec's random numbers."""
        return self.task.key.child("up")

    def decoded(self) -> tuple[Tree, dict[str, Any]]:
        """Return payload and meta of the honest message."""
        return self.task.up.decode(self.message, self.key)

    def sending(self, message: bytes) -> Arrivals:
        """Answer with another message, in a valid envelope."""
        return [
            (
                self.task,
                replace(self.reply, packed=masked(message, self.task.envelope("up"), self.secret)),
            )
        ]

    def raw(self, packed: bytes) -> Arrivals:
        """Answer with exactly these bytes."""
        return [(self.task, replace(self.reply, packed=packed))]

    def leaf(self) -> str:
        """Return the name of the leaf to change: if possible one whose transpose has
        another shape.
        """
        tree, _ = self.decoded()
        floats = {
            name: leaf
            for name, leaf in tree.items()
            if leaf.is_floating_point() and leaf.numel() > 1
        }
        oblong = [
            name for name, leaf in floats.items() if leaf.ndim > 1 and leaf.shape != leaf.mT.shape
        ]
        return (oblong or sorted(floats, key=lambda name: -floats[name].numel()) or list(tree))[0]

    def with_leaf(self, change: Callable[[Tensor], Tensor]) -> Arrivals:
        """Answer with one leaf changed."""
        tree, meta = self.decoded()
        return self.sending(self.written({**tree, self.leaf(): change(tree[self.leaf()])}, meta))

    def written(self, tree: Tree, meta: Mapping[str, Any]) -> bytes:
        """Return a message of the client's codec or, if the codec cannot write the tree, of the
        plain values.
        """
        try:
            return self.task.up.encode(tree, meta, self.key)
        except Exception:
            return pack(tree, meta)

    def rewritten(self, change: Callable[[Leaf], Leaf]) -> Arrivals:
        """Answer with the header entry or the section of one leaf changed, and everything else
        valid.
        """
        leaves, meta = unseal(self.message)
        return self.sending(
            seal([change(leaf) if leaf.name == self.leaf() else leaf for leaf in leaves], meta)
        )

    def declaring(self, weight: float) -> Arrivals:
        """Answer with another weight in the meta of the message."""
        body = self.message[: -len(reseal(b""))]
        (length,) = struct.unpack_from("<I", body, 4)
        raw = body[8 : 8 + length]
        header = json.loads(inflated(raw, 1 << 20) if body[:4] == BRIEF else raw)
        header["meta"]["weight"] = weight
        text = json.dumps(header, separators=(",", ":")).encode()
        return self.sending(
            reseal(MAGIC + struct.pack("<I", len(text)) + text + body[8 + length :])
        )
