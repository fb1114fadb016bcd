"""Sketches of low-rank adapters: the view `Slices`, through which a client gets some slices, and
`Sketched`, the client's side of FSLoRA.

The server knows which slices it drew, so a payload holds only columns of B and rows of A.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from bayesfed.algorithms.lora.slices import Sliced, coarse, cut_slices, others, put_slices, sliced
from bayesfed.data import Dataset
from bayesfed.errors import ArgumentError
from bayesfed.federated import Fit, Kind, LocalOptions, Update, Whole
from bayesfed.federated.core import MODEL, Around, of, owned
from bayesfed.keys import Key
from bayesfed.models import Drawn
from bayesfed.trees import Shapes, Tree, check, leaf_of, placed

# Owners of leaves on the down-link, by layer: multipliers of slices, and indices for clients that
# get whole adapters.
SCALE, SKETCH = "scale", "sketch"
# Owners of what stands for the slices that a client does not train, by the names of the leaves.
CODES, RANGES = "codes", "ranges"


@dataclass(frozen=True)
class Slices:
    """A view of some slices of every adapter and of all other leaves. A payload is put back among
    zeros.

    A sum of such updates is divided by the weights of all clients that took part, not of those that
    had a slice: FSLoRA (5), HeteroLoRA.

    Parameters
    ----------
    drawn
        The drawn slices of each layer, by its name.
    full
        Names and shapes of the server's leaves.
    multiplied
        Whether multipliers travel down, one number a slice. False where all are equal and the
        client's network has them.
    broadcast
        Send whole adapters with the indices of the slices to use: the paper's down-link, in which
        every client gets the same.
    named
        Send the indices with the slices, for clients that keep a memory or a posterior of every
        slice.
    anchored
        Send the other slices as well, as the codes of `coarse`.
    by_coverage
        Whether slices weigh nothing where a client lacks them, so that a sum is divided by the
        weights of those that had a slice.
    rest
        Values that stand for the slices that a client did not get. None stands for zeros, which
        suits changes; the server's own values suit averages of values.

    Raises
    ------
    ArgumentError
        If a layer does not have the drawn slices.
    """

    drawn: Mapping[str, Drawn]
    full: Shapes
    multiplied: bool = False
    broadcast: bool = False
    named: bool = False
    rest: Mapping[str, Tensor] | None = None
    by_coverage: bool = False
    anchored: bool = False

    def __post_init__(self) -> None:
        ranks = {layer: self.full[name][axis] for name, (layer, axis) in self._sliced.items()}
        for name, draw in self.drawn.items():
            indices, rank = draw.indices, ranks.get(name, 0)
            if (
                not len(indices)
                or int(indices.min()) < 0
                or int(indices.max()) >= rank
                or len(indices.unique()) != len(indices)
            ):
                actual = indices.tolist()
                raise ArgumentError(
                    f"Slices, layer {name!r}", f"distinct slices of {rank}", actual, "random_sketch"
                )

    @property
    def tells(self) -> bool:
        """Whether a message has more than the network's leaves, which are then ``model/NAME``."""
        partly = any(
            len(self.drawn[layer].indices) < self.full[name][axis]
            for name, (layer, axis) in self._sliced.items()
        )
        return self.broadcast or self.named or self.multiplied or (self.anchored and partly)

    @property
    def indices(self) -> dict[str, Tensor]:
        """Indices of the slices of each layer."""
        return {name: draw.indices for name, draw in self.drawn.items()}

    @property
    def _sliced(self) -> dict[str, Sliced]:
        return sliced(self.full, self.drawn)

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a client sends back."""
        shapes = {name: tuple(shape) for name, shape in self.full.items()}
        for name, (layer, axis) in self._sliced.items():
            shapes[name] = (
                *shapes[name][:axis],
                len(self.drawn[layer].indices),
                *shapes[name][axis + 1 :],
            )
        return shapes

    def restrict(self, tree: Tree) -> Tree:
        """Cut the slices, or name them, and add the multipliers."""
        sent = dict(tree) if self.broadcast else cut_slices(tree, self.indices)
        if not self.tells:
            return sent
        sent = of(MODEL, sent)
        if self.anchored:
            for name, (layer, axis) in self._sliced.items():
                rest = others(self.indices[layer], self.full[name][axis])
                if len(rest):
                    sent[f"{CODES}/{name}"], sent[f"{RANGES}/{name}"] = coarse(
                        tree[name].index_select(axis, rest.to(tree[name].device)), axis
                    )
        for name, draw in self.drawn.items():
            if self.broadcast or self.named:
                sent[f"{SKETCH}/{name}"] = draw.indices.to(
                    torch.uint8 if int(draw.indices.max()) < 256 else torch.int32
                )
            if self.multiplied:
                sent[f"{SCALE}/{name}"] = draw.multipliers.float()
        return sent

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Put the slices back in place, then weigh."""
        check(payload, self.expected, where="payload")
        whole = self.rest or {
            name: payload[name].new_zeros(tuple(self.full[name])) for name in self._sliced
        }
        update = Whole(self.full).lift(put_slices(payload, self.indices, whole), weight, kind)
        if not self.by_coverage:
            return update
        weights = {name: torch.full_like(leaf, weight) for name, leaf in payload.items()}
        nothing = {name: torch.zeros_like(update.total[name]) for name in self._sliced}
        return replace(update, weight=put_slices(weights, self.indices, nothing))


@dataclass(frozen=True)
class Sketched(Around):
    """Let `local` train the slices in a message, cut from whole adapters where the message has
    indices, and multiplied where it has multipliers.

    Parameters
    ----------
    local
        The local step that trains the network.
    net
        The network that `local` trains, with adapters of k slices. Their scale is a buffer where
        multipliers travel (`resized` by slice).
    told
        Whether messages have more than slices (`Slices.tells`).
    """

    net: nn.Module
    told: bool = True

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit the slices."""
        if not self.told:
            return self.local.fit(message, memory, data, key, options)
        buffers = dict(self.net.named_buffers())
        multipliers = {
            (scale := leaf_of(name, "scale")): leaf * buffers[scale].to(leaf)
            for name, leaf in owned(message, SCALE).items()
        }
        model, indices = read_sketch(message)
        with placed(self.net, buffers | multipliers, "buffers"):
            return self.local.fit(cut_slices(model, indices), memory, data, key, options)


def read_sketch(message: Tree) -> tuple[Tree, dict[str, Tensor]]:
    """Return the network's leaves of a message, and the indices by layer; none where all of a
    message is meant.
    """
    indices = {name: leaf.long() for name, leaf in owned(message, SKETCH).items()}
    return owned(message, MODEL), indices
