"""The ledger: what every message cost, one row a client, phase and direction.

Bits are ``8 * len(bytes)`` of the message that was really sent, headers included, down-link and up-link both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from bayesfed.federated.core.costs import Cost
from bayesfed.federated.core.protocols import Direction


@dataclass(frozen=True)
class Row:
    """One message: `seconds` is the client's own time (up rows), `reason` says why it is not in the sum, and `field` the same for programs.

    =====================================  ===========================================================================
    field                                  what is wrong
    =====================================  ===========================================================================
    ``size``                               the message, or what it promises to become
    ``digest``                             damaged, forged, or of another exchange that cannot be told
    ``message``, ``header``, ``meta``      not ours, cannot be read, or says more than client, round and phase (a weight, say)
    ``run``, ``client``, ``round``,        another exchange's: a stale or replayed message, or somebody else's
    ``phase``, ``nonce``
    ``duplicate``                          the client has answered; the first answer counts
    ``leaves``, ``shape``, ``dtype``,      a leaf that is missing or not asked for, or not as the server's view expects it; NaN or infinity;
    ``values``, ``norm``                   too large
    ``weight``, ``info``                   the weight that the server gave it, or the client's own figures
    ``payload``                            anything else that cannot be added
    ``""``                                 no message was refused: the client failed, was silent, or was left out
    =====================================  ===========================================================================
    """

    client: str
    round: int
    phase: str
    direction: Direction
    cost: Cost
    seconds: float = 0.0
    accepted: bool = True
    reason: str = ""
    field: str = ""

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
