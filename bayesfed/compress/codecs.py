"""The interface of codecs; `Cast`, the simplest one; and `ErrorFeedback`, around any of them: the
coding error of one message is added to the next.

A codec turns a tree into the bytes that are really sent, `encode`, and back, `decode`. Both methods
get the same key, so that a codec with shared randomness (dither) has it on both sides. The cost of
a message is ``8 * len(bytes)``, never a formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesfed.compress.wire import MAX_BYTES, Meta, pack, unpack
from bayesfed.errors import WireError
from bayesfed.errors.checks import COUNT, checked_class, one_of
from bayesfed.keys import Key
from bayesfed.trees import Tree, is_finite


class Codec(Protocol):
    """Turns a tree into bytes and back."""

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Return the message: the tree, and `meta`, scalars of the message itself, as bytes."""

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Return (tree, meta) of a message; raise `WireError` if it is damaged."""


_WIDTHS = {16: torch.float16, 32: torch.float32, 64: torch.float64}


@checked_class(bits=one_of((16, 32, 64), "Cast(32)"), limit=COUNT)
@dataclass(frozen=True)
class Cast:
    """Send floating-point leaves with `bits` bits per value; integers and masks are unchanged.

    Parameters
    ----------
    bits
        64, 32 (lossless for float32 models) or 16 (IEEE half: relative error at most 2**-11 between
        6.1e-5 and 65504).
    limit
        Largest size of an unpacked message in bytes.

    Raises
    ------
    ArgumentError
        If `bits` is not 16, 32 or 64.
    WireError
        On encoding a value outside the range of `bits`, or on decoding a damaged message.
    """

    bits: int = 32
    limit: int = MAX_BYTES

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Cast every floating-point leaf and write the message."""
        said = f"values that fit {self.bits} bits", "Cast(32) or a smaller step"
        narrow = {name: _cast(name, leaf, _WIDTHS[self.bits], *said) for name, leaf in tree.items()}
        return pack(narrow, meta)

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read the message; floating-point leaves come back as float32, or as float64 if `bits`
        is 64.
        """
        tree, meta = unpack(message, limit=self.limit)
        wide = torch.promote_types(_WIDTHS[self.bits], torch.float32)
        said = f"finite {str(wide).removeprefix('torch.')} values", "sending it again"
        return {name: _cast(name, leaf, wide, *said) for name, leaf in tree.items()}, meta


def _cast(name: str, leaf: Tensor, dtype: torch.dtype, expected: str, hint: str) -> Tensor:
    if not leaf.is_floating_point():
        return leaf
    cast = leaf.to(dtype)
    if not is_finite(cast):
        raise WireError(
            f"leaf {name!r}", expected, f"largest {float(leaf.abs().max()):g}", hint, field="values"
        )
    return cast


@checked_class()
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

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Write the tree with the inner codec."""
        return self.codec.encode(tree, meta, key)

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read a message with the inner codec."""
        return self.codec.decode(message, key)
