"""`Anchored`: a client trains some slices of the adapters as they are, over frozen weights that
hold all other slices.

The client of FSLoRA as printed descends on a network that lacks the slices it did not draw. An
anchored one merges these into the base for the length of a fit, and so descends on the server's own
network along a random block of coordinates.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from bayesfed.algorithms.lora.sketch_view import CODES, RANGES, read_sketch
from bayesfed.algorithms.lora.slices import AXES, cut_slices, fine, others
from bayesfed.data import Dataset
from bayesfed.federated import Fit, LocalOptions
from bayesfed.federated.core import Around, owned
from bayesfed.keys import Key
from bayesfed.models import adapters
from bayesfed.trees import Tree, leaf_of, placed


@dataclass(frozen=True)
class Anchored(Around):
    """Let `local` train the slices of a message, over base weights with all other slices merged
    into them.

    The other slices are codes (`Slices.anchored`), or those of whole adapters that the message does
    not name. The merged weights exist for one fit; the network's own are never written to.

    Parameters
    ----------
    local
        The local step that trains the network.
    net
        The network that `local` trains, with adapters of k slices at the scale of the whole.
    frozen
        Whole leaves of adapters that nobody trains and that never travel, by name. Messages then
        name the slices.
    told
        Whether messages have more than slices (`Slices.tells`).
    """

    net: nn.Module
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    told: bool = True

    def fit(
        self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions
    ) -> Fit:
        """Merge what is not trained, and fit the slices."""
        sent, indices = read_sketch(message) if self.told else (dict(message), {})
        coded = _decoded(sent, message) if self.told else {}
        # Leaves with all slices: frozen ones, and those of a message that names slices and has no
        # codes for the others.
        whole = dict(self.frozen) | ({} if coded else sent)
        rest = {
            name: others(chosen, len(whole[leaf_of(name, "lora_a")]))
            for name, chosen in indices.items()
        }
        weights = merged_slices(
            self.net,
            coded | (cut_slices(whole, rest) if indices else {}),
            rest or adapters(self.net),
        )
        sent = sent if coded else cut_slices(sent, indices)
        own = dict(self.net.named_parameters()) | cut_slices(self.frozen, indices)
        with placed(self.net, own | weights):
            return self.local.fit(sent, memory, data, key, options)


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
    weights = {}
    for name, layer in adapters(net).items():
        if name in layers and leaf_of(name, "lora_a") in slices:
            base, (b, a) = (
                layer.base.weight.detach(),
                (slices[leaf_of(name, leaf)] for leaf in ("lora_b", "lora_a")),
            )
            weights[leaf_of(name, "base.weight")] = base + ((b * layer.scale) @ a).to(base)
    return weights
