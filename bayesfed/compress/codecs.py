"""The interface of codecs; `Cast`, the simplest one; and `ErrorFeedback`, around any of them: the
coding error of one message is added to the next.

A codec turns a tree into the bytes that are really sent, `encode`, and back, `decode`. Both methods
get the same key, so that a codec with shared randomness (dither) has it on both sides. The cost of
a message is ``8 * len(bytes)``, never a formula.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesfed.compress.wire import DTYPES, MAX_BYTES, NAMES, Leaf, Meta, opened, plain, seal, unseal
from bayesfed.errors import WireError
from bayesfed.errors.checks import COUNT, checked_class, one_of
from bayesfed.errors.plurals import plural
from bayesfed.keys import Key
from bayesfed.trees import Tree, is_finite, wide


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
    """Send floating-point leaves with at most `bits` bits per value; narrower ones, integers and
    masks are unchanged.

    Leaves come back in the type that they had. Only float16 comes back as float32 from 16 bits.

    Parameters
    ----------
    bits
        64 (lossless), 32 (lossless for float32 and bfloat16) or 16 (IEEE half: relative error at
        most 2**-11 between 6.1e-5 and 65504; lossless for bfloat16).
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
        return seal((self._leaf(name, leaf) for name, leaf in tree.items()), meta)

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read the message."""
        leaves, meta = unseal(message, limit=self.limit)
        return {leaf.name: self._opened(leaf) for leaf in leaves}, meta

    def _leaf(self, name: str, leaf: Tensor) -> Leaf:
        _finite(name, leaf, leaf, "finite values", "a smaller step")
        if not leaf.is_floating_point() or 8 * leaf.itemsize <= self.bits:
            return plain(name, leaf)
        narrow = leaf.to(_WIDTHS[self.bits])
        said = f"values that fit {plural(self.bits, 'bit')}", "Cast(64) or a smaller step"
        sent = plain(name, _finite(name, narrow, leaf, *said))
        # The reader learns the type of float64 from the header, and the width from the length.
        return replace(sent, dtype=NAMES[leaf.dtype]) if leaf.dtype is torch.float64 else sent

    def _opened(self, leaf: Leaf) -> Tensor:
        kinds = ("f8", "f4", "f2") if leaf.dtype == "f8" else (leaf.dtype,)
        length = len(leaf.section)
        there = (kind for kind in kinds if length == math.prod(leaf.shape) * DTYPES[kind].itemsize)
        sent = opened(replace(leaf, dtype=next(there, leaf.dtype)))
        halved = leaf.dtype == "f2" and self.bits == 16
        result = sent.to(torch.float32 if halved else DTYPES[leaf.dtype])
        return _finite(leaf.name, result, result, "finite values", "sending it again")


def _finite(name: str, leaf: Tensor, before: Tensor, expected: str, hint: str) -> Tensor:
    if not is_finite(leaf):
        actual = f"largest {float(before.abs().max()):g}"
        raise WireError(f"leaf {name!r}", expected, actual, hint, field="values")
    return leaf


def exact(tree: Mapping[str, Tensor]) -> Cast:
    """Return the codec that leaves the leaves of a tree as they are."""
    return Cast(64 if wide(tree) else 32)


def in_types(payload: Tree, dtypes: Mapping[str, torch.dtype], codec: Codec) -> Tree:
    """Return a payload in the types of an exchange, which its sender does not choose.

    A floating-point leaf has the type of the leaf of its name that the client was sent. Any other
    is float64 if the codec is ``Cast(64)``; else it has the type of a leaf of the same parameter,
    ``KIND/NAME``, or is float32.
    """
    sent = {name: dtype for name, dtype in dtypes.items() if dtype.is_floating_point}
    alike = {name.rpartition("/")[2]: dtype for name, dtype in sent.items()}
    double = codec == Cast(64)

    def of(name: str) -> torch.dtype:
        like = alike.get(name.rpartition("/")[2], torch.float32)
        return sent.get(name, torch.float64 if double else like)

    return {
        name: leaf.to(of(name)) if leaf.is_floating_point() else leaf
        for name, leaf in payload.items()
    }


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
