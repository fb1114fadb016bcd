"""What a run yields: `Snapshot`, from which it can continue; `Record`, the figures of a round;
`RoundReport`, a record with its snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from bayesfed.federated.core import Algorithm, Info, Predictor
from bayesfed.federated.engine.ledger import Row
from bayesfed.trees import Tree

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
    """

    algorithm: Algorithm
    snapshot: Snapshot

    @property
    def state(self) -> Tree:
        """The server's state after this round."""
        return self.snapshot.state

    @property
    def model(self) -> Predictor:
        """The model after this round."""
        return self.algorithm.predictor(self.state)

    @property
    def record(self) -> Record:
        """The figures alone. The dictionary of metrics is shared, not copied."""
        return Record(
            round=self.round,
            rows=self.rows,
            clients=self.clients,
            server=self.server,
            seconds=self.seconds,
            metrics=self.metrics,
        )
