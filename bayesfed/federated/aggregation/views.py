"""Views: `Whole` models, `Active` supports, leading `Slice` parts, and `Kept`, in which zeros have
no weight.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from torch import Tensor

from bayesfed.compress import gather_active, scatter_active
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.federated.core import Kind, Update, View
from bayesfed.trees import Shapes, Tree, check


@dataclass(frozen=True)
class Whole:
    """Every client gets every leaf.

    Parameters
    ----------
    expected
        Names and shapes of the payload.
    """

    expected: Shapes

    @property
    def leaves(self) -> tuple[Shapes, bool]:
        """The leaves of an update; clients cover all their entries."""
        return self.expected, False

    def restrict(self, tree: Tree) -> Tree:
        """Return the tree as it is."""
        return tree

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Return the payload times its weight."""
        check(payload, self.expected, where="payload")
        return Update(_scaled(payload, weight), weight, kind)


@dataclass(frozen=True)
class Active:
    """Clients get only the active entries of masked leaves.

    Parameters
    ----------
    masks
        ``(M, N)`` booleans by site. Of a leaf ``KIND/SITE`` with the shape of the mask, only the
        active entries are sent.
    expected
        Names and full shapes of the payload.
    positive
        Names of leaves that must be above zero (standard deviations).
    """

    masks: Mapping[str, Tensor]
    expected: Shapes
    positive: Collection[str] = ()

    def restrict(self, tree: Tree) -> Tree:
        """Gather the active entries. The masks themselves are leaves of the tree."""
        return gather_active(tree, self.masks)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Scatter the active entries into zeros, and weight the result."""
        sent = {
            name: (int(mask.sum()),) if (mask := self._mask(name)) is not None else tuple(shape)
            for name, shape in self.expected.items()
        }
        check(payload, sent, where="payload")
        for name in self.positive:
            if payload[name].numel() and not float(payload[name].min()) > 0:
                raise UpdateError(
                    f"payload, leaf {name!r}",
                    "values above 0",
                    float(payload[name].min()),
                    "a standard deviation",
                )
        dense = {
            name: leaf if (mask := self._mask(name)) is None else scatter_active(leaf, mask)
            for name, leaf in payload.items()
        }
        return Update(_scaled(dense, weight), weight, kind)

    def _mask(self, name: str) -> Tensor | None:
        mask = self.masks.get(name.partition("/")[2])
        return mask if mask is not None and mask.shape == tuple(self.expected[name]) else None


@dataclass(frozen=True)
class Slice:
    """Clients get the first entries of every axis of every leaf: a network with fewer channels
    (HeteroFL, Diao et al., 2021).

    Parameters
    ----------
    full, part
        Names and shapes of the whole model and of the client's model. Both have the same names, and
        no axis of `part` is longer.

    Raises
    ------
    ArgumentError
        If names differ, or an axis of `part` is longer.
    """

    full: Shapes
    part: Shapes

    def __post_init__(self) -> None:
        longer = [
            name
            for name, shape in self.full.items()
            if len(self.part.get(name, ())) != len(shape)
            or any(a > b for a, b in zip(self.part[name], shape, strict=True))
        ]
        if longer or self.full.keys() != self.part.keys():
            raise ArgumentError(
                "Slice",
                "the leaves of the whole model, no axis longer",
                sorted(longer or self.full.keys() ^ self.part.keys()),
                "a narrower network",
            )

    @property
    def leaves(self) -> tuple[Shapes, bool]:
        """The leaves of an update; clients cover leading entries only."""
        return self.full, True

    def restrict(self, tree: Tree) -> Tree:
        """Return the leading entries of every leaf."""
        return {name: leaf[self._cut(name)].contiguous() for name, leaf in tree.items()}

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Return a full-sized update that is zero, with weight zero, outside of the client's
        entries.
        """
        check(payload, self.part, where="payload")
        total, covered = {}, {}
        for name, leaf in _scaled(payload, weight).items():
            total[name] = leaf.new_zeros(self.full[name])
            covered[name] = leaf.new_zeros(self.full[name])
            total[name][self._cut(name)] = leaf
            covered[name][self._cut(name)] = weight
        return Update(total, covered, kind)

    def _cut(self, name: str) -> tuple[slice, ...]:
        return tuple(slice(0, length) for length in self.part[name])


def _scaled(tree: Tree, weight: float) -> Tree:
    return {name: weight * leaf for name, leaf in tree.items()}


@dataclass(frozen=True)
class Kept:
    """Another view, in which the zeros of a sparse change have weight zero: a client counts only
    for entries that it sent (AnycostFL (5)).

    Parameters
    ----------
    view
        A view whose updates have a weight for every entry, such as `Slice`.
    """

    view: View

    def restrict(self, tree: Tree) -> Tree:
        """Return what the inner view returns."""
        return self.view.restrict(tree)

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Lift as the inner view does, then set the weight of zeros to zero.

        Raises
        ------
        UpdateError
            As the inner view, or if its updates have one weight for all entries.
        """
        update = self.view.lift(payload, weight, kind)
        if not update.by_entry:
            raise UpdateError(
                "Kept", "a view that covers entries itself", type(self.view).__name__, "Slice"
            )
        return Update(
            update.total,
            {name: update.weight_of(name) * (leaf != 0) for name, leaf in update.total.items()},
            update.kind,
        )
