"""`Sketched`: a client trains some slices of the adapters, alone or over frozen weights that hold
all other slices.

The client of FSLoRA as printed descends on a network that lacks the slices it did not draw. An
anchored one merges these into the base for the length of a fit, and so descends on the server's own
network along a random block of coordinates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import Tensor, nn

from bayesfed.algorithms.lora.sketch_view import CODES, RANGES, SCALE, read_sketch
from bayesfed.algorithms.lora.slices import AXES, cut_slices, fine, others
from bayesfed.data import Dataset
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around, owned
from bayesfed.keys import Key
from bayesfed.models import adapters
from bayesfed.models.adapters.lora import based
from bayesfed.trees import Tree, leaf_of, placed


@dataclass(frozen=True)
class Sketched(Around):
    """Let `local` train the slices of a message that has more than these (`Slices.tells`). They are
    cut from whole adapters where the message has indices, and multiplied where it has multipliers.

    The other slices are codes (`Slices.anchored`), or those of whole adapters that the message does
    not name. Merged weights exist for one fit; the network's own are never written to.

    Parameters
    ----------
    local
        The local step that trains the network.
    net
        The network that `local` trains, with adapters of k slices.
    anchored
        Whether the other slices are merged into the base weights. The network's scale is then that
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
        coded = _decoded(sent, message)
        own = dict(self.net.named_parameters()) | cut_slices(self.frozen, indices)
        if self.anchored:
            # Leaves with all slices: frozen ones, and those of a message that names slices and has
            # no codes for the others.
            whole = dict(self.frozen) | ({} if coded else sent)
            rest = {
                name: others(chosen, len(whole[leaf_of(name, "lora_a")]))
                for name, chosen in indices.items()
            }
            slices = coded | (cut_slices(whole, rest) if indices else {})
            own |= merged_slices(self.net, slices, rest or adapters(self.net))
        trained = sent if coded else cut_slices(sent, indices)
        with placed(self.net, own), _scaled(self.net, owned(message, SCALE)):
            return self.local.fit(trained, memory, data, key, options)


@contextmanager
def _scaled(net: nn.Module, multipliers: Mapping[str, Tensor]) -> Iterator[None]:
    """Multiply the scale of some layers inside the block, by one number for each slice."""
    layers = adapters(net)
    before = {name: layers[name].scale for name in multipliers}
    try:
        for name, leaf in multipliers.items():
            layers[name].scale = leaf * before[name]
        yield
    finally:
        for name, scale in before.items():
            layers[name].scale = scale


def _decoded(sent: Tree, message: Mapping[str, Tensor]) -> Tree:
    """Return the slices of which a message has codes, by the names of their leaves."""
    ranges, found = owned(message, RANGES), Tree()
    for name, codes in owned(message, CODES).items():
        axis = AXES[name.rpartition(".")[2]]
        found[name] = fine(codes, ranges[name], sent[name].shape[1 - axis], axis)
    return found


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
