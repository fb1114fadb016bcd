"""The ledger: what every message cost, with a row for each client, phase and direction.

Bits are ``8 * len(bytes)`` of the message that was really sent, headers included, for down-link and
up-link.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from bayesfed.federated.core import Cost, Direction


@dataclass(frozen=True)
class Row:
    """One message.

    =====================================  =========================================================
    field                                  what is wrong
    =====================================  =========================================================
    ``size``                               the message is too long, or would be when decoded
    ``digest``                             damaged, forged, or of another exchange that cannot be
                                           identified
    ``message``, ``header``, ``meta``      not a message of ours, not readable, or its header has
                                           more than client, round
                                           and phase (for example a weight)
    ``run``, ``client``, ``round``,        of another exchange: a stale or replayed message, or one
                                           of another client
    ``phase``, ``nonce``
    ``duplicate``                          the client has answered before; its first answer counts
    ``leaves``, ``shape``, ``dtype``,      a leaf is missing, not asked for, not as the server's
                                           view expects it, not finite,
    ``values``, ``norm``                   or too large
    ``weight``, ``info``                   the weight that the server assigned, or the client's own
                                           figures
    ``payload``                            anything else that cannot be added
    ``""``                                 no message was refused: the client failed, was not heard,
                                           or was left out
    =====================================  =========================================================

    Parameters
    ----------
    client, round, phase
        The exchange that the message belongs to.
    direction
        "down" for a message to the client, "up" for one from it.
    cost
        What it took to send the message.
    seconds
        Time that the client took, in seconds, on rows of direction "up".
    accepted
        False if the message was refused, or the client failed, was not heard or was left out.
    reason
        Why it is not in the sum; empty if it is.
    field
        What is wrong with a refused message, in one word for programs: see the table.
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
        """Length of the message in bits."""
        return self.cost.bits


def channel_uses(rows: Iterable[Row]) -> int:
    """Return the number of sub-carriers that analog links used. All clients of a round share the
    same ones.
    """
    shared: dict[tuple[int, str], int] = {}
    for row in rows:
        slot = (row.round, row.phase)
        shared[slot] = max(shared.get(slot, 0), row.cost.channel_uses)
    return sum(shared.values())


def latency_s(rows: Iterable[Row], deadline_s: float = math.inf) -> float:
    """Return the seconds of all rounds and phases with a `Load`.

    Each phase takes as long as its slowest client, and at most `deadline_s` seconds.
    """
    slowest: dict[tuple[int, str], float] = {}
    for row in rows:
        slot = (row.round, row.phase)
        slowest[slot] = max(slowest.get(slot, 0.0), min(row.cost.latency_s, deadline_s))
    return math.fsum(slowest.values())


def energy_j(rows: Iterable[Row]) -> float:
    """Return the joules of all clients with a `Load`, late clients included."""
    return math.fsum(row.cost.energy_j for row in rows)


def macs(rows: Iterable[Row]) -> float:
    """Return the multiply-accumulates of the training of all clients with a `Load`."""
    return math.fsum(row.cost.macs for row in rows)


def bits(rows: Iterable[Row], direction: Direction | None = None) -> int:
    """Return the bits of all rows, of one direction or of both, refused messages included."""
    return sum(row.bits for row in rows if direction in (None, row.direction))
