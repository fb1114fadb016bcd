"""The ledger: what every message cost, one row a client, phase and direction.

Bits are ``8 * len(bytes)`` of the message that was really sent, headers included, down-link and up-link both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Direction = Literal["down", "up"]


@dataclass(frozen=True)
class Row:
    """One message: `seconds` is the client's own time (up rows), `reason` says why it was not accepted."""

    client: str
    round: int
    phase: str
    direction: Direction
    bits: int
    seconds: float = 0.0
    accepted: bool = True
    reason: str = ""


def bits(rows: Iterable[Row], direction: Direction | None = None) -> int:
    """Sum the bits of rows, of one direction or of both; refused messages count, for they were sent."""
    return sum(row.bits for row in rows if direction in (None, row.direction))
