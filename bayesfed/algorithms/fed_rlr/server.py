"""`Retract`: the server of FedRLR, which moves every point by the sum of the clients' messages."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bayesfed.algorithms.fed_rlr.encodings import Transmission
from bayesfed.algorithms.fed_rlr.local import free
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated import Keep, Reducer
from bayesfed.federated.core import Info, seams
from bayesfed.models import points, with_points
from bayesfed.trees import Tree


@dataclass(frozen=True)
class Retract:
    """Move every point by the sum of the clients' messages, and free leaves by their mean change.

    Parameters
    ----------
    layers
        Names of the layers of fixed rank. None: as `points` finds them.
    """

    transmission: Transmission
    layers: tuple[str, ...] | None = None

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Receive.

        Raises
        ------
        UpdateError
            If another reducer was used, the clients sent another kind, or a point cannot go where
            they say; with layer and round.
        """
        totals, weights = self._received(reducer)
        if not weights:
            return state, {}
        moved = {}
        for name, point in points(state, self.layers).items():
            mine = [
                {
                    part: total[f"{name}.{part}"].to(point.u.dtype)
                    for part in self.transmission.shapes(point)
                }
                for total in totals
            ]
            try:
                moved[name] = self.transmission.receive(point, mine, weights)
            except (ArgumentError, RuntimeError) as problem:
                raise UpdateError(f"Retract, layer {name!r}, round {round}: {problem}") from None
        result = with_points(state, moved)
        for name, leaf in free(state, self.layers).items():
            change = sum((total[name] for total in totals), torch.zeros_like(leaf)) / sum(weights)
            result[name] = leaf + change.to(leaf.dtype)
        return result, {}

    def _received(self, reducer: Reducer) -> tuple[list[Tree], list[float]]:
        total, kept = seams.total_of(reducer), seams.gathered(reducer, Keep)
        if self.transmission.adds:
            updates = [total] if total else []
        else:
            updates = [kept.updates[client] for client in sorted(kept.updates)] if kept else []
        if any(update.kind != self.transmission.kind for update in updates) or not updates:
            raise UpdateError(
                "Retract",
                f"updates of kind {self.transmission.kind!r}",
                {update.kind for update in updates} or type(reducer).__name__,
                "fed_rlr's own phase",
            )
        heard = [update for update in updates if update.number() > 0]
        return [update.total for update in heard], [update.number() for update in heard]
