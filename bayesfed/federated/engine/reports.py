"""What a run says of itself: `Snapshot`, from which it goes on; `Record`, a round in figures; `RoundReport`, a record with the run itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from bayesfed.federated.core.algorithm import Algorithm, Predictor
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.engine.ledger import Row
from bayesfed.trees import Tree

OnClientError = Literal["raise", "drop"]


@dataclass(frozen=True)
class Snapshot:
    """Everything the next round depends on: hand it back to continue, bit for bit; `run` is what its messages are bound to.

    Parameters
    ----------
    history
        Records to put in front of those of a run that goes on from here: those made before this one was resumed, and in ``Result.snapshot``
        and `load`, all.
    """

    algorithm: str
    seed: int
    round: int
    state: Tree
    versions: Mapping[str, int] = field(default_factory=dict)
    memories: Mapping[str, Tree] = field(default_factory=dict)
    run: str = ""
    history: tuple[Record, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Record:
    """What a round did, in figures: light enough to keep for every round.

    Parameters
    ----------
    rows
        The round's ledger.
    clients
        Figures each accepted client returned.
    server
        Figures of the server step.
    metrics
        Filled by callbacks.
    """

    round: int
    rows: tuple[Row, ...]
    clients: Mapping[str, Info]
    server: Info
    seconds: float
    metrics: Info = field(default_factory=dict)

    @property
    def refused(self) -> dict[str, str]:
        """Clients left out of this round, or of a phase of it, with the reason."""
        heard = {(row.client, row.phase) for row in self.rows if row.accepted and row.direction == "up"}
        return {row.client: row.reason for row in self.rows if not row.accepted and (row.client, row.phase) not in heard}

    @property
    def refusals(self) -> tuple[Row, ...]:
        """Every message that was refused, with its client, field and reason: also those of clients whose other answer counts."""
        return tuple(row for row in self.rows if row.field)


@dataclass(frozen=True, kw_only=True)
class RoundReport(Record):
    """A record with the run itself: ``snapshot.round`` is the number of the next round."""

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
        """The figures alone, sharing the metrics."""
        return Record(round=self.round, rows=self.rows, clients=self.clients, server=self.server, seconds=self.seconds, metrics=self.metrics)
