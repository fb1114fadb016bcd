"""Clients that hold some slices of low-rank adapters: the view `Slices`, and `Sketched`, the client's side of FSLoRA's sketches.

The server knows what it drew, so a payload says nothing of it: columns of B and rows of A are all that travels up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.algorithms.lora.slices import Sliced, cut_slices, put_slices, sliced
from bayesfed.data.dataset import Dataset
from bayesfed.errors import ArgumentError, complain
from bayesfed.federated.aggregation.views import Whole
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit
from bayesfed.federated.core.update import Kind, Update
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.models.adapters.sketching import Drawn
from bayesfed.trees import Shapes, Tree, check, leaf_of, placed_buffers

# Ends the names of leaves of the down-link: multipliers by slice, and indices for clients that are sent whole adapters.
SCALE, SKETCH = "scale", "lora_sketch"


@dataclass(frozen=True)
class Slices:
    """Clients get slices of every adapter, and all of the other leaves; what they send back is put among zeros.

    A sum of such updates is divided by the weights of all clients that took part, not of those that had a slice: FSLoRA (5), HeteroLoRA.

    Parameters
    ----------
    drawn
        By layer.
    full
        Names and shapes of the server's leaves.
    multiplied
        Whether multipliers travel down, a number a slice; False where all are alike and the client's network has them.
    broadcast
        Send adapters whole, with the indices to be used: the paper's down-link, in which every client hears the same.
    named
        Send the indices with the slices, for clients that keep or believe something of every slice.
    rest
        What a client answers of slices that it did not get: nothing, so zeros, as changes want; or values of the server's, which stay where averages
        of values are taken.

    Raises
    ------
    ArgumentError
        If a layer has no such slices.
    """

    drawn: Mapping[str, Drawn]
    full: Shapes
    multiplied: bool = False
    broadcast: bool = False
    named: bool = False
    rest: Mapping[str, Tensor] | None = None

    def __post_init__(self) -> None:
        ranks = {layer: self.full[name][axis] for name, (layer, axis) in self._sliced.items()}
        for name, draw in self.drawn.items():
            indices, rank = draw.indices, ranks.get(name, 0)
            if not len(indices) or int(indices.min()) < 0 or int(indices.max()) >= rank or len(indices.unique()) != len(indices):
                actual = indices.tolist()
                raise ArgumentError(complain(f"Slices, layer {name!r}", expected=f"distinct slices of {rank}", actual=actual, hint="random_sketch"))

    @property
    def indices(self) -> dict[str, Tensor]:
        """Of the slices, by layer."""
        return {name: draw.indices for name, draw in self.drawn.items()}

    @property
    def _sliced(self) -> dict[str, Sliced]:
        return sliced(self.full, self.drawn)

    @property
    def expected(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of what a client sends back."""
        shapes = {name: tuple(shape) for name, shape in self.full.items()}
        for name, (layer, axis) in self._sliced.items():
            shapes[name] = (*shapes[name][:axis], len(self.drawn[layer].indices), *shapes[name][axis + 1 :])
        return shapes

    def restrict(self, tree: Tree) -> Tree:
        """Cut slices, or name them; and add the multipliers."""
        found = dict(tree) if self.broadcast else cut_slices(tree, self.indices)
        for name, draw in self.drawn.items():
            if self.broadcast or self.named:
                found[leaf_of(name, SKETCH)] = draw.indices.to(torch.uint8 if int(draw.indices.max()) < 256 else torch.int32)
            if self.multiplied:
                found[leaf_of(name, SCALE)] = draw.multipliers.float()
        return found

    def lift(self, payload: Tree, weight: float, kind: Kind) -> Update:
        """Put slices back where they belong, then weigh."""
        check(payload, self.expected, where="payload")
        whole = self.rest or {name: payload[name].new_zeros(tuple(self.full[name])) for name in self._sliced}
        return Whole(self.full).lift(put_slices(payload, self.indices, whole), weight, kind)


@dataclass(frozen=True)
class Sketched(Around):
    """Let `local` train the slices of a message: cut from whole adapters where it has indices, with the multipliers where it has any.

    Parameters
    ----------
    local
        What trains the network.
    net
        The very network that `local` trains: adapters of k slices, their scale a buffer where multipliers come (`resized` by slice).
    """

    net: nn.Module

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Fit the slices."""
        buffers = dict(self.net.named_buffers())
        multipliers = {name: leaf * buffers[name].to(leaf) for name, leaf in message.items() if name in buffers and _is(name, SCALE)}
        model, indices = read_sketch({name: leaf for name, leaf in message.items() if name not in multipliers})
        with placed_buffers(self.net, buffers | multipliers):
            return self.local.fit(cut_slices(model, indices), memory, data, key, options)


def read_sketch(message: Tree) -> tuple[Tree, dict[str, Tensor]]:
    """Return a message without its indices, and these by layer; none where all of a message is meant."""
    indices = {name.rpartition(".")[0]: leaf.long() for name, leaf in message.items() if _is(name, SKETCH)}
    return {name: leaf for name, leaf in message.items() if not _is(name, SKETCH)}, indices


def _is(name: str, leaf: str) -> bool:
    return name.rpartition(".")[2] == leaf
