"""The ledger: what every message cost, one row a client, phase and direction.

Bits are ``8 * len(bytes)`` of the message that was really sent, headers included, down-link and up-link both.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from bayesfed.federated.protocols import Cost

Direction = Literal["down", "up"]


@dataclass(frozen=True)
class Row:
    """One payload: `seconds` is the client's own time (up rows), `reason` says why it is not in the sum."""

    client: str
    round: int
    phase: str
    direction: Direction
    cost: Cost
    seconds: float = 0.0
    accepted: bool = True
    reason: str = ""

    @property
    def bits(self) -> int:
        """Bits of the message."""
        return self.cost.bits


def channel_uses(rows: Iterable[Row]) -> int:
    """Sum the sub-carriers of analog links; clients of a round share theirs."""
    shared: dict[tuple[int, str], int] = {}
    for row in rows:
        slot = (row.round, row.phase)
        shared[slot] = max(shared.get(slot, 0), row.cost.channel_uses)
    return sum(shared.values())


def bits(rows: Iterable[Row], direction: Direction | None = None) -> int:
    """Sum the bits of rows, of one direction or of both; refused messages count, for they were sent."""
    return sum(row.bits for row in rows if direction in (None, row.direction))
