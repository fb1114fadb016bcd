"""Which entries of a tree belong to which slices of an adapter, by the names of the leaves.

``LAYER.lora_b`` and ``LAYER.lora_a`` belong to the adapter. ``guide.scales.LAYER.lora_a_unconstrained`` and ``LAYER.lora_a.precision`` belong to a
posterior of it, entry by entry; slice j is column j or row j of these too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

from bayesfed.trees import Tree

AXES = {"lora_b": 1, "lora_a": 0}


class Sliced(NamedTuple):
    """The layer whose adapter a leaf belongs to, and the axis of the leaf along which slices are counted."""

    layer: str
    axis: int


def sliced(names: Iterable[str], layers: Collection[str]) -> dict[str, Sliced]:
    """Return the leaves that have slices. A name that fits several layers belongs to the longest."""
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
