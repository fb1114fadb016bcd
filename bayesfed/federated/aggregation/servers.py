"""Servers: `Average` of values, `Add` of changes, and `Sorted`, which sorts channels after another
server's step.

Servers that only one method has are in the folder of that method in `bayesfed.algorithms`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from bayesfed.errors import UpdateError
from bayesfed.federated.core import (
    MODEL,
    Info,
    Kind,
    Reducer,
    Server,
    Stale,
    Update,
    owned,
    published,
    total_of,
)
from bayesfed.models import ChannelGraph, sort_channels
from bayesfed.trees import Tree, zip_map


def summed(reducer: Reducer, kind: Kind) -> Update:
    """Return the sum that a server needs.

    Parameters
    ----------
    reducer
        Reducer of the phase.
    kind
        Kind of update that the server takes.

    Raises
    ------
    UpdateError
        If another reducer was used, or the clients sent another kind.
    """
    total = total_of(reducer)
    if total is None or total.kind != kind:
        raise UpdateError(
            "server step",
            f"a sum of kind {kind!r}",
            f"kind {total.kind!r}" if total else type(reducer).__name__,
            f"a local whose kind is {kind!r}",
        )
    return total


class PublishesModel:
    """A server that publishes the model alone, or the leaves of another owner, of a state with
    several kinds of leaves: a base of such servers.
    """

    shown: ClassVar[str] = MODEL

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish these leaves."""
        return owned(state, self.shown)


@dataclass(frozen=True)
class Average:
    """Replace the model by the weighted mean of the clients' models (FedAvg, McMahan et al., 2017).

    Entries that no client covers stay as they are.
    """

    # Of an old answer only the change from the state that it was begun with counts (`FedBuff`).
    stale: ClassVar[Stale] = "rebased"
    averages: ClassVar[bool] = True

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the mean as the next state. A round in which no client has data changes
        nothing.
        """
        total = summed(reducer, "value")
        if total.by_entry:
            mean = total.mean()
            return {
                name: torch.where(total.weight_of(name) > 0, mean[name], leaf)
                for name, leaf in state.items()
            }, {}
        return (total.mean() if total.weight else state), {}


@dataclass(frozen=True)
class Add:
    """Add the weighted mean of the clients' changes to the model: FedAvg for methods that send
    changes.
    """

    stale: ClassVar[Stale] = "scaled"
    averages: ClassVar[bool] = True

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Return the state plus the mean change. A round in which no client has data changes
        nothing.
        """
        total = summed(reducer, "delta")
        return (zip_map(torch.add, state, total.mean()) if total.weight else state), {}


@dataclass(frozen=True)
class Sorted:
    """The step of another server, after which hidden channels are sorted by descending norm, so
    that the leading ones matter most.

    Parameters
    ----------
    server
        Server that takes the step.
    graph
        Channels of the network.

    References
    ----------
    AnycostFL, section III-B.
    """

    server: Server
    graph: ChannelGraph

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the server publishes."""
        return published(self.server, state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Take the server's step, then sort the channels."""
        state, info = self.server.step(state, reducer, round)
        return sort_channels(self.graph, state), info
