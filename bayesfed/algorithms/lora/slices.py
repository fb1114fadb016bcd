"""Which entries of a tree belong to which slices of an adapter, whatever stands around the adapter's name.

``LAYER.lora_b`` and ``LAYER.lora_a`` are an adapter's own; ``guide.scales.LAYER.lora_a_unconstrained`` and ``LAYER.lora_a.precision`` are what a
posterior says of it, entry by entry, and slice j is column j or row j of these too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from bayesfed.trees import Tree

AXES = {"lora_b": 1, "lora_a": 0}


class Sliced(NamedTuple):
    """The layer whose adapter a leaf is of, and the leaf's axis of slices."""

    layer: str
    axis: int


def sliced(names: Iterable[str], layers: Collection[str]) -> dict[str, Sliced]:
    """Return which of these leaves have slices; a name that fits several layers is of the longest."""
    found = {}
    for name in names:
        parts = name.removesuffix("_unconstrained").split(".")
        for leaf, axis in AXES.items():
            at = parts.index(leaf) if leaf in parts else -1
            layer = next((owner for first in range(at + 1) if (owner := ".".join(parts[first:at])) in layers), None)
            if layer is not None:
                found[name] = Sliced(layer, axis)
    return found


def cut_slices(tree: Mapping[str, Tensor], indices: Mapping[str, Tensor]) -> Tree:
    """Return a tree with the chosen columns of B and rows of A, by layer; other leaves as they are."""
    found = dict(tree)
    for name, (layer, axis) in sliced(tree, indices).items():
        found[name] = tree[name].index_select(axis, indices[layer].to(tree[name].device))
    return found


def put_slices(tree: Mapping[str, Tensor], indices: Mapping[str, Tensor], whole: Mapping[str, Tensor]) -> Tree:
    """Return a tree with cut leaves in their places among those of `whole`, which is not changed; other leaves as they are."""
    found = dict(tree)
    for name, (layer, axis) in sliced(tree, indices).items():
        found[name] = whole[name].to(tree[name]).index_copy(axis, indices[layer].to(tree[name].device), tree[name])
    return found
