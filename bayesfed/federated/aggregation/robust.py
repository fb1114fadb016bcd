"""`Rule`: what takes the place of a sum so that a few hostile clients cannot move it far.

The rules are in `bayesfed.federated.aggregation.rules` and
`bayesfed.federated.aggregation.selection`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Protocol

from bayesfed.federated.core import Info, PartialSum, Update
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


def added(updates: Mapping[str, Update]) -> Update:
    """Return the sum of at least one update, whose bits do not depend on their order."""
    total = reduce(
        PartialSum.with_, updates.values(), PartialSum.nothing(next(iter(updates.values())))
    )
    return total.update()
