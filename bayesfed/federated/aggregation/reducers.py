"""`Keep`: the reducer of rules that need every client's update apart."""

from __future__ import annotations

from dataclasses import dataclass, field

from bayesfed.federated.core.update import Update


@dataclass
class Keep:
    """Keep every update, for rules that need them apart (median, trimmed mean, Krum).

    Costs K models of memory and gives up what sums give: over-the-air addition and secure aggregation.
    """

    updates: dict[str, Update] = field(default_factory=dict)

    def add(self, client: str, update: Update) -> None:
        """Keep one update under its client's name."""
        self.updates[client] = update
