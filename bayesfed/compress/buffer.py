"""Writer and reader of the parts of a section: counts, scales, blocks. The reader checks everything
it reads.
"""

from __future__ import annotations

import math
import struct

from bayesfed.errors import WireError


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
