"""What is recorded during an exchange, and the policy on clients that fail: `Occasion` and
`Entries`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bayesfed.errors import ClientError, TooFewClientsError
from bayesfed.errors.plurals import plural
from bayesfed.federated.core import Cost, Direction, Info, Phase
from bayesfed.federated.engine.reports import OnClientError, Row
from bayesfed.keys import Key
from bayesfed.trees import Tree

NO_COST = Cost()


@dataclass(frozen=True)
class Occasion:
    """The phase, round and run of an exchange, the server's state before it, and the policy on
    clients' errors.

    Parameters
    ----------
    phase
        Phase of the algorithm.
    state
        The server's state before the exchange.
    round
        Number of the round.
    seed
        Seed of the run.
    policy
        "raise" or "drop", see `bayesfed.federated.rounds`.
    least
        Smallest number of clients in the sum.
    run_id
        Id of the run, which messages are bound to.
    """

    phase: Phase
    state: Tree
    round: int
    seed: int
    policy: OnClientError = "raise"
    least: int = 1
    run_id: str = ""

    def key(self, *names: str) -> Key:
        """Return the key of a random stream of this phase and round."""
        return Key(self.seed, self.phase.name, self.round, *names)


@dataclass
class Entries:
    """What is recorded during an exchange.

    Parameters
    ----------
    occasion
        The exchange.
    rows
        Rows of the ledger, in the order of events.
    infos
        By client: figures of the clients whose payloads are in the sum.
    silent
        Whether any client was left out or not heard through no fault of its own.
    """

    occasion: Occasion
    rows: list[Row] = field(default_factory=list)
    infos: dict[str, Info] = field(default_factory=dict)
    silent: bool = False

    def note(
        self,
        client: str,
        direction: Direction,
        cost: Cost = NO_COST,
        seconds: float = 0.0,
        reason: str = "",
        field: str = "",
    ) -> None:
        """Add a row, of a message that is accepted unless there is a reason why not."""
        where = client, self.occasion.round, self.occasion.phase.name
        self.rows.append(Row(*where, direction, cost, seconds, not reason, reason, field))

    def failed(
        self, client: str, error: ClientError, cost: Cost = NO_COST, seconds: float = 0.0
    ) -> None:
        """Record a client that failed or was refused.

        Raises
        ------
        ClientError
            `error` itself, under the policy "raise".
        """
        self.stray(client, error, cost, seconds)
        if self.occasion.policy == "raise":
            raise error

    def stray(
        self, client: str, error: ClientError, cost: Cost = NO_COST, seconds: float = 0.0
    ) -> None:
        """Record a message that is refused under every policy. The client it claims to come from
        may still answer.
        """
        self.note(client, "up", cost, seconds, f"{error.stage}: {error.reason}", error.field)

    def enough(self) -> bool:
        """Return whether the server may step: False, under "drop", if no client was heard and some
        were silent through no fault of their own.

        Raises
        ------
        TooFewClientsError
            Otherwise, if fewer than `Occasion.least` clients are in the sum.
        """
        least = self.occasion.least
        if not self.infos and self.occasion.policy == "drop" and self.silent and least == 1:
            return False
        if len(self.infos) < least:
            reasons = "; ".join(
                f"{row.client}: {row.reason}" for row in self.rows if not row.accepted
            )
            left = (
                f"{len(self.infos)} of at least {plural(least, 'client')} are left"
                if self.infos
                else "no client is left"
            )
            raise TooFewClientsError(
                "all", self.occasion.round, self.occasion.phase.name, f"{left} ({reasons})"
            )
        return True
