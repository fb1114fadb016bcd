"""What updates are added to besides `Sum`: `Keep`, for rules that need every client's update, and
`BoundedSum`, for layers that bound what one client moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bayesfed.errors import UpdateError
from bayesfed.federated.core import Sum, Update, checked


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


@dataclass(frozen=True)
class Admitted(Update):
    """One client's update as the layers admitted it. What is made of it by `replace` is none."""

    admitted: bool = field(default=False, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, update: Update) -> Admitted:
        """Return an update that the layers admitted."""
        made = cls(update.total, update.weight, update.kind)
        object.__setattr__(made, "admitted", True)
        return made


class BoundedSum(Sum):
    """A sum of updates that a layer bounded, one of each client, and of nothing else: what a link
    changes afterwards is refused.

    Parameters
    ----------
    owner
        Owner of the layer.
    """

    def __init__(self, owner: str) -> None:
        super().__init__()
        self.owner, self.clients = owner, set[str]()

    def add(self, client: str, update: Update) -> None:
        """Add one client's update.

        Raises
        ------
        UpdateError
            If the layers did not admit the update as it is, or the client has one in the sum.
        """
        if client in self.clients or not getattr(update, "admitted", False):
            twice, changed = "a second one", "one that was not clipped, or was changed afterwards"
            raise UpdateError(
                f"{self.owner}, client {client!r}",
                "one clipped update",
                twice if client in self.clients else changed,
                "the link Digital()",
            )
        super().add(client, update)
        self.clients.add(client)
