"""`robust`: any method whose server takes a sum, with a rule in the place of the sum that a few hostile clients cannot move far.

The server keeps every update of a round apart: K models of memory in place of one, no adding on the air, and no secure aggregation, since it has to
see who sent what. Clients weigh alike, as a number of rows is only what a client says. `rules` and `selecting` beside this file have the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bayesfed.errors import UpdateError, complain
from bayesfed.federated.aggregation.reducers import Keep
from bayesfed.federated.core.algorithm import Server, published
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Reducer, Sum, Update
from bayesfed.trees import Tree


class Rule(Protocol):
    """What stands in for the sum of the clients' updates."""

    def __call__(self, updates: Mapping[str, Update], state: Tree) -> tuple[Update, Info]:
        """Return one update whose mean the server takes for the clients', and figures for the report.

        Parameters
        ----------
        updates
            At least one, by client, in the order of their names; none of weight zero.
        state
            Where the round began.

        Raises
        ------
        UpdateError
            If the rule is not defined for these updates.
        """
        ...


@dataclass(frozen=True)
class Robust:
    """Another server's step, on what a rule makes of the clients' updates."""

    server: Server
    rule: Rule

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish as the server does."""
        return published(self.server, state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Combine, then step; clients of weight zero have no say.

        Raises
        ------
        UpdateError
            If updates were not kept apart, or the rule is not defined for them; with the round.
        """
        if not isinstance(reducer, Keep) or not reducer.updates:
            found = type(reducer).__name__ if not isinstance(reducer, Keep) else "none"
            raise UpdateError(complain("Robust", expected="updates kept apart", actual=found, hint="robust(algorithm, rule)"))
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
    """Return the plain sum, in the order given."""
    first, *others = updates.values()
    for update in others:
        first = first + update
    return first
