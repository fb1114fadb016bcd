"""Sparse leaves: only the values where a mask is set. The mask itself is sent as the boolean leaf
``support/NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesfed.errors import WireError
from bayesfed.trees import Tree, under

# Beginning of the names of masks.
SUPPORT = "support/"


def gather_active(tree: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tree:
    """Return the active entries of every leaf ``KIND/NAME`` that has the shape of the mask called
    NAME; other leaves stay whole.
    """
    return {
        name: leaf[mask]
        if leaf.dtype is not torch.bool and (mask := mask_of(name, leaf, masks)) is not None
        else leaf
        for name, leaf in tree.items()
    }


def scatter_active(values: Tensor, mask: Tensor) -> Tensor:
    """Return a tensor of the mask's shape with the values where the mask is set and zeros
    elsewhere.

    Raises
    ------
    WireError
        If the number of values is not the number of active entries.
    """
    active = int(mask.sum())
    if values.shape != (active,):
        raise WireError(
            "active values",
            f"shape ({active},)",
            tuple(values.shape),
            "the mask they were gathered with",
        )
    dense = values.new_zeros(mask.shape)
    dense[mask] = values
    return dense


def supports_of(tree: Mapping[str, Tensor]) -> Tree:
    """Return the masks that a tree has, by the names of what they are masks of."""
    return under(tree, SUPPORT)


def moved(name: str, leaf: Tensor, before: Tree, after: Tree) -> Tensor:
    """Return a leaf of active entries at the entries that are active now, any other as it is.

    Parameters
    ----------
    name, leaf
        A leaf; one of active entries is ``KIND/NAME`` of shape ``(n,)``.
    before, after
        Masks by NAME, of the leaf as it is and as it is wanted.
    """
    site = name.partition("/")[2]
    old, new = before.get(site), after.get(site)
    if old is None or new is None or leaf.ndim != 1 or old.shape != new.shape:
        return leaf
    old, new = old.to(leaf.device), new.to(leaf.device)
    if torch.equal(old, new) or len(leaf) != int(old.sum()):
        return leaf
    return scatter_active(leaf, old)[new]


def mask_of(name: str, leaf: Tensor, masks: Mapping[str, Tensor]) -> Tensor | None:
    """Return the mask of the entries that are sent of a leaf; None if all are."""
    mask = masks.get(name.partition("/")[2])
    return mask if mask is not None and mask.shape == leaf.shape else None
