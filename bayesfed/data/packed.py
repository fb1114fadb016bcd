"""Rows that are trees, dicts or tuples of tensors, as one tensor.

Every leaf of a row becomes its bytes, one after another: ``(N, bytes)`` of uint8. Batches,
partitions, samplers, workers and digests thus take such rows as they take any other, and only a
network's call takes them apart (`taken_apart`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from bayesfed.errors import DataError
from bayesfed.errors.checks import shown


class Leaf(NamedTuple):
    """A leaf of a row: its name, a number for a position, shape and type."""

    name: str | int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


class Packed(Tensor):
    """Rows ``(N, bytes)`` of uint8 with the leaves that they are made of, in order."""

    form: tuple[Leaf, ...]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Keep the leaves where a result has rows of the same bytes; others are plain tensors."""
        plain: Any = super().__torch_function__
        found = plain(func, types, args, kwargs or {})
        form = next(one.form for one in tree_iter((args, kwargs)) if type(one) is cls)
        width, wide = sum(leaf.bytes for leaf in form), list[Packed]()
        for one in found if isinstance(found, tuple | list) else (found,):
            if type(one) is cls:
                one.form = form
                wide.append(one)
        if wide and not all(
            one.ndim == 2 and one.shape[1] == width and one.dtype == torch.uint8 for one in wide
        ):
            with torch._C.DisableTorchFunctionSubclass():
                if isinstance(found, tuple | list):
                    return type(found)(one.as_subclass(Tensor) for one in found)
                return found.as_subclass(Tensor)
        return found


def packed(leaves: Mapping[str, Tensor] | tuple[Tensor, ...], where: str) -> Packed:
    """Return rows that are a dict or a tuple of tensors of one length as one tensor.

    Raises
    ------
    DataError
        If there are no leaves, one is no tensor with a row for each other's, or it holds complex
        numbers, NaN or infinity.
    """
    named = leaves.items() if isinstance(leaves, Mapping) else enumerate(leaves)
    listed: list[tuple[str | int, Tensor]] = [*named]
    rows = {len(one) if isinstance(one, Tensor) and one.ndim else -1 for _, one in listed}
    if len(rows) != 1 or -1 in rows:
        actual = {name: shown(one) for name, one in listed} or "no leaves"
        raise DataError(where, "tensors of one length", actual, "the same rows of each")
    for name, one in listed:
        if one.is_complex() or not bool(torch.isfinite(one).all()):
            hint = "dropping or imputing those rows"
            raise DataError(f"{where}, {name!r}", "finite real numbers", shown(one), hint)
    count = rows.pop()
    bytes_of = [one.detach().reshape(count, -1).contiguous().view(torch.uint8) for _, one in listed]
    made: Packed = torch.cat(bytes_of, 1).as_subclass(Packed)
    made.form = tuple(Leaf(name, tuple(one.shape[1:]), one.dtype) for name, one in listed)
    return made


def taken_apart(rows: Tensor) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return what a network is given for some rows, by position and by keyword."""
    if not isinstance(rows, Packed):
        return (rows,), {}
    plain, begin = rows.as_subclass(Tensor), 0
    by_place, by_name = list[Tensor](), dict[str, Tensor]()
    for leaf in rows.form:
        part = plain[:, begin : begin + leaf.bytes].contiguous().clone()
        begin += leaf.bytes
        value = part.view(leaf.dtype).reshape(len(rows), *leaf.shape)
        if isinstance(leaf.name, str):
            by_name[leaf.name] = value
        else:
            by_place.append(value)
    return tuple(by_place), by_name
