"""Write and read the small parts of a section: counts, scales, blocks. A reader believes nothing it has not checked."""

from __future__ import annotations

import math
import struct

from bayesfed.errors import WireError, complain


class Writer:
    """Append parts; `bytes` joins them."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def byte(self, value: int) -> None:
        """Append one byte."""
        self._parts.append(bytes([value]))

    def varint(self, value: int) -> None:
        """Append a count >= 0, seven bits a byte, lowest first."""
        if value < 0:
            raise WireError(complain("varint", expected="a count >= 0", actual=value, hint="an offset or a zigzag"))
        while value > 0x7F:
            self.byte(value & 0x7F | 0x80)
            value >>= 7
        self.byte(value)

    def f32(self, value: float) -> None:
        """Append a finite number as float32."""
        if not math.isfinite(value) or abs(value) > 3.4028234e38:
            raise WireError(
                complain("float32", expected="a finite number within its range", actual=value, hint="values of ordinary size"), field="values"
            )
        self._parts.append(struct.pack("<f", value))

    def raw(self, part: bytes) -> None:
        """Append bytes as they are."""
        self._parts.append(part)

    def block(self, part: bytes) -> None:
        """Append bytes after their length."""
        self.varint(len(part))
        self.raw(part)

    def bytes(self) -> bytes:
        """Return everything written."""
        return b"".join(self._parts)


class Reader:
    """Take parts from the front of a section; raise `WireError` for whatever is not there or not as promised."""

    def __init__(self, raw: bytes | memoryview) -> None:
        self._view, self._at = memoryview(raw), 0

    def __len__(self) -> int:
        """Return how many bytes are left."""
        return len(self._view) - self._at

    def raw(self, count: int) -> memoryview:
        """Take `count` bytes."""
        if not 0 <= count <= len(self):
            raise WireError(complain("section", expected=f"{count} more bytes", actual=f"{len(self)} left", hint="sending it again"))
        self._at += count
        return self._view[self._at - count : self._at]

    def byte(self) -> int:
        """Take one byte."""
        return self.raw(1)[0]

    def varint(self, most: int) -> int:
        """Take a count; refuse one above `most`."""
        value = shift = 0
        while True:
            part = self.byte()
            value |= (part & 0x7F) << shift
            shift += 7
            if value > most or shift > 70:
                raise WireError(complain("section", expected=f"a count of at most {most}", actual=f"{value} or more", hint="sending it again"))
            if part < 0x80:
                return value

    def f32(self, low: float = -3.4028235e38, high: float = 3.4028235e38) -> float:
        """Take a float32; refuse NaN, infinities and anything outside [low, high]."""
        (value,) = struct.unpack("<f", self.raw(4))
        if not low <= value <= high:
            raise WireError(complain("section", expected=f"a number from {low:g} to {high:g}", actual=value, hint="sending it again"))
        return float(value)

    def block(self) -> Reader:
        """Take a block: its length, then its bytes, as a reader of its own."""
        return Reader(self.raw(self.varint(len(self))))

    def done(self) -> None:
        """Refuse a section with bytes left over."""
        if len(self):
            raise WireError(complain("section", expected="its end", actual=f"{len(self)} bytes more", hint="sending it again"))
