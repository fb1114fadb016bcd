"""The interfaces of codes for one tensor, one sequence of integers and one mask; what they write
to and read from: `Writer` and `Reader`, of counts, scales and blocks.

Implementations are frozen dataclasses without state. A decoder gets the shape, which the header of
the message states and which is checked against a limit, and reads from a `Reader`, which checks
everything it reads. It raises no error but `WireError`, and its memory is at most a small multiple
of what the shape needs.
"""

from __future__ import annotations

import math
import struct
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from bayesfed.errors import WireError
from bayesfed.keys import Key


class Writer:
    """Collects parts; `bytes` joins them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def byte(self, value: int) -> None:
        """Append one byte."""
        self._parts.append(bytes([value]))

    def varint(self, value: int) -> None:
        """Append a count >= 0, seven bits per byte, lowest bits first."""
        if value < 0:
            raise WireError("varint", "a count >= 0", value, "an offset or a zigzag")
        while value > 0x7F:
            self.byte(value & 0x7F | 0x80)
            value >>= 7
        self.byte(value)

    def f32(self, value: float) -> None:
        """Append a finite number as float32."""
        if not math.isfinite(value) or abs(value) > 3.4028234e38:
            raise WireError(
                "float32",
                "a finite number within its range",
                value,
                "values of ordinary size",
                field="values",
            )
        self._parts.append(struct.pack("<f", value))

    def raw(self, part: bytes) -> None:
        """Append bytes unchanged."""
        self._parts.append(part)

    def block(self, part: bytes) -> None:
        """Append the number of bytes, then the bytes."""
        self.varint(len(part))
        self.raw(part)

    def bytes(self) -> bytes:
        """Return everything written."""
        return b"".join(self._parts)


class Reader:
    """Takes parts from the front of a section; raises `WireError` if a part is missing or out of
    range.
    """

    def __init__(self, raw: bytes | memoryview) -> None:
        self._view, self._at = memoryview(raw), 0

    def __len__(self) -> int:
        """Return the number of bytes left."""
        return len(self._view) - self._at

    def raw(self, count: int) -> memoryview:
        """Take `count` bytes."""
        if not 0 <= count <= len(self):
            raise WireError(
                "section", f"{count} more bytes", f"{len(self)} left", "sending it again"
            )
        self._at += count
        return self._view[self._at - count : self._at]

    def byte(self) -> int:
        """Take one byte."""
        return self.raw(1)[0]

    def varint(self, most: int) -> int:
        """Take a count; refuse counts above `most`."""
        value = shift = 0
        while True:
            part = self.byte()
            value |= (part & 0x7F) << shift
            shift += 7
            if value > most or shift > 70:
                raise WireError(
                    "section", f"a count of at most {most}", f"{value} or more", "sending it again"
                )
            if part < 0x80:
                return value

    def f32(self, low: float = -3.4028235e38, high: float = 3.4028235e38) -> float:
        """Take a float32; refuse NaN, infinities and anything outside [low, high]."""
        (value,) = struct.unpack("<f", self.raw(4))
        if not low <= value <= high:
            raise WireError(
                "section", f"a number from {low:g} to {high:g}", value, "sending it again"
            )
        return float(value)

    def block(self) -> Reader:
        """Take a block, a length and as many bytes, and return a reader of it."""
        return Reader(self.raw(self.varint(len(self))))

    def done(self) -> None:
        """Raise `WireError` if bytes are left over."""
        if len(self):
            raise WireError("section", "its end", f"{len(self)} bytes more", "sending it again")


Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


class LeafCodec(Protocol):
    """Codes one floating-point tensor of any shape, scalars and empty tensors included."""

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the tensor; raise `WireError` for NaN, infinity or a value that cannot be
        represented.
        """

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read a float32 tensor of this shape."""


class IntegerCode(Protocol):
    """Codes a sequence of integers, losslessly."""

    def write(self, values: Integers, out: Writer) -> None:
        """Append the integers; their number is not written."""

    def read(self, source: Reader, count: int) -> Integers:
        """Read `count` integers."""

    def predicted_bits(self, values: Integers) -> float:
        """Return the length in bits that `write` needs, computed without writing."""


class MaskCode(Protocol):
    """Codes a boolean matrix ``(M, N)``, losslessly."""

    def write(self, mask: Mask, out: Writer) -> None:
        """Append the mask."""

    def read(self, source: Reader, shape: tuple[int, int]) -> Mask:
        """Read a mask of this shape."""
