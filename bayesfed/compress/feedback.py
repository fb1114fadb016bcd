"""Error feedback: the coding error of one message is added to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bayesfed.compress.codecs import Codec
from bayesfed.compress.wire import Meta
from bayesfed.errors.checks import check, having
from bayesfed.keys import Key
from bayesfed.trees import Tree


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

    Notes
    -----
    `bayesfed.federated.layers.holding` keeps the residual: a method's recipe takes the codec apart.
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
