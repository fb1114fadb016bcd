"""`Robust`: a server that replaces the sum by a rule whose result a few hostile clients cannot move
far.

The server keeps every update of a round: the memory of K models instead of one, no over-the-air
addition, and no secure aggregation, since the rule has to see who sent what. All clients have the
same weight, because a number of rows is only a claim of the client. The rules are in
`bayesfed.federated.aggregation.rules` and `bayesfed.federated.aggregation.selection`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

from bayesfed.errors import UpdateError
from bayesfed.federated.aggregation.reducers import Keep
from bayesfed.federated.core.algorithm import Server, published
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.sums import PartialSum, Sum
from bayesfed.federated.core.update import Reducer, Update
from bayesfed.trees import Tree


class Rule(Protocol):
    """A function that takes the place of the sum of the clients' updates."""

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return one update, whose mean takes the place of the clients' mean, and figures for the
        report.

        Parameters
        ----------
        updates
            Updates by client, in the order of their names: at least one, and none of weight zero.
        state
            The server's state at the beginning of the round.

        Raises
        ------
        UpdateError
            If the rule is not defined for these updates.
        """
        ...


@dataclass(frozen=True)
class Robust:
    """The step of another server, with the result of a rule in place of the sum.

    Parameters
    ----------
    server
        Server that takes the step.
    rule
        `Median`, `TrimmedMean`, `Krum` or `NormGate`, or a function like them.
    """

    server: Server
    rule: Rule

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the server publishes."""
        return published(self.server, state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Apply the rule, then the server's step. Clients of weight zero are left out.

        Raises
        ------
        UpdateError
            If the updates were not kept, or the rule is not defined for them. The message names the
            round.
        """
        if not isinstance(reducer, Keep) or not reducer.updates:
            actual = type(reducer).__name__ if not isinstance(reducer, Keep) else "none"
            raise UpdateError("Robust", "updates kept apart", actual, "robust(algorithm, rule)")
        ordered = {client: reducer.updates[client] for client in sorted(reducer.updates)}
        counted = {client: update for client, update in ordered.items() if update.weighs}
        if not counted:
            return self.server.step(state, Sum(added(ordered)), round)
        try:
            total, figures = self.rule(counted, state)
        except UpdateError as problem:
            raise UpdateError(f"round {round}: {problem}") from None
        state, info = self.server.step(state, Sum(total), round)
        return state, {**info, **figures}


def added(updates: Mapping[str, Update]) -> Update:
    """Return the sum of at least one update, whose bits do not depend on their order."""
    total = reduce(
        PartialSum.with_, updates.values(), PartialSum.nothing(next(iter(updates.values())))
    )
    return total.update()
