"""`Sum`, the default reducer, and `PartialSum`, the share of a sum that another process adds.

Each client's numbers are rounded to the lowest digit of `bayesfed.federated.core.limbs`; the sum of
what is left is exact. So neither the order of the clients nor who adds which of them changes a bit
of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from bayesfed.errors import UpdateError
from bayesfed.federated.core import limbs
from bayesfed.federated.core.forms import Form, checked
from bayesfed.federated.core.update import Update
from bayesfed.trees import Tree


@dataclass(frozen=True)
class PartialSum:
    """The exact sum of some clients' updates as integers. Partial sums can be added in any order.

    Parameters
    ----------
    form
        Form of the updates.
    limbs
        By number of limbs L: ``(L, n)`` int64, the numbers of all leaves of this precision one
        after another.
    quanta
        Sum of the weights, in units of 2^-110; 0 if every entry has a weight of its own.
    count
        Number of additions since digits were last carried.
    """

    form: Form
    limbs: Mapping[int, Tensor]
    quanta: int = 0
    count: int = 0

    def __add__(self, other: PartialSum) -> PartialSum:
        self.form.check(other.form)
        left, right = (
            (self, other)
            if self.count + other.count <= limbs.ROOM
            else (self.carried(), other.carried())
        )
        added = {number: leaf + right.limbs[number] for number, leaf in left.limbs.items()}
        quanta, count = left.quanta + right.quanta, left.count + right.count
        return replace(left, limbs=added, quanta=quanta, count=count)

    def carried(self) -> Self:
        """Return the same sum with its digits carried, so that further additions have room.

        Raises
        ------
        UpdateError
            If the sum is 2^71 or more in size.
        """
        result = {number: limbs.normalised(leaf) for number, leaf in self.limbs.items()}
        if any(leaf.numel() and int(leaf[0].abs().amax()) >= 1 << 61 for leaf in result.values()):
            raise UpdateError(
                "adding updates", "a sum below 2^71 in size", "a larger one", "smaller weights"
            )
        return replace(self, limbs=result, count=1)


class Sum:
    """The default reducer: a running sum. Clients and partial sums may be added in any order.

    It takes 8 bytes for every float32 number of a large model as long as no bit is lost, else 24,
    and 32 for every float64 number.

    Parameters
    ----------
    total
        Update to begin with. It is kept as it is until something is added.
    """

    def __init__(self, total: Update | None = None) -> None:
        self._total = total
        self._held: PartialSum | None = None
        # By number of limbs: what is kept in place of them (`limbs.floats_for`).
        self._floats: Mapping[int, Tensor] = {}

    def add(self, client: str, update: Update) -> None:
        """Add one client's update.

        Raises
        ------
        UpdateError
            If a number of the update is not finite, or 2^50 or more in size, or its form is not
            that of the others. The sum is as before then.
        """
        form, values = Form.of(update), checked(update)
        if self._held is None and (begun := self._total):
            self._total = None
            Sum.add(self, "", begun)
        if self._held is None:
            zeros = {number: limbs.zeros(number, size) for number, size in form.sizes.items()}
            made = {number: limbs.floats_for(whole) for number, whole in zeros.items()}
            self._floats = {n: floats for n, floats in made.items() if floats is not None}
            self._held = PartialSum(form, zeros)
        self._held.form.check(form)
        if self._held.count >= limbs.ROOM:
            self._held, self._floats = self._integers(self._held).carried(), {}
        held = self._held
        for number, whole in held.limbs.items():
            leaves = [values[key] for key, place in form.places.items() if place[0] == number]
            limbs.add(leaves, whole, self._floats.get(number))
        quanta = 0 if isinstance(update.weight, dict) else limbs.quanta(update.weight)
        self._held = replace(held, quanta=held.quanta + quanta, count=held.count + 1)
        self._total = None

    def include(self, partial: PartialSum) -> None:
        """Add the sum of some clients.

        Raises
        ------
        UpdateError
            If its form is not that of the others.
        """
        held = self.partial
        self._held, self._floats = held + partial if held else partial, {}
        self._total = None

    @property
    def partial(self) -> PartialSum | None:
        """The sum so far as integers, for whoever adds it to other sums; None before the first
        update.
        """
        return self._held and self._integers(self._held)

    @property
    def total(self) -> Update | None:
        """The sum so far as numbers; None before the first update."""
        if self._total is None and self._held is not None:
            self._total = self._read(self._held)
        return self._total

    def _integers(self, held: PartialSum) -> PartialSum:
        own = {number: leaf.clone() for number, leaf in held.limbs.items()}
        for number, floats in self._floats.items():
            limbs.add([floats.nan_to_num()], own[number])
        return replace(held, limbs=own)

    def _read(self, held: PartialSum) -> Update:
        """Return a sum in the types of the clients' updates."""
        trees: dict[str, Tree] = {"total": {}, "weight": {}}
        values = {n: limbs.value(whole, self._floats.get(n)) for n, whole in held.limbs.items()}
        for part, name, dtype, shape in held.form.entries:
            number, columns = held.form.places[part, name]
            leaf = values[number][columns].to(dtype.to_real() if dtype.is_complex else dtype)
            trees[part][name] = (
                torch.view_as_complex(leaf.reshape(*shape, 2))
                if dtype.is_complex
                else leaf.reshape(shape)
            )
        weight = trees["weight"] if held.form.by_entry else limbs.from_quanta(held.quanta)
        return Update(trees["total"], weight, held.form.kind)
