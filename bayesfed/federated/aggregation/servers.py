"""Servers: what the sum does to the state. `Average` of values and `Add` of changes, after which channels may be `Sorted`.

`TurboStep`, `TernaryStep` and others have files of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesfed.errors import UpdateError, complain
from bayesfed.federated.core.algorithm import Server, published
from bayesfed.federated.core.protocols import Info
from bayesfed.federated.core.update import Kind, Reducer, Sum, Update
from bayesfed.models.elastic.graph import ChannelGraph
from bayesfed.models.elastic.sorting import sort_channels
from bayesfed.trees import Tree, zip_map


def summed(reducer: Reducer, kind: Kind) -> Update:
    """Return the sum a server asked for.

    Raises
    ------
    UpdateError
        If another reducer was used, or the clients sent another kind.
    """
    if not isinstance(reducer, Sum) or reducer.total is None or reducer.total.kind != kind:
        found = f"kind {reducer.total.kind!r}" if isinstance(reducer, Sum) and reducer.total else type(reducer).__name__
        raise UpdateError(complain("server step", expected=f"a sum of kind {kind!r}", actual=found, hint=f"a local whose kind is {kind!r}"))
    return reducer.total


@dataclass(frozen=True)
class Average:
    """Replace the model by the weighted mean of the clients' (FedAvg, McMahan et al., 2017); entries that nobody had stay."""

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Average values; a round of clients without data changes nothing."""
        total = summed(reducer, "value")
        if total.by_entry:
            mean = total.mean()
            return {name: torch.where(total.weight_of(name) > 0, mean[name], leaf) for name, leaf in state.items()}, {}
        return (total.mean() if total.weight else state), {}


@dataclass(frozen=True)
class Add:
    """Add the weighted mean of the clients' changes to the model: FedAvg for methods that code changes."""

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Add the mean change; a round of clients without data changes nothing."""
        total = summed(reducer, "delta")
        return (zip_map(torch.add, state, total.mean()) if total.weight else state), {}


@dataclass(frozen=True)
class Sorted:
    """Another server's step, then hidden channels in descending order of their norms, so that leading ones matter most (AnycostFL, section III-B)."""

    server: Server
    graph: ChannelGraph

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish as the server does."""
        return published(self.server, state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Step, then sort."""
        state, info = self.server.step(state, reducer, round)
        return sort_channels(self.graph, state), info
