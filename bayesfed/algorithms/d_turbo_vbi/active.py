"""Sums of active entries, for links that add: all clients have one support, so that no zeros need
be sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import Tensor

from bayesfed.algorithms.d_turbo_vbi.server import TurboStep
from bayesfed.algorithms.d_turbo_vbi.watch import NLL
from bayesfed.compress import gather_active, scatter_active
from bayesfed.errors import UpdateError
from bayesfed.federated import Active, Kind, Reducer, Sum, Update
from bayesfed.federated.aggregation.servers import summed
from bayesfed.federated.core import Info
from bayesfed.federated.training.held_out_scores import FACTORS, SCORES
from bayesfed.inference.turbo.elbo import POINT, TEMPERATURE
from bayesfed.trees import Shapes, Tree


def sent(initial: Tree, spreads: Collection[str]) -> Shapes:
    """Return what clients send of a state: means, points, sds of these names, and scores."""
    named = tuple(name for name in initial if name.startswith(("mean/", f"{POINT}/")))
    scores = {SCORES: (len(FACTORS),)} if TEMPERATURE in initial else {}
    return {name: tuple(initial[name].shape) for name in (*named, *spreads)} | {NLL: ()} | scores


@dataclass(frozen=True)
class Gathered:
    """`Active` whose updates stay gathered."""

    active: Active

    def restrict(self, tree: Tree) -> Tree:
        """Return the active entries."""
        return self.active.restrict(tree)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Check, weigh and gather."""
        return Update(
            gather_active(self.active.lift(payload, weight, kind).total, self.active.masks),
            weight,
            kind,
        )


@dataclass(frozen=True)
class Scattered:
    """`TurboStep` on sums of active entries, to which a link may have added noise."""

    server: TurboStep

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Return what the inner server publishes."""
        return self.server.publish(state, round, version)

    def step(self, state: Tree, reducer: Reducer, round: int) -> tuple[Tree, Info]:
        """Scatter the sum to full shapes, then step.

        Raises
        ------
        UpdateError
            If a mean standard deviation is not above 0.
        """
        heard, masks = summed(reducer, "moments"), self.server.supports(state)
        mean = heard.mean() if heard.weight else {}
        for name in self.server.spreads if mean else ():
            if mean[name].numel() and not (lowest := float(mean[name].min())) > 0:
                raise UpdateError(
                    f"d_turbo_vbi, round {round}, leaf {name!r}",
                    "standard deviations above 0",
                    lowest,
                    "a higher SNR" + ", or spread='shared'" * (mean[name].ndim > 0),
                )
        total = {name: _back(name, leaf, masks) for name, leaf in heard.total.items()}
        return self.server.step(state, Sum(Update(total, heard.weight, heard.kind)), round)


def _back(name: str, leaf: Tensor, masks: Tree) -> Tensor:
    mask = masks.get(name.partition("/")[2])
    return leaf if mask is None or not leaf.ndim else scatter_active(leaf, mask)
