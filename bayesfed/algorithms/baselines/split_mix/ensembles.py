"""Several networks in one state: the view `Nets` gives a client some of them, `EachNet` trains them
one by one, `Ensemble` averages their outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.data import Dataset
from bayesfed.federated import Fit, Kind, LocalOptions, Update, Whole
from bayesfed.federated.core import Around
from bayesfed.keys import Key
from bayesfed.models.modules import outputs
from bayesfed.trees import Shapes, Tree


def joined(trees: Mapping[int, Tree]) -> Tree:
    """Join trees into one, with leaf NAME of network i under ``i/NAME``."""
    return {
        f"{number}/{name}": leaf for number, tree in trees.items() for name, leaf in tree.items()
    }


def parted(tree: Tree) -> dict[int, Tree]:
    """Undo `joined`."""
    trees: dict[int, Tree] = {}
    for name, leaf in tree.items():
        number, _, rest = name.partition("/")
        trees.setdefault(int(number), {})[rest] = leaf
    return trees


@dataclass(frozen=True)
class Nets:
    """A view of some whole networks.

    Parameters
    ----------
    chosen
        Numbers of the networks.
    expected
        Names and shapes of all networks' leaves, `joined`.
    """

    chosen: Collection[int]
    expected: Shapes

    def restrict(self, tree: Tree) -> Tree:
        """Return the leaves of the chosen networks."""
        return {name: leaf for name, leaf in tree.items() if self._has(name)}

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Put the leaves among zeros. The weight of every entry says which networks they
        belong to.
        """
        update = Whole(
            {name: shape for name, shape in self.expected.items() if self._has(name)}
        ).lift(payload, weight, kind)
        like = next(iter(update.total.values()))
        total = {
            name: update.total[name] if self._has(name) else like.new_zeros(shape)
            for name, shape in self.expected.items()
        }
        return Update(
            total,
            {name: torch.full_like(leaf, weight * self._has(name)) for name, leaf in total.items()},
            kind,
        )

    def _has(self, name: str) -> bool:
        return int(name.partition("/")[0]) in self.chosen


@dataclass(frozen=True)
class EachNet(Around):
    """Train every received network by itself, on the same rows."""

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit the networks one after the other; figures are means over them."""
        kept = parted(memory)
        fits = {
            number: self.local.fit(tree, kept.get(number, {}), data, key.child(number), options)
            for number, tree in parted(message).items()
        }
        names = next(iter(fits.values())).info if fits else {}
        info = {name: sum(fit.info[name] for fit in fits.values()) / len(fits) for name in names}
        return Fit(
            joined({n: fit.payload for n, fit in fits.items()}),
            joined({n: fit.memory for n, fit in fits.items()}),
            info,
        )


@dataclass(frozen=True)
class Ensemble:
    """A `Predictor`: the mean of the outputs of the first networks of a joined tree, in evaluation
    mode.
    """

    net: nn.Module
    parameters: Tree

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return mean outputs, without gradients."""
        trees = parted(self.parameters).values()
        return torch.stack([outputs(self.net, tree, inputs) for tree in trees]).mean(0)
