"""Sketches of low-rank adapters: the view `Slices`, through which a client gets some slices, and
`Sketched`, the client's side of FSLoRA.

The server knows which slices it drew, so a payload holds only columns of B and rows of A. The
client of FSLoRA as printed descends on a network that lacks the slices it did not draw. An anchored
one computes with these too, as a branch that it does not train, and so descends on the server's own
network along a random block of coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from bayesfed.algorithms.lora.rewriting import Rewritten, put_back, put_rewritten
from bayesfed.algorithms.lora.slices import (
    AXES,
    Sliced,
    coarse,
    cut_slices,
    fine,
    others,
    put_slices,
    sliced,
)
from bayesfed.data import Dataset
from bayesfed.federated import Fit, Kind, LocalOptions, Update, Whole
from bayesfed.federated.core import MODEL, Around, of, owned
from bayesfed.geometry.thin import product_norm
from bayesfed.keys import Key
from bayesfed.models import Drawn, adapters
from bayesfed.models.adapters.lora import based
from bayesfed.models.adapters.lora_layers import Make
from bayesfed.trees import Shapes, Tree, check, leaf_of, placed, shapes

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
    had a slice: FSLoRA (5), HeteroLoRA. Payloads for `Stack` keep their rank instead.

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
    by_norm
        Whether the weight of a client is multiplied by the Frobenius norm of all products in its
        payload (HeteroLoRA).
    stacked
        Whether a payload keeps its rank. B and the other leaves are weighted, and A stays as it is,
        since the product B A takes one weight.
    bases
        Adapters in the coordinates of their product: slices are cut of these, and updates put back
        into the tree's own.
    """

    drawn: Mapping[str, Drawn]
    full: Shapes
    multiplied: bool = False
    broadcast: bool = False
    named: bool = False
    rest: Mapping[str, Tensor] | None = None
    by_coverage: bool = False
    anchored: bool = False
    by_norm: bool = False
    stacked: bool = False
    bases: Mapping[str, Rewritten] = field(default_factory=dict)

    @property
    def tells(self) -> bool:
        """Whether a message has more than the network's leaves, which are then ``model/NAME``."""
        partly = self.expected != {name: tuple(shape) for name, shape in self.full.items()}
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
        whole = {
            name: torch.empty(tuple(shape), device="meta") for name, shape in self.full.items()
        }
        return shapes(cut_slices(whole, self.indices))

    def restrict(self, tree: Tree) -> Tree:
        """Cut the slices, or name them, and add the multipliers."""
        tree = put_rewritten(tree, self.bases)
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
        if self.by_norm:
            factors = [[payload[leaf_of(name, leaf)] for leaf in AXES] for name in self.drawn]
            squares = (float(product_norm(b, a.mT)) ** 2 for b, a in factors)
            weight *= math.sqrt(sum(squares))
        if self.stacked:
            rows = {leaf_of(name, "lora_a") for name in self.drawn}
            weighed = {
                name: leaf if name in rows else weight * leaf for name, leaf in payload.items()
            }
            return Update(weighed, weight, kind)
        whole = self.rest or {
            name: payload[name].new_zeros(tuple(self.full[name])) for name in self._sliced
        }
        placed = put_back(put_slices(payload, self.indices, whole), self.bases)
        update = Whole(self.full).lift(placed, weight, kind)
        if not self.by_coverage:
            return update
        weights = {name: torch.full_like(leaf, weight) for name, leaf in payload.items()}
        nothing = {name: torch.zeros_like(update.total[name]) for name in self._sliced}
        return replace(update, weight=put_slices(weights, self.indices, nothing))


def leading(layers: Iterable[str], k: int) -> dict[str, Drawn]:
    """Return the first k slices of every layer, in place of drawn ones."""
    return dict.fromkeys(layers, Drawn(torch.arange(k), torch.ones(k)))


def read_sketch(message: Tree) -> tuple[Tree, dict[str, Tensor]]:
    """Return the network's leaves of a message, and the indices by layer; none where all of a
    message is meant.
    """
    indices = {name: leaf.long() for name, leaf in owned(message, SKETCH).items()}
    return owned(message, MODEL), indices


@dataclass(frozen=True)
class Sketched(Around):
    """Let `local` train the slices of a message that has more than these (`Slices.tells`). They are
    cut from whole adapters where the message has indices, and multiplied where it has multipliers.

    The other slices are codes (`Slices.anchored`), or those of whole adapters that the message does
    not name. They are a thin branch beside the base for one fit, made anew for each use: no merged
    weight is formed, and one factor of one layer is in memory at a time.

    Parameters
    ----------
    local
        The local step that trains the network.
    net
        The network that `local` trains, with adapters of k slices.
    anchored
        Whether the network computes with the other slices too. The network's scale is then that
        of the whole.
    frozen
        Whole leaves of adapters that nobody trains and that never travel, by name. Messages then
        name the slices.
    """

    net: nn.Module
    anchored: bool = False
    frozen: Mapping[str, Tensor] = field(default_factory=dict)

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Fit the slices."""
        sent, indices = read_sketch(message)
        codes, ranges = owned(message, CODES), owned(message, RANGES)
        trained = sent if codes else cut_slices(sent, indices)
        own = dict(self.net.named_parameters()) | cut_slices(self.frozen, indices)
        slices: dict[str, Make] = {
            name: partial(fine, codes[name], ranges[name], sent[name].shape[1 - axis], axis)
            for name, (_, axis) in sliced(codes, adapters(self.net)).items()
        }
        if self.anchored:
            # Leaves with all slices: frozen ones, and those of a message that names slices and has
            # no codes for the others.
            whole = dict(self.frozen) | ({} if codes else sent)
            for name, (layer, axis) in sliced(whole, indices).items():
                leaf = whole[name]
                rest = others(indices[layer], leaf.shape[axis]).to(leaf.device)
                slices[name] = partial(leaf.index_select, axis, rest)
        with placed(self.net, own), _beside(self.net, owned(message, SCALE), slices):
            return self.local.fit(trained, memory, data, key, options)


@contextmanager
def _beside(net: nn.Module, multipliers: Tree, slices: Mapping[str, Make]) -> Iterator[None]:
    """Inside the block multiply the scale of some layers, by one number for each slice, and let
    layers compute with slices that are not trained.
    """
    layers = adapters(net)
    scales = {name: layer.scale for name, layer in layers.items()}
    try:
        for name, layer in layers.items():
            if name in multipliers:
                layer.scale = multipliers[name] * layer.scale
            if leaf_of(name, "lora_a") in slices:
                b, a = (slices[leaf_of(name, leaf)] for leaf in AXES)
                layer.untrained = b, a
        yield
    finally:
        for name, layer in layers.items():
            layer.scale, layer.untrained = scales[name], None


def merged_slices(net: nn.Module, slices: Mapping[str, Tensor], layers: Collection[str]) -> Tree:
    """Return base weights plus some slices, ``W + scale B' A'``, by their names in the network.

    Parameters
    ----------
    net
        A network with adapters at the scale of the whole.
    slices
        B and A of the slices to merge. Layers that have none are left out.
    layers
        Names of the layers.
    """
    products = {
        name: layer.product(*(slices[leaf_of(name, leaf)] for leaf in AXES))
        for name, layer in adapters(net).items()
        if name in layers and leaf_of(name, "lora_a") in slices
    }
    return based(net, products)
