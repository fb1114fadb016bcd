"""`Keep`: the reducer for rules that need every client's update."""

from __future__ import annotations

from dataclasses import dataclass, field

from bayesfed.federated.core import Update, checked


@dataclass
class Keep:
    """Keep every update, for rules that need all of them (median, trimmed mean, Krum).

    This takes the memory of K models, and excludes what sums allow: over-the-air addition and
    secure aggregation.

    Parameters
    ----------
    updates
        Updates by client.
    """

    updates: dict[str, Update] = field(default_factory=dict)

    def add(self, client: str, update: Update) -> None:
        """Keep one client's update.

        Raises
        ------
        UpdateError
            If a number of the update is not finite, or 2^50 or more in size, so that it could not
            be added to others.
        """
        checked(update)
        self.updates[client] = update
