"""`equal_weights`: clients weigh alike, and nobody gains influence by claiming many rows; and
`robust`: any method that adds changes or values, with a robust rule in place of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from bayesfed.errors import UpdateError
from bayesfed.errors.checks import Role, checked
from bayesfed.federated import (
    Algorithm,
    Assignment,
    Layer,
    Moment,
    Rule,
    Skip,
    Traits,
    Update,
    layered,
)
from bayesfed.federated.aggregation.changes import VECTORS
from bayesfed.federated.aggregation.rules import added
from bayesfed.federated.core import Info, Turn
from bayesfed.trees import Tree

RULE = Role(
    lambda rule: callable(rule) and not isinstance(rule, type),
    "a robust rule",
    "Median() or TrimmedMean(0.2)",
)


@checked()
def equal_weights(algorithm: Algorithm) -> Algorithm:
    """Give every client with a weight above zero the weight 1, so that nobody gains influence by
    claiming many rows.

    Parameters
    ----------
    algorithm
        The method: an `Algorithm`, as every recipe returns.

    Raises
    ------
    ArgumentError
        If clients send something other than changes or values.
    """
    where = f"equal_weights, {algorithm.name!r}"
    return layered(algorithm, EqualWeights(), where=where, one_phase=False)


@dataclass(frozen=True)
class EqualWeights(Layer):
    """Positive weights are 1."""

    owner: str = "weights"
    traits: ClassVar[Traits] = Traits(takes=VECTORS)

    def plan(self, own: Tree, turn: Turn, assignment: Assignment) -> Assignment | Skip:
        """Weigh the client. Invalid weights are left for the link to refuse."""
        positive = 0 < assignment.weight < math.inf
        return replace(assignment, weight=1.0) if positive else assignment


@checked(rule=RULE)
def robust(algorithm: Algorithm, rule: Rule) -> Algorithm:
    """Combine the updates of clients by a robust rule; the server then does with the result what
    the method does with a sum.

    Hostile clients can still do what the rule lets through: see the bounds of each rule, and
    `SECURITY.md`. A client that a rule leaves out counts as heard: its memory advances, and its
    bits are in the ledger. The server keeps every update of a round: the memory of K models instead
    of one, no over-the-air addition, and no secure aggregation, since the rule has to see who sent
    what. All clients weigh alike, because a number of rows is only a claim of the client.

    Parameters
    ----------
    algorithm
        The method: an `Algorithm`, as every recipe returns.
    rule
        `Median()`, `TrimmedMean(share)`, `Krum(byzantine, keep)` or `NormGate(factor)`.

    Raises
    ------
    ArgumentError
        If clients send something other than changes or values, the channel adds their updates, the
        server does not take a sum, or the method is `private`.
    """
    where = f"robust, {algorithm.name!r}"
    return layered(algorithm, Robust(rule=rule), where=where, one_phase=False)


@dataclass(frozen=True, kw_only=True)
class Robust(EqualWeights):
    """A rule in place of the sum.

    Parameters
    ----------
    rule
        `Median`, `TrimmedMean`, `Krum` or `NormGate`, or a function like them.
    """

    owner: str = "robust"
    rule: Rule
    traits: ClassVar[Traits] = Traits(needs="each", apart=True, takes=VECTORS)

    def combine(
        self, own: Tree, updates: Mapping[str, Update], moment: Moment
    ) -> tuple[Update, Info]:
        """Apply the rule. Clients of weight zero are left out.

        Raises
        ------
        UpdateError
            If the rule is not defined for the updates. The message names the round.
        """
        counted = {client: update for client, update in updates.items() if update.weighs}
        if not counted:
            return added(updates), {}
        try:
            return self.rule(counted, moment.shown(moment.model, moment.round, None))
        except UpdateError as problem:
            raise UpdateError(f"round {moment.round}: {problem}") from None
