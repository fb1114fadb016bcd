"""Views: `Whole` models and `Active` supports."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.compress.support import gather_active, scatter_active
from bayesfed.errors import UpdateError, complain
from bayesfed.federated.update import Kind, Update, Weight
from bayesfed.trees import Shapes, Tree, check


@dataclass(frozen=True)
class Whole:
    """Every client gets every leaf.

    Parameters
    ----------
    expected
        Names and shapes of what it sends back.
    """

    expected: Shapes

    def restrict(self, tree: Tree) -> Tree:
        """Return the tree."""
        return tree

    def lift(self, payload: Tree, weight: Weight, kind: Kind) -> Update:
        """Weight the payload."""
        check(payload, self.expected, where="payload")
        return Update(_scaled(payload, weight), weight, kind)


@dataclass(frozen=True)
class Active:
    """Clients get the active entries of masked leaves and nothing of the others.

    Parameters
    ----------
    masks
        By site: ``(M, N)`` booleans. A leaf ``SITE.*`` of a mask's shape travels as its active entries.
    expected
        Names and full shapes of what a client sends back.
    positive
        Names of leaves that must be above zero: standard deviations.
    """

    masks: Mapping[str, Tensor]
    expected: Shapes
    positive: Collection[str] = ()

    def restrict(self, tree: Tree) -> Tree:
        """Gather active entries; the masks themselves are in the tree."""
        return gather_active(tree, self.masks)

    def lift(self, payload: Tree, weight: Weight, kind: Kind) -> Update:
        """Scatter active entries back into zeros, then weight."""
        sent = {name: (int(mask.sum()),) if (mask := self._mask(name)) is not None else tuple(shape) for name, shape in self.expected.items()}
        check(payload, sent, where="payload")
        for name in self.positive:
            if payload[name].numel() and not float(payload[name].min()) > 0:
                lowest = float(payload[name].min())
                raise UpdateError(complain(f"payload, leaf {name!r}", expected="values above 0", actual=lowest, hint="a standard deviation"))
        dense = {name: leaf if (mask := self._mask(name)) is None else scatter_active(leaf, mask) for name, leaf in payload.items()}
        return Update(_scaled(dense, weight), weight, kind)

    def _mask(self, name: str) -> Tensor | None:
        mask = self.masks.get(name.rpartition(".")[0])
        return mask if mask is not None and tuple(mask.shape) == tuple(self.expected[name]) else None


def _scaled(tree: Tree, weight: Weight) -> Tree:
    if isinstance(weight, dict):
        raise UpdateError(complain("lift", expected="a number as weight", actual="a tree", hint="a view with coverage"))
    return {name: weight * leaf if leaf.is_floating_point() else weight * leaf.to(torch.get_default_dtype()) for name, leaf in tree.items()}
