"""Error feedback: what a codec leaves out of one message goes into the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayesfed.compress.codecs import Codec
from bayesfed.compress.wire import Meta
from bayesfed.errors import UpdateError, complain
from bayesfed.keys import Key
from bayesfed.trees import Tree

RESIDUAL = "feedback/"


@dataclass(frozen=True)
class ErrorFeedback:
    """Any codec around which the client keeps a residual, added to its next payload (Seide et al., 2014; Karimireddy et al., 2019).

    The sum of what was decoded over the rounds differs from the sum of what was to be sent by the last residual alone, so a biased codec
    with ``||x - Q(x)||^2 <= (1 - delta) ||x||^2`` stays within ``2 sqrt(1 - delta) / delta`` times the largest payload's norm of it.
    The residual is part of the client's memory: it is checkpointed, and a refused message leaves the old one in place.

    Parameters
    ----------
    codec
        Any that reads what it writes.

    Raises
    ------
    UpdateError
        From `corrected`, if a residual has another shape than the payload.
    """

    codec: Codec

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Write the tree by the inner codec."""
        return self.codec.encode(tree, meta, key)

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read it by the inner codec."""
        return self.codec.decode(message, key)

    def corrected(self, payload: Tree, memory: Tree) -> Tree:
        """Return the payload plus the residual in a client's memory, if there is one.

        Raises
        ------
        UpdateError
            If the residual has another shape: the client's view has changed.
        """
        result = dict(payload)
        for name, leaf in payload.items():
            residual = memory.get(RESIDUAL + name)
            if residual is None or not leaf.is_floating_point():
                continue
            if residual.shape != leaf.shape:
                raise UpdateError(
                    complain(f"residual of {name!r}", expected=f"shape {tuple(leaf.shape)}", actual=tuple(residual.shape), hint="one view a client")
                )
            result[name] = leaf + residual.to(leaf)
        return result

    def residual(self, payload: Tree, message: bytes, key: Key) -> Tree:
        """Return what the message leaves out of the corrected payload, as the memory to keep."""
        sent, _ = self.decode(message, key)
        return {RESIDUAL + name: leaf - sent[name].to(leaf) for name, leaf in payload.items() if leaf.is_floating_point()}
