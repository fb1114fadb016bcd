"""`Sum`, the default reducer, and `PartialSum`, the share of a sum that an edge aggregator or
another process adds.

Each client's numbers are rounded to the lowest digit of `bayesfed.federated.core.limbs`; the sum of
what is left is exact. So neither the order of the clients nor who adds which of them changes a bit
of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self, get_args

import torch
from torch import Tensor

from bayesfed.compress.wire import DTYPES, NAMES, pack, unpack
from bayesfed.errors import UpdateError, WireError
from bayesfed.federated.core import limbs
from bayesfed.federated.core.forms import Entry, Form, Part, checked
from bayesfed.federated.core.update import Kind, Update
from bayesfed.trees import Tree

# Largest size of the sum of as many clients as there is room for, and how many digits its count of
# quanta has.
MOST_QUANTA = limbs.quanta(limbs.TOP) * limbs.ROOM
LONGEST_QUANTA = len(f"-{MOST_QUANTA:x}")


@dataclass(frozen=True)
class PartialSum:
    """The exact sum of some clients' updates. Partial sums can be added in any order, and sent as
    bytes.

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
    floats
        By number of limbs: what a running sum keeps in place of them (`limbs.floats_for`). Others
        have none, and `copy` returns a sum without.
    """

    form: Form
    limbs: Mapping[int, Tensor]
    quanta: int = 0
    count: int = 0
    floats: Mapping[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, update: Update) -> Self:
        """Return the sum of one update.

        Raises
        ------
        UpdateError
            If a number is not finite, or 2^50 or more in size.
        """
        return cls.nothing(update).with_(update)

    @classmethod
    def nothing(cls, like: Update) -> Self:
        """Return the sum of no updates, for updates of the form of this one."""
        form, device = Form.of(like), next((leaf.device for leaf in like.total.values()), None)
        return cls(
            form, {number: limbs.zeros(number, size, device) for number, size in form.sizes.items()}
        )

    def running(self) -> Self:
        """Return the same sum of nothing, as one to which updates are added in little memory."""
        made = {number: limbs.floats_for(whole) for number, whole in self.limbs.items()}
        return replace(self, floats={n: floats for n, floats in made.items() if floats is not None})

    def __add__(self, other: PartialSum) -> PartialSum:
        self.form.check(other.form)
        left, right = (
            (self, other)
            if self.count + other.count <= limbs.ROOM
            else (self.carried(), other.carried())
        )
        added = {
            number: leaf + right.limbs[number].to(leaf.device)
            for number, leaf in left.limbs.items()
        }
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

    def update(self) -> Update:
        """Return the sum as numbers, in the types of the clients' updates."""
        trees: dict[str, Tree] = {"total": {}, "weight": {}}
        values = {n: limbs.value(whole) for n, whole in self.limbs.items() if n not in self.floats}
        for part, name, dtype, shape in self.form.entries:
            number, columns = self.form.places[part, name]
            row = (
                limbs.value(self.limbs[number][:, columns], self.floats[number][columns])
                if number in self.floats
                else values[number][columns]
            )
            leaf = row.to(dtype.to_real() if dtype.is_complex else dtype)
            trees[part][name] = (
                torch.view_as_complex(leaf.reshape(*shape, 2))
                if dtype.is_complex
                else leaf.reshape(shape)
            )
        return Update(
            trees["total"],
            trees["weight"] if self.form.by_entry else limbs.from_quanta(self.quanta),
            self.form.kind,
        )

    def to_bytes(self) -> bytes:
        """Return the sum as a message of the wire format, with a digest."""
        tree = {}
        for entry in self.form.entries:
            number, columns = self.form.places[entry.part, entry.name]
            name = f"{entry.part}/{NAMES[entry.dtype]}/{entry.name}"
            tree[name] = self.limbs[number][:, columns].reshape(number, *entry.shape)
        meta = {"kind": self.form.kind, "count": self.count, "by_entry": self.form.by_entry}
        return pack(tree, {**meta, "quanta": f"{self.quanta:x}"})

    @classmethod
    def from_bytes(cls, message: bytes) -> Self:
        """Return the sum that `to_bytes` wrote.

        Raises
        ------
        WireError
            If the message is damaged, or not one of a sum.
        """
        tree, meta = unpack(message)
        try:
            return cls._read(tree, meta)
        except (ValueError, KeyError, TypeError) as problem:
            where, expected = "partial sum", "a message of PartialSum.to_bytes"
            hint = "sending it again"
            raise WireError(where, expected, problem, hint, field="payload") from problem

    @classmethod
    def _read(cls, tree: Tree, meta: Mapping[str, Any]) -> Self:
        entries = []
        for key, leaf in tree.items():
            part, dtype, name = key.split("/", 2)
            known: Part = "weight" if part == "weight" else "total"
            entry = Entry(known, name, DTYPES[dtype], tuple(leaf.shape[1:]))
            if (
                part not in ("total", "weight")
                or dtype == "b1"
                or leaf.dtype is not torch.int64
                or leaf.shape[:1] != (limbs.limbs_of(entry.dtype),)
            ):
                raise ValueError(f"leaf {key!r} as {leaf.dtype} {tuple(leaf.shape)}")
            entries.append((entry, leaf))
        entries.sort(key=lambda pair: pair[0][:2])
        kind, count, by_entry, quanta = (
            meta[name] for name in ("kind", "count", "by_entry", "quanta")
        )
        form = Form(kind, tuple(entry for entry, _ in entries), by_entry)
        if (
            kind not in get_args(Kind)
            or type(count) is not int
            or not 0 < count <= limbs.ROOM
            or type(by_entry) is not bool
        ):
            raise ValueError(f"{kind!r}, {count!r} clients, weights by entry {by_entry!r}")
        if (
            by_entry != any(entry.part == "weight" for entry, _ in entries)
            or not len(quanta) <= LONGEST_QUANTA
        ):
            raise ValueError("weights of another form")
        joined = {}
        for number in form.sizes:
            of_number = [leaf for _, leaf in entries if len(leaf) == number]
            joined[number] = torch.cat([leaf.reshape(number, -1) for leaf in of_number], 1)
            low, high = joined[number].aminmax() if joined[number].numel() else (0, 0)
            if int(low) < -(count << limbs.DIGIT) or int(high) > count << limbs.DIGIT:
                raise ValueError(f"digits beyond those of {count} clients")
        if abs(int(quanta, 16)) > MOST_QUANTA:
            raise ValueError("weights beyond those of clients")
        return cls(form, joined, int(quanta, 16), count)

    def copy(self) -> Self:
        """Return the same sum with limbs of its own."""
        own = {number: leaf.clone() for number, leaf in self.limbs.items()}
        for number, floats in self.floats.items():
            limbs.add([floats.nan_to_num()], own[number])
        return replace(self, limbs=own, floats={})

    def with_(self, update: Update) -> Self:
        """Return the sum with an update added to the limbs of this one, which changes and must no
        longer be used.

        Raises
        ------
        UpdateError
            As `of`, or if the update has another form. Nothing is changed then.
        """
        self.form.check(Form.of(update))
        values = checked(update)
        room = self if self.count < limbs.ROOM else self.copy().carried()
        for number, whole in room.limbs.items():
            limbs.add(
                [values[key] for key, place in self.form.places.items() if place.limbs == number],
                whole,
                room.floats.get(number),
            )
        quanta = 0 if isinstance(update.weight, dict) else limbs.quanta(update.weight)
        return replace(room, quanta=room.quanta + quanta, count=room.count + 1)


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
        self._partial: PartialSum | None = None

    def add(self, client: str, update: Update) -> None:
        """Add one client's update.

        Raises
        ------
        UpdateError
            If a number of the update is not finite, or 2^50 or more in size, or its form is not
            that of the others. The sum is as before then.
        """
        held = self._held() or PartialSum.nothing(update).running()
        self._partial, self._total = held.with_(update), None

    def include(self, partial: PartialSum) -> None:
        """Add the sum of some clients.

        Raises
        ------
        UpdateError
            If its form is not that of the others.
        """
        held = self.partial
        self._partial, self._total = partial.copy() if held is None else held + partial, None

    @property
    def partial(self) -> PartialSum | None:
        """The sum so far as integers, for whoever adds it to other sums; None before the first
        update.
        """
        held = self._held()
        return held and held.copy()

    @property
    def total(self) -> Update | None:
        """The sum so far as numbers; None before the first update."""
        if self._total is None and self._partial is not None:
            self._total = self._partial.update()
        return self._total

    def _held(self) -> PartialSum | None:
        if self._partial is None and self._total is not None:
            self._partial = PartialSum.of(self._total)
        return self._partial
