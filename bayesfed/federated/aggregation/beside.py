"""`Beside`: what servers share that keep leaves of their own beside the state of another, whose
step they take first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

from bayesfed.federated.core.algorithm import Phase, Server, published
from bayesfed.federated.core.protocols import Assignment, Info, Profile, Skip
from bayesfed.federated.core.update import Reducer
from bayesfed.keys import Key
from bayesfed.trees import Tree, without


@dataclass(frozen=True)
class Beside(ABC):
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

    @abstractmethod
    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Take the inner server's step, and see to the leaves of one's own."""

    def parted(self, state: Tree) -> tuple[Tree, Tree]:
        """Return the inner server's state, and the leaves of one's own with their whole names."""
        return without(state, self.OWN), {
            name: leaf for name, leaf in state.items() if name.startswith(self.OWN)
        }

    def in_phase(self, phase: Phase) -> Phase:
        """Return the inner server's phase with this server: turns are planned from the inner state
        alone.
        """

        def assign(state: Tree, round: int, profile: Profile, key: Key) -> Assignment | Skip:
            return phase.assign(without(state, self.OWN), round, profile, key)

        return replace(phase, assign=assign, server=self)
