"""`Beside`: what servers share that keep leaves of their own beside the state of another, whose step they take first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from bayesfed.federated.core.algorithm import Server, published
from bayesfed.trees import Tree, under, without


@dataclass(frozen=True)
class Beside:
    """Another server, and leaves of one's own with the prefix `OWN`, which clients never see.

    Parameters
    ----------
    server
        The other server.
    """

    server: Server
    OWN: ClassVar[str]

    @property
    def stale(self) -> str | None:
        """How the inner server takes old answers (`FedBuff`)."""
        return getattr(self.server, "stale", None)

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the inner server publishes of its own state."""
        return published(self.server, without(state, self.OWN), round, version)

    def parted(self, state: Tree) -> tuple[Tree, Tree]:
        """Return the inner server's state, and the leaves of one's own with their whole names."""
        return without(state, self.OWN), {self.OWN + name: leaf for name, leaf in under(state, self.OWN).items()}
