"""Which entries of a tree belong to which slices of an adapter, by the names of the leaves.

``LAYER.lora_b`` and ``LAYER.lora_a`` belong to the adapter.
``value/guide.scales.LAYER.lora_a_unconstrained`` and ``precision/LAYER.lora_a`` belong to a
posterior of it, entry by entry; slice j is column j or row j of these too.

Slices that a client only computes with, and does not train, may travel as codes of `BITS` bits with
a range for each slice (`coarse`, `fine`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bayesfed.trees import Tree

AXES = {"lora_b": 1, "lora_a": 0}
# Bits of a coarse entry; two share a byte.
BITS = 4


class Sliced(NamedTuple):
    """The layer whose adapter a leaf belongs to, and the axis of the leaf along which slices are
    counted.
    """

    layer: str
    axis: int


def sliced(names: Iterable[str], layers: Collection[str]) -> dict[str, Sliced]:
    """Return the leaves that have slices. A name that fits several layers belongs to the
    longest.
    """
    found = {}
    for name in names:
        for leaf, axis in AXES.items():
            before, at, _ = f".{name.removesuffix('_unconstrained')}.".partition(f".{leaf}.")
            owners = [before[start + 1 :] for start, one in enumerate(before) if one in "./"]
            layer = next((owner for owner in [*owners, ""] if at and owner in layers), None)
            if layer is not None:
                found[name] = Sliced(layer, axis)
    return found


def cut_slices(tree: Mapping[str, Tensor], indices: Mapping[str, Tensor]) -> Tree:
    """Return a tree with the chosen columns of B and rows of A, by layer; other leaves as
    they are.
    """
    found = dict(tree)
    for name, (layer, axis) in sliced(tree, indices).items():
        found[name] = tree[name].index_select(axis, indices[layer].to(tree[name].device))
    return found


def put_slices(
    tree: Mapping[str, Tensor], indices: Mapping[str, Tensor], whole: Mapping[str, Tensor]
) -> Tree:
    """Return a tree with cut leaves in their places among those of `whole`, which is not changed;
    other leaves as they are.
    """
    found = dict(tree)
    for name, (layer, axis) in sliced(tree, indices).items():
        found[name] = (
            whole[name]
            .to(tree[name])
            .index_copy(axis, indices[layer].to(tree[name].device), tree[name])
        )
    return found


def others(indices: Tensor, rank: int) -> Tensor:
    """Return the slices, of so many, that are not among some of them, ascending."""
    return torch.ones(rank, dtype=torch.bool).index_fill(0, indices.cpu(), False).nonzero()[:, 0]


def coarse(leaf: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return codes of a leaf, two in a byte, and the least and greatest entry of each slice,
    ``(2, slices)``.

    Entries are rounded to the nearest of ``2 ** BITS`` levels between the two.

    Parameters
    ----------
    leaf
        ``(m, slices)`` or ``(slices, n)``.
    axis
        Axis along which slices are counted.
    """
    rows = leaf.movedim(axis, 0)
    low, high = rows.amin(1), rows.amax(1)
    step = ((high - low) / (2**BITS - 1)).clamp_min(torch.finfo(leaf.dtype).tiny)
    codes = ((rows - low[:, None]) / step[:, None]).round().to(torch.uint8).flatten()
    codes = torch.cat([codes, codes.new_zeros(len(codes) % 2)])
    return codes[::2] << BITS | codes[1::2], torch.stack([low, high])


def fine(codes: Tensor, ranges: Tensor, length: int, axis: int) -> Tensor:
    """Return the leaf that `coarse` coded, of slices with `length` entries."""
    low, high = ranges[:, :, None]
    levels = ranges.new_empty(2 * len(codes))
    levels[::2] = codes >> BITS
    levels[1::2] = codes & (2**BITS - 1)
    rows = levels[: len(low) * length].reshape(len(low), length)
    # In place, since clients make the leaf anew at each use.
    return rows.mul_((high - low) / (2**BITS - 1)).add_(low).movedim(0, axis)
