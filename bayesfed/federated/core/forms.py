"""`Form`: what updates must have in common to be added: kind, names, types and shapes, and whether
every entry has a weight of its own; and `checked`, whether they can be added.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from bayesfed.errors import UpdateError
from bayesfed.federated.core.limbs import TOP, fits, limbs_of
from bayesfed.federated.core.update import Kind, Update
from bayesfed.trees import check_shapes

Part = Literal["total", "weight"]


class Entry(NamedTuple):
    """One leaf of an update: whether it belongs to the total or to the weights, its name, dtype and
    shape.
    """

    part: Part
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Form:
    """The form of an update.

    Parameters
    ----------
    kind
        What the numbers mean.
    entries
        Leaves, sorted by part and name.
    by_entry
        Whether every entry has a weight of its own.
    """

    kind: Kind
    entries: tuple[Entry, ...]
    by_entry: bool

    @classmethod
    def of(cls, update: Update) -> Self:
        """Return the form of an update.

        Raises
        ------
        UpdateError
            If a leaf has no numbers, but booleans.
        """
        entries = [
            Entry(part, name, leaf.dtype, tuple(leaf.shape)) for part, name, leaf in leaves(update)
        ]
        if odd := [entry.name for entry in entries if entry.dtype is torch.bool]:
            raise UpdateError(
                f"adding updates, leaf {odd[0]!r}",
                "numbers",
                torch.bool,
                "numbers 0 and 1",
                field="dtype",
            )
        return cls(
            update.kind, tuple(sorted(entries, key=lambda entry: entry[:2])), update.by_entry
        )

    @cached_property
    def places(self) -> dict[tuple[Part, str], tuple[int, slice]]:
        """By part and name of a leaf: the number of limbs of its numbers, and their columns among
        all leaves with as many.
        """
        result, ends = dict[tuple[Part, str], tuple[int, slice]](), dict[int, int]()
        for entry in self.entries:
            number = limbs_of(entry.dtype)
            start = ends.get(number, 0)
            stop = start + math.prod(entry.shape) * (2 if entry.dtype.is_complex else 1)
            result[entry.part, entry.name] = number, slice(start, stop)
            ends[number] = stop
        return result

    @cached_property
    def sizes(self) -> dict[int, int]:
        """By number of limbs: how many real numbers have so many."""
        return {number: columns.stop for number, columns in self.places.values()}

    def check(self, other: Form) -> None:
        """Raise `UpdateError` unless updates of another form can be added to those of this one."""
        if other == self:
            return
        if other.kind != self.kind:
            raise UpdateError(
                "adding updates",
                f"kind {self.kind!r}",
                repr(other.kind),
                "one kind for all clients",
            )
        if other.by_entry != self.by_entry:
            raise UpdateError(
                "adding updates", "weights of one form", "a number and a tree", "one view for all"
            )
        for part in ("total", "weight"):
            mine, theirs = (
                {one.name: one.shape for one in form.entries if one.part == part}
                for form in (self, other)
            )
            check_shapes(
                {name: torch.empty(shape, device="meta") for name, shape in theirs.items()},
                mine,
                where=f"adding updates, {part}",
            )
        for entry, wrong in zip(self.entries, other.entries, strict=True):
            if entry.dtype != wrong.dtype:
                raise UpdateError(
                    f"adding updates, leaf {entry.name!r}",
                    entry.dtype,
                    wrong.dtype,
                    "one type for all clients",
                    field="dtype",
                )


def leaves(update: Update) -> Iterator[tuple[Part, str, Tensor]]:
    """Yield part, name and values of every leaf of an update."""
    for name, leaf in update.total.items():
        yield "total", name, leaf
    if isinstance(update.weight, dict):
        for name, leaf in update.weight.items():
            yield "weight", name, leaf


def flat(leaf: Tensor) -> Tensor:
    """Return the real numbers of a leaf in a row, ``(n,)``."""
    leaf = leaf.detach() if leaf.requires_grad else leaf
    return (torch.view_as_real(leaf.resolve_conj()) if leaf.is_complex() else leaf).reshape(-1)


def checked(update: Update) -> dict[tuple[Part, str], Tensor]:
    """Return the numbers of every leaf of an update in a row, by part and name.

    Raises
    ------
    UpdateError
        If a number is not finite, or 2^50 or more in size, and so cannot be added.
    """
    values = {(part, name): flat(leaf) for part, name, leaf in leaves(update)}
    for (part, name), leaf in values.items():
        if not fits(leaf):
            raise UpdateError(
                f"adding updates, {'leaf' if part == 'total' else 'weights of leaf'} {name!r}",
                "finite numbers below 2^50 in size",
                f"{float(leaf.abs().amax()):g}",
                "a smaller step or weight",
                field="values",
            )
    if not isinstance(update.weight, dict) and not abs(update.weight) < TOP:
        raise UpdateError(
            "adding updates, weight",
            "a finite number below 2^50",
            update.weight,
            "the number of rows",
            field="weight",
        )
    return values
