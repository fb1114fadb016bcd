"""The seams below a message: how one tensor, one sequence of integers or one mask becomes bytes.

Values, all of them: frozen dataclasses without state. A decoder is told the shape (the message's header promises it, checked
against a limit) and reads from a `Reader`; it raises `WireError` and nothing else, and takes no memory beyond a small
multiple of what the shape needs.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.keys import Key

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class LeafCodec(Protocol):
    """One floating-point tensor, of any shape, scalars and empty ones included."""

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the decoded tensor over keys is the tensor itself."""
        ...

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the tensor; raise `WireError` for NaN, infinity or a value it cannot hold."""
        ...

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Take a float32 tensor of this shape."""
        ...

    def bound(self, leaf: Tensor) -> float:
        """Return the largest absolute error an entry can have; 0 where lossless."""
        ...

    def variance(self, leaf: Tensor) -> float:
        """Return a bound on the expected squared error, summed over the entries."""
        ...


class IntegerCode(Protocol):
    """A sequence of integers; lossless."""

    def write(self, values: Integers, out: Writer) -> None:
        """Append them; the count is not written."""
        ...

    def read(self, source: Reader, count: int) -> Integers:
        """Take `count` of them."""
        ...

    def predicted_bits(self, values: Integers) -> float:
        """Return the length in bits that `write` will need, worked out from the values without writing."""
        ...


class MaskCode(Protocol):
    """A boolean matrix ``(M, N)``; lossless."""

    def write(self, mask: Mask, out: Writer) -> None:
        """Append it."""
        ...

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Take a mask of this shape."""
        ...
