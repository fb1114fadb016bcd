"""Codecs: how a tree becomes the bytes that are really sent.

A codec is a value with two verbs that mirror each other, `encode` and `decode`. Both are
given the same key, so a codec that needs shared randomness (dither) has it on both sides.
The cost of a message is ``8 * len(bytes)``, never a formula.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from bayesfed.compress.wire import MAX_BYTES, Meta, pack, unpack
from bayesfed.errors import ArgumentError, WireError, complain
from bayesfed.keys import Key
from bayesfed.trees import Tree, is_finite


class Codec(Protocol):
    """The seam: bytes out, tree back."""

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Write the tree and the message's own scalars as bytes."""
        ...

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read them back; raise `WireError` for anything damaged."""
        ...


_WIDTHS = {16: torch.float16, 32: torch.float32, 64: torch.float64}


@dataclass(frozen=True)
class Cast:
    """Send floating-point leaves at `bits` per value; integers and masks travel unchanged.

    Parameters
    ----------
    bits
        64, 32 (lossless for float32 models) or 16 (IEEE half: relative error at most 2**-11
        between 6.1e-5 and 65504).
    limit
        Bytes that a message may unpack to.

    Raises
    ------
    ArgumentError
        If `bits` is not 16, 32 or 64.
    WireError
        On encoding a value that `bits` cannot hold, or on decoding a damaged message.
    """

    bits: int = 32
    limit: int = MAX_BYTES

    def __post_init__(self) -> None:
        if self.bits not in _WIDTHS:
            raise ArgumentError(complain("Cast", expected="bits 16, 32 or 64", actual=self.bits, hint="Cast(32)"))

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Cast every floating-point leaf and write the message."""
        return pack({name: self._narrow(name, leaf) for name, leaf in tree.items()}, meta)

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read the message; floating-point leaves come back as float32, or float64 of 64 bits."""
        tree, meta = unpack(message, limit=self.limit)
        return {name: _widen(name, leaf, torch.promote_types(_WIDTHS[self.bits], torch.float32)) for name, leaf in tree.items()}, meta

    def _narrow(self, name: str, leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        narrow = leaf.to(_WIDTHS[self.bits])
        if not is_finite(narrow):
            largest = float(leaf.abs().max())
            raise WireError(
                complain(
                    f"leaf {name!r}", expected=f"values that fit {self.bits} bits", actual=f"largest {largest:g}", hint="Cast(32) or a smaller step"
                )
            )
        return narrow


def _widen(name: str, leaf: Tensor, dtype: torch.dtype) -> Tensor:
    if not leaf.is_floating_point():
        return leaf
    wide = leaf.to(dtype)
    if not is_finite(wide):
        kind = str(dtype).removeprefix("torch.")
        raise WireError(complain(f"leaf {name!r}", expected=f"finite {kind} values", actual="NaN or Inf", hint="sending it again"), field="values")
    return wide
