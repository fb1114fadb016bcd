"""Sparse leaves: the values where a mask is set. The mask travels beside them as ``NAME.support``, booleans."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesfed.errors import WireError, complain
from bayesfed.trees import Tree


def gather_active(tree: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tree:
    """Keep the active entries of every leaf ``NAME.*`` that has the shape of the mask called NAME; other leaves whole."""
    return {name: leaf[mask] if (mask := _mask_of(name, leaf, masks)) is not None else leaf for name, leaf in tree.items()}


def scatter_active(values: Tensor, mask: Tensor) -> Tensor:
    """Put active values back into a zero tensor of the mask's shape.

    Raises
    ------
    WireError
        If there are more or fewer values than active entries.
    """
    active = int(mask.sum())
    if values.shape != (active,):
        raise WireError(complain("active values", expected=f"shape ({active},)", actual=tuple(values.shape), hint="the mask they were gathered with"))
    dense = values.new_zeros(mask.shape)
    dense[mask] = values
    return dense


def _mask_of(name: str, leaf: Tensor, masks: Mapping[str, Tensor]) -> Tensor | None:
    mask = masks.get(name.rpartition(".")[0])
    return mask if mask is not None and mask.shape == leaf.shape and leaf.dtype is not torch.bool else None
