"""What a run yields: the ledger, with a `Row` for each client, phase and direction; `Record`, the
figures of a round; `Snapshot`, from which a run can continue; `RoundReport`, a record with its
snapshot.

Bits are ``8 * len(bytes)`` of the message that was really sent, headers included, for down-link and
up-link.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from bayesfed.errors.checks import ITSELF, checked, one_of
from bayesfed.federated.core import Algorithm, Cost, Direction, Info, Predictor
from bayesfed.trees import Tree


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
    return round(math.fsum(_largest(rows, lambda row: row.cost.channel_uses)))


def latency_s(rows: Iterable[Row], deadline_s: float = math.inf) -> float:
    """Return the seconds of all rounds and phases with a `Load`.

    Each phase takes as long as its slowest client, and at most `deadline_s` seconds.
    """
    return math.fsum(_largest(rows, lambda row: min(row.cost.latency_s, deadline_s)))


def energy_j(rows: Iterable[Row]) -> float:
    """Return the joules of all clients with a `Load`, late clients included."""
    return math.fsum(row.cost.energy_j for row in rows)


def macs(rows: Iterable[Row]) -> float:
    """Return the multiply-accumulates of the training of all clients with a `Load`."""
    return math.fsum(row.cost.macs for row in rows)


@checked(rows=ITSELF, direction=one_of(Direction))
def bits(rows: Iterable[Row], direction: Direction | None = None) -> int:
    """Return the bits of all rows, of one direction or of both, refused messages included.

    Raises
    ------
    ArgumentError
        If there is no such direction.
    """
    return sum(row.bits for row in rows if direction in (None, row.direction))


def _largest(rows: Iterable[Row], figure: Callable[[Row], float]) -> Iterable[float]:
    """Return the largest figure of the rows of each round and phase."""
    found: dict[tuple[int, str], float] = {}
    for row in rows:
        slot = (row.round, row.phase)
        found[slot] = max(found.get(slot, 0.0), figure(row))
    return found.values()


OnClientError = Literal["raise", "drop"]
"""Policy on clients that fail or are refused: stop the run, or go on without them."""


@dataclass(frozen=True)
class Snapshot:
    """Everything that the next round depends on. A run that resumes from it continues bit for bit.

    Parameters
    ----------
    algorithm
        Name of the algorithm.
    seed
        Seed of the run.
    round
        Number of the next round.
    state
        The server's state.
    versions
        By client: the round in which it last heard from the server.
    memories
        By client: what it keeps between rounds.
    run
        Id of the run, which its messages are bound to.
    history
        Records from before this run was resumed. In ``Result.snapshot`` and from `load`, the
        records of all rounds. A `RecordFile` if there are many.
    settings
        Settings and clients of the run as short texts by name
        (`bayesfed.federated.engine.settings`); empty if an earlier version wrote the snapshot.
    in_flight
        Answers that are on their way, in an asynchronous run (`FedBuff`); else empty.
    owned
        Whether leaves are named by their owners; False for a snapshot of 0.2.
    origin
        What the algorithm was made of (`Algorithm.origin`); empty for most.
    """

    algorithm: str
    seed: int
    round: int
    state: Tree
    versions: Mapping[str, int] = field(default_factory=dict)
    memories: Mapping[str, Tree] = field(default_factory=dict)
    run: str = ""
    history: Sequence[Record] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    in_flight: Tree = field(default_factory=dict)
    owned: bool = True
    origin: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Record:
    """The figures of a round, small enough to be kept for every round.

    Parameters
    ----------
    round
        Number of the round, from 0.
    rows
        The ledger of the round.
    clients
        By client: the figures that each accepted client returned.
    server
        Figures of the server step.
    seconds
        Duration of the round in seconds.
    metrics
        Figures entered by callbacks.
    """

    round: int
    rows: tuple[Row, ...]
    clients: Mapping[str, Info]
    server: Info
    seconds: float
    metrics: Info = field(default_factory=dict)

    @property
    def refused(self) -> dict[str, str]:
        """Reason by client, for clients that are left out of this round or of one of its phases."""
        heard = {
            (row.client, row.phase) for row in self.rows if row.accepted and row.direction == "up"
        }
        return {
            row.client: row.reason
            for row in self.rows
            if not row.accepted and (row.client, row.phase) not in heard
        }

    @property
    def refusals(self) -> tuple[Row, ...]:
        """Rows of all refused messages, including those of clients with another message that was
        accepted.
        """
        return tuple(row for row in self.rows if row.field)


@dataclass(frozen=True, kw_only=True)
class RoundReport(Record):
    """The record of a round together with its algorithm and snapshot.

    Parameters
    ----------
    algorithm
        Algorithm of the run.
    snapshot
        Snapshot after the round: ``snapshot.round`` is the number of the next one.
    awaited
        Names that callbacks will enter in other rounds' metrics.
    """

    algorithm: Algorithm
    snapshot: Snapshot
    awaited: set[str] = field(default_factory=set)

    @property
    def state(self) -> Tree:
        """The server's state after this round."""
        return self.snapshot.state

    @property
    def model(self) -> Predictor:
        """The model after this round."""
        return self.algorithm.predictor(self.state)

    def due(self, every: int = 1) -> bool:
        """Return whether the model is scored after this round, one of every so many: that of a
        method that ends by itself at its end.
        """
        if self.algorithm.finished:
            return self.algorithm.ended(self.state)
        return self.snapshot.round % every == 0

    @property
    def record(self) -> Record:
        """The figures alone. The dictionary of metrics is shared, not copied."""
        return Record(**{part.name: getattr(self, part.name) for part in fields(Record)})


@dataclass
class Watch:
    """What tells a callback with a memory that a run begins, or goes on from a snapshot."""

    _next: tuple[object, ...] = ()

    def begins(self, report: RoundReport) -> bool:
        """Return whether a report does not follow the one of the last call."""
        run = report.snapshot.algorithm, report.snapshot.seed, report.snapshot.run
        expected, self._next = self._next, (report.round + 1, *run)
        return expected != (report.round, *run)
