"""Anchored sketches: a client trains some slices of the adapters as they are, over frozen weights that hold all other slices.

FSLoRA's client descends on a network that lacks the slices it did not draw. An anchored one merges them into the base for this fit, and so descends
on the server's own network along a random block of coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.algorithms.lora.sketch_view import read_sketch
from bayesfed.algorithms.lora.slices import cut_slices
from bayesfed.data.dataset import Dataset
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit
from bayesfed.federated.core.wrappers import Around
from bayesfed.keys import Key
from bayesfed.models.adapters.lora import adapters
from bayesfed.trees import Tree, leaf_of, placed


def others(indices: Mapping[str, Tensor], ranks: Mapping[str, int]) -> dict[str, Tensor]:
    """Return the slices of each layer that are not among some of them."""
    return {name: torch.tensor([j for j in range(ranks[name]) if j not in set(chosen.tolist())]) for name, chosen in indices.items()}


@dataclass(frozen=True)
class Anchored(Around):
    """Let `local` train the slices that a message names, over base weights with all other slices merged into them.

    A message without names is one of all slices. The merged weights exist for one fit; the network's own are never written to.

    Parameters
    ----------
    local
        The local step that trains the network.
    net
        The network that `local` trains, with adapters of k slices at the scale of the whole.
    """

    net: nn.Module

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Merge what was not drawn, and fit the slices."""
        model, indices = read_sketch(message)
        with placed(self.net, dict(self.net.named_parameters()) | anchors(self.net, model, indices)):
            return self.local.fit(cut_slices(model, indices), memory, data, key, options)


def anchors(net: nn.Module, model: Mapping[str, Tensor], indices: Mapping[str, Tensor]) -> Tree:
    """Return the base weights plus the slices that are not among `indices`, ``W + scale B' A'``, by their names in the network."""
    left = others(indices, {name: len(model[leaf_of(name, "lora_a")]) for name in indices})
    found = {}
    for name, layer in adapters(net).items():
        if name in left and len(left[name]):
            weight, rest = layer.base.weight.detach(), left[name].to(model[leaf_of(name, "lora_a")].device)
            b, a = model[leaf_of(name, "lora_b")].index_select(1, rest), model[leaf_of(name, "lora_a")].index_select(0, rest)
            found[leaf_of(name, "base.weight")] = weight + ((b * layer.scale) @ a).to(weight)
    return found
