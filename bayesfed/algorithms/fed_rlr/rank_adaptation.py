"""Rank adaptation: between rounds the server drops directions of little energy and adds directions
where all are used.

Payloads follow, since a client's assignment is derived from the state. A client whose own model has
other ranks begins anew at the broadcast model.

New directions are random and lie outside the present spaces. Their block of the core is zero, so
the matrix stays the same. They receive gradients from the first step, without a small initial core:
the projection reads ``G V`` and ``G^T U`` of the new columns too, and the core's new block becomes
``-eta U^T G V``. The point is then at the edge of its manifold, where the curvature is infinite:
`metric_retraction` is defined there, and `orthographic_retraction` is not.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bayesfed.errors.checks import COUNT, checked_class, number, whole
from bayesfed.geometry import FixedRank, grow, truncate
from bayesfed.geometry.thin import gaussian
from bayesfed.keys import Key
from bayesfed.models import points, with_points
from bayesfed.trees import Tree


@checked_class(every=COUNT, loss=number("[0, 1)", "0.01"), extra=whole(0, "1"), largest=COUNT)
@dataclass(frozen=True)
class Adapt:
    """Every few rounds, truncate each layer by its energy, and add directions to a layer that needs
    all it has.

    Parameters
    ----------
    every
        Number of rounds between changes of ranks.
    loss
        Share of a layer's squared Frobenius norm that a truncation may lose, in [0, 1); 0 truncates
        nothing.
    extra
        Number of directions that a layer gains if it lost none, within its shape and `largest`; 0
        adds none.
    largest
        Largest rank of a layer. Default: min(M, N).

    Raises
    ------
    ArgumentError
        If an argument is outside its range.

    References
    ----------
    Truncation as `energy_rank`; growth as `grow`, its directions drawn from a key of the layer's
    name and the round.
    """

    every: int = 5
    loss: float = 0.01
    extra: int = 1
    largest: int | None = None

    def step(self, tree: Tree, round: int, layers: Collection[str] | None = None) -> Tree:
        """Return the tree at the ranks of the next round, which is the tree itself between
        changes.
        """
        if (round + 1) % self.every:
            return tree
        return with_points(
            tree,
            {
                name: self._changed(point, Key(0, "adapt", round, name))
                for name, point in points(tree, layers).items()
            },
        )

    def _changed(self, point: FixedRank, key: Key) -> FixedRank:
        smaller = truncate(point, self.loss) if self.loss else point
        if smaller.rank < point.rank:
            return smaller
        extra = min(self.extra, min(*point.shape, self.largest or point.shape[0]) - point.rank)
        if extra < 1:
            return point
        left, right = (
            gaussian((size, extra), key.child(side), point.u)
            for side, size in zip(("left", "right"), point.shape, strict=True)
        )
        return grow(point, left, right)
