"""`Coded`: a codec that codes each leaf of a message by its own leaf codec; the one that most
recipes use.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.leaf import IntegerCode, LeafCodec, MaskCode, Reader, Writer
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.quantisers.floats import Float
from bayesfed.compress.wire import DTYPES, MAX_BYTES, Leaf, Meta, dtype_of, seal, unseal
from bayesfed.errors import WireError
from bayesfed.errors.checks import checked_class
from bayesfed.keys import Key
from bayesfed.trees import Tree


@checked_class()
@dataclass(frozen=True)
class Coded:
    """Code each leaf of a message by itself: floats by a `LeafCodec`, masks and integers
    losslessly.

    Parameters
    ----------
    floats
        Codec of floating-point leaves, which reads them as float32; they come back in the type that
        they had.
    exceptions
        Other codecs by pattern of the leaf's name, such as ``{"*.bias": Float(32)}``. The first
        pattern that matches is used.
    masks, integers
        Codes of boolean leaves, as matrices of the last dimension against the others, and of
        integer leaves.
    limit
        Largest size in bytes of a message, and of its decoded leaves at eight bytes an entry;
        larger messages are refused unread. Codes decode to integers first, so decoding takes up to
        about six times the limit.
    brief
        Whether headers are deflated: of messages with few values they are the most.

    Raises
    ------
    WireError
        On encoding values that a codec cannot represent, such as NaN, or on decoding a damaged
        message.
    """

    floats: LeafCodec = Float(16)
    exceptions: Mapping[str, LeafCodec] = field(default_factory=dict)
    masks: MaskCode = CheapestMask()
    integers: IntegerCode = Cheapest()
    limit: int = MAX_BYTES
    brief: bool = False

    def encode(self, tree: Tree, meta: Meta, key: Key) -> bytes:
        """Write the message."""
        coded = (self._leaf(name, leaf, key.child(name)) for name, leaf in tree.items())
        return seal(coded, meta, brief=self.brief)

    def decode(self, message: bytes, key: Key) -> tuple[Tree, dict[str, Any]]:
        """Read it back."""
        leaves, meta = unseal(message, limit=self.limit)
        if (needed := 8 * sum(leaf.entries for leaf in leaves)) > self.limit:
            raise WireError(
                "message",
                f"at most {self.limit // 8} entries",
                needed // 8,
                "a higher limit if it is honest",
            )
        return {leaf.name: self._opened(leaf, key.child(leaf.name)) for leaf in leaves}, meta

    def codec(self, name: str) -> LeafCodec:
        """Return the codec of a floating-point leaf."""
        return next(
            (codec for pattern, codec in self.exceptions.items() if fnmatchcase(name, pattern)),
            self.floats,
        )

    def _leaf(self, name: str, leaf: Tensor, key: Key) -> Leaf:
        dtype, out, leaf = dtype_of(name, leaf), Writer(), leaf.detach()
        try:
            if leaf.is_floating_point():
                self.codec(name).write(leaf, key, out)
            elif leaf.dtype is torch.bool:
                self.masks.write(leaf.cpu().numpy().reshape(_matrix(tuple(leaf.shape))), out)
            else:
                self.integers.write(leaf.cpu().numpy().astype(np.int64).reshape(-1), out)
        except WireError as problem:
            raise WireError(f"leaf {name!r}: {problem}") from problem
        return Leaf(name, dtype, tuple(leaf.shape), out.bytes())

    def _opened(self, leaf: Leaf, key: Key) -> Tensor:
        source, dtype = Reader(leaf.section), DTYPES[leaf.dtype]
        if dtype.is_floating_point:
            result, own = self.codec(leaf.name).read(source, leaf.shape, key), torch.finfo(dtype)
            # The largest float32 numbers do not fit a narrower type.
            result = (result.clamp(own.min, own.max) if own.bits < 32 else result).to(dtype)
        elif dtype is torch.bool:
            result = torch.from_numpy(self.masks.read(source, _matrix(leaf.shape))).reshape(
                leaf.shape
            )
        else:
            values, most = self.integers.read(source, math.prod(leaf.shape)), torch.iinfo(dtype)
            if len(values) and not (most.min <= values.min() and values.max() <= most.max):
                raise WireError(
                    f"leaf {leaf.name!r}", f"integers of {dtype}", "larger ones", "sending it again"
                )
            result = torch.from_numpy(values).to(dtype).reshape(leaf.shape)
        source.done()
        return result


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return math.prod(shape[:-1]), shape[-1] if shape else 1
