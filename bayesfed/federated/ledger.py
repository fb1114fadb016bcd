"""The ledger: what every message cost, one row a client, phase and direction.

Bits are ``8 * len(bytes)`` of the message that was really sent, headers included, down-link and up-link both.
"""

from __future__ import annotations

import math
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


def latency_s(rows: Iterable[Row], deadline_s: float = math.inf) -> float:
    """Sum the seconds of rounds and phases under a `Load`: each as long as its slowest client, and never longer than a deadline."""
    slowest: dict[tuple[int, str], float] = {}
    for row in rows:
        slot = (row.round, row.phase)
        slowest[slot] = max(slowest.get(slot, 0.0), min(row.cost.latency_s, deadline_s))
    return math.fsum(slowest.values())


def energy_j(rows: Iterable[Row]) -> float:
    """Sum the joules of clients under a `Load`; those of late ones count, for they were spent."""
    return math.fsum(row.cost.energy_j for row in rows)


def macs(rows: Iterable[Row]) -> float:
    """Sum the multiply-accumulates of the training of clients under a `Load`."""
    return math.fsum(row.cost.macs for row in rows)


def bits(rows: Iterable[Row], direction: Direction | None = None) -> int:
    """Sum the bits of rows, of one direction or of both; refused messages count, for they were sent."""
    return sum(row.bits for row in rows if direction in (None, row.direction))
