"""Error feedback: the coding error of one message is added to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayesfed.compress.codecs import Codec
from bayesfed.compress.wire import Meta
from bayesfed.errors import UpdateError
from bayesfed.errors.checks import check, having
from bayesfed.keys import Key
from bayesfed.trees import Tree

RESIDUAL = "feedback/"


@dataclass(frozen=True)
class ErrorFeedback:
    """A codec with a residual: the client keeps the coding error and adds it to its next payload
    (Seide et al., 2014; Karimireddy et al., 2019).

    Over the rounds, the sum of decoded payloads differs from the sum of original payloads only by
    the last residual. A biased codec with ``||x - Q(x)||^2 <= (1 - delta) ||x||^2`` therefore stays
    within ``2 sqrt(1 - delta) / delta`` times the largest norm of a payload. The residual is part
    of the client's memory: it is checkpointed, and a refused message leaves the old residual in
    place.

    Parameters
    ----------
    codec
        The inner codec, which must decode its own messages.

    Raises
    ------
    UpdateError
        From `corrected`, if a residual has another shape than the payload.
    """

    codec: Codec

    def __post_init__(self) -> None:
        check(
            "ErrorFeedback, codec",
            self.codec,
            having(("encode", "decode"), "a codec", "Coded(TopK(0.1))"),
        )

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Write the tree with the inner codec."""
        return self.codec.encode(tree, meta, key)

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read a message with the inner codec."""
        return self.codec.decode(message, key)

    def corrected(self, payload: Tree, memory: Tree) -> Tree:
        """Return the payload plus the residual in the client's memory, if there is one.

        Raises
        ------
        UpdateError
            If the residual has another shape, because the client's view has changed.
        """
        result = dict(payload)
        for name, leaf in payload.items():
            residual = memory.get(RESIDUAL + name)
            if residual is None or not leaf.is_floating_point():
                continue
            if residual.shape != leaf.shape:
                raise UpdateError(
                    f"residual of {name!r}",
                    f"shape {tuple(leaf.shape)}",
                    tuple(residual.shape),
                    "one view a client",
                )
            result[name] = leaf + residual.to(leaf)
        return result

    def residual(self, payload: Tree, message: bytes, key: Key) -> Tree:
        """Return the difference between the corrected payload and the message, as leaves for the
        client's memory.
        """
        sent, _ = self.decode(message, key)
        return {
            RESIDUAL + name: leaf - sent[name].to(leaf)
            for name, leaf in payload.items()
            if leaf.is_floating_point()
        }
