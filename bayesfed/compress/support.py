"""Sparse leaves: values where a mask is set, and the mask itself as packed bits.

A matrix called ``NAME`` with a mask travels as its active values in row order, and its
support as ``NAME.support``, one bit an entry, integers rather than floats.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from bayesfed.errors import WireError, complain
from bayesfed.trees import Tree


def pack_mask(mask: Tensor) -> Tensor:
    """Pack a boolean mask of any shape into ``ceil(n / 8)`` bytes (uint8)."""
    return torch.from_numpy(np.packbits(mask.detach().cpu().numpy().reshape(-1))).to(mask.device)


def unpack_mask(packed: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Undo `pack_mask`.

    Raises
    ------
    WireError
        If the bytes are not those of a mask of this shape.
    """
    count = int(np.prod(shape))
    if packed.dtype is not torch.uint8 or packed.numel() != -(-count // 8):
        raise WireError(complain("mask", expected=f"{-(-count // 8)} bytes (uint8)", actual=f"{packed.numel()} of {packed.dtype}", hint="pack_mask"))
    bits = np.unpackbits(packed.cpu().numpy(), count=count)
    return torch.from_numpy(bits.astype(np.bool_)).reshape(shape).to(packed.device)


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
    return mask if mask is not None and mask.shape == leaf.shape else None
