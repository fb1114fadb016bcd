"""Anchored sketches: a client trains some slices of the adapters as they are, over frozen weights that hold all other slices.

The client of FSLoRA as printed descends on a network that lacks the slices it did not draw. An anchored one merges these into the base for the length
of a fit, and so descends on the server's own network along a random block of coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bayesfed.algorithms.lora.sketch_view import KNOWN, read_sketch
from bayesfed.algorithms.lora.slices import cut_slices, put_slices
from bayesfed.data.dataset import Dataset
from bayesfed.errors import UpdateError, complain
from bayesfed.federated.aggregation.servers import Add
from bayesfed.federated.core.options import LocalOptions
from bayesfed.federated.core.protocols import Fit
from bayesfed.federated.core.wrappers import Around
from bayesfed.federated.training.delta_downlink import HELD
from bayesfed.keys import Key
from bayesfed.models.adapters.lora import adapters
from bayesfed.trees import Tree, leaf_of, placed, under, without

# A client that has not been heard for more rounds is sent all slices anew.
PATIENCE = 8


@dataclass(frozen=True)
class Anchors(Add):
    """`Add`, for clients that keep the slices that they do not train as they last received them."""

    def publish(self, state: Tree, round: int, version: int | None) -> Tree:
        """Publish the state, with an empty leaf `KNOWN` for clients that were heard in one of the last rounds; `Slices` sends these no more than they train."""
        recent = version is not None and round - version <= PATIENCE
        return state | {KNOWN: torch.empty(0)} if recent else state


@dataclass(frozen=True)
class Anchored(Around):
    """Let `local` train the slices that a message names, over base weights with all other slices merged into them.

    Other slices are those of the message, or of the client's memory where the message has only the named ones. A message without names is one of all
    slices. The merged weights exist for one fit; the network's own are never written to.

    Parameters
    ----------
    local
        The local step that trains the network.
    net
        The network that `local` trains, with adapters of k slices at the scale of the whole.
    keeps
        Whether the client keeps what it received, for messages that have only the named slices.
    """

    net: nn.Module
    keeps: bool = True

    def fit(self, message: Tree, memory: Tree, data: Dataset, key: Key, options: LocalOptions) -> Fit:
        """Merge what was not drawn, and fit the slices.

        Raises
        ------
        UpdateError
            If the message has only the named slices, and the client holds no others.
        """
        model, indices = read_sketch(message)
        model = completed(model, indices, under(memory, HELD))
        with placed(self.net, dict(self.net.named_parameters()) | merged_rest(self.net, model, indices)):
            fit = self.local.fit(cut_slices(model, indices), without(memory, HELD), data, key, options)
        kept = {HELD + leaf_of(name, leaf): model[leaf_of(name, leaf)] for name in adapters(self.net) for leaf in ("lora_b", "lora_a")}
        return fit._replace(memory=fit.memory | kept) if self.keeps else fit


def completed(model: Tree, indices: Mapping[str, Tensor], held: Mapping[str, Tensor]) -> Tree:
    """Return a model with all slices: where it has only the named ones, the others as they are held.

    Raises
    ------
    UpdateError
        If others are not held.
    """
    cut = {name: chosen for name, chosen in indices.items() if len(model[leaf_of(name, "lora_a")]) == len(chosen)}
    if lacking := sorted(name for name in cut if leaf_of(name, "lora_a") not in held):
        raise UpdateError(complain("anchored sketch", expected="the other slices", actual=f"none held of {lacking}", hint="sending whole adapters"))
    return put_slices(model, cut, held)


def merged_rest(net: nn.Module, model: Mapping[str, Tensor], indices: Mapping[str, Tensor]) -> Tree:
    """Return base weights plus the slices that are not named, ``W + scale B' A'``, by their names in the network.

    Parameters
    ----------
    net
        A network with adapters at the scale of the whole.
    model
        Adapters of all slices.
    indices
        Indices of the slices of each layer that are left out of the merge.
    """
    weights = {}
    for name, chosen in indices.items():
        layer, (b, a) = net.get_submodule(name), (model[leaf_of(name, leaf)] for leaf in ("lora_b", "lora_a"))
        rest = torch.ones(len(a), dtype=torch.bool, device=a.device).index_fill(0, chosen.to(a.device), False)
        base = layer.get_parameter("base.weight").detach()
        weights[leaf_of(name, "base.weight")] = base + ((b[:, rest] * layer.scale) @ a[rest]).to(base)
    return weights
