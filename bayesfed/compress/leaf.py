"""The interfaces of codes for one tensor, one sequence of integers and one mask.

Implementations are frozen dataclasses without state. A decoder gets the shape, which the header of
the message states and which is checked against a limit, and reads from a `Reader`. It raises no
error but `WireError`, and its memory is at most a small multiple of what the shape needs.
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
    """Codes one floating-point tensor of any shape, scalars and empty tensors included."""

    @property
    def unbiased(self) -> bool:
        """Whether the mean of the decoded tensor over keys is the original tensor."""
        ...

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the tensor; raise `WireError` for NaN, infinity or a value that cannot be
        represented.
        """
        ...

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read a float32 tensor of this shape."""
        ...

    def bound(self, leaf: Tensor) -> float:
        """Return a bound on the absolute error of an entry; 0 if lossless."""
        ...

    def variance(self, leaf: Tensor) -> float:
        """Return a bound on the expected squared error, summed over the entries."""
        ...


class IntegerCode(Protocol):
    """Codes a sequence of integers, losslessly."""

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""
        ...

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""
        ...

    def predicted_bits(self, values: Integers) -> float:
        """Return the length in bits that `write` needs, computed without writing."""
        ...


class MaskCode(Protocol):
    """Codes a boolean matrix ``(M, N)``, losslessly."""

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""
        ...

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
        ...
