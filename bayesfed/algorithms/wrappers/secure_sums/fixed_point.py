"""Numbers as integers of one limb, so that sums are exact and can be masked: fixed point, with a
range that is agreed before the run.

Each client has the range of a limb divided by the number of participants, so that no sum wraps.
What lies outside is an error, not a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from bayesfed.algorithms.wrappers.secure_sums.primitives import LIMBS, Bits
from bayesfed.errors import ArgumentError, UpdateError
from bayesfed.errors.checks import checked_class, number, whole
from bayesfed.errors.plurals import plural
from bayesfed.federated import Kind, Slice, Update, Whole
from bayesfed.trees import Tree, shapes

# Names and shapes of an update.
Leaves = tuple[tuple[str, tuple[int, ...]], ...]
# Fewest levels on each side of zero that a client's entries may have.
COARSEST = 1 << 12
SIGNED: dict[Bits, np.dtype[Any]] = {32: np.dtype("<i4"), 64: np.dtype("<i8")}
WIRE: dict[Bits, torch.dtype] = {32: torch.int32, 64: torch.int64}


@checked_class(
    {},
    participants=whole(1, "100"),
    largest=number("(0, inf)", "4.0"),
    heaviest=number("(0, inf)", "1.0"),
)
@dataclass(frozen=True)
class FixedPoint:
    """What all clients and the server agree on: how a weighted update is written as integers.

    Parameters
    ----------
    bits
        Bits of an integer: 32 or 64.
    participants
        Largest number of clients in a sum.
    largest
        Largest absolute value of an entry of a client's payload.
    heaviest
        Largest weight of a client.
    leaves
        Names and shapes of an update.
    kind
        What the numbers mean.
    by_entry
        Whether clients cover leading entries only, so that each entry has a weight of its own.
    dtype
        Type of the sum's leaves.

    Raises
    ------
    ArgumentError
        If a number is out of its domain, or the range leaves too few levels.
    """

    bits: Bits
    participants: int
    largest: float
    heaviest: float
    leaves: Leaves
    kind: Kind
    by_entry: bool = False
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.levels < COARSEST:
            raise ArgumentError(
                "secure",
                f"{COARSEST} levels or more on each side of zero",
                f"{self.levels}: 2**{self.bits - 1} for {plural(self.participants, 'participant')}",
                "bits=64",
            )

    @property
    def levels(self) -> int:
        """Largest absolute value of a client's integer."""
        return int(((1 << (self.bits - 1)) - 1) // self.participants)

    @property
    def resolution(self) -> float:
        """Distance of two neighbouring values of a weighted entry: a power of two. A rounding error
        is at most half of it.
        """
        return _step(self.levels, self.largest * self.heaviest)

    def of(self, leaves: Leaves) -> FixedPoint:
        """Return the same for other leaves."""
        return self if leaves == self.leaves else replace(self, leaves=leaves)

    @property
    def length(self) -> int:
        """Number of integers of a message: all entries, and the weight or the weights."""
        entries = sum(math.prod(shape) for _, shape in self.leaves)
        return 2 * entries if self.by_entry else entries + 1

    def encode(self, payload: Tree, weight: float) -> np.ndarray:
        """Weigh and lift a payload, and return it as integers modulo ``2 ** bits``, unsigned,
        ``(length,)``.

        Raises
        ------
        UpdateError
            If names or shapes differ, or an entry or the weight is outside of the range.
        """
        if not 0 <= weight <= self.heaviest:
            raise _outside(
                "weight",
                f"0 to {self.heaviest:g}",
                weight,
                "a larger heaviest, or equal_weights(algorithm)",
            )
        for name, leaf in payload.items():
            largest = float(leaf.abs().max()) if leaf.numel() else 0.0
            if not largest <= self.largest:
                raise _outside(
                    f"leaf {name!r}",
                    f"entries of at most {self.largest:g}",
                    f"{largest:g}",
                    "a larger largest",
                )
        whole = dict(self.leaves)
        view = Slice(whole, shapes(payload)) if self.by_entry else Whole(whole)
        update = view.lift(
            {name: payload[name].double().cpu() for name in sorted(payload)}, weight, self.kind
        )
        weights = (
            [update.weight_of(name).flatten() for name in whole]
            if self.by_entry
            else [torch.tensor([weight], dtype=torch.float64)]
        )
        entries = torch.cat([update.total[name].flatten() for name in whole])
        scaled = torch.cat([entries / self.resolution, torch.cat(weights) / self._weight_step])
        return scaled.round().to(WIRE[self.bits]).numpy().view(LIMBS[self.bits])

    def decode(self, total: np.ndarray) -> Update:
        """Return the sum of clients' updates from the sum of their integers modulo
        ``2 ** bits``.
        """
        numbers = torch.from_numpy(total.view(SIGNED[self.bits]).astype(np.float64))
        sizes = [math.prod(shape) for _, shape in self.leaves]
        weights = numbers[sum(sizes) :] * self._weight_step
        entries = self._cut(numbers[: sum(sizes)] * self.resolution, sizes)
        return Update(
            entries, self._cut(weights, sizes) if self.by_entry else float(weights[0]), self.kind
        )

    def _cut(self, numbers: torch.Tensor, sizes: list[int]) -> Tree:
        parts = numbers.to(self.dtype).split(sizes)
        return {
            name: part.reshape(shape)
            for (name, shape), part in zip(self.leaves, parts, strict=True)
        }

    @property
    def _weight_step(self) -> float:
        return _step(self.levels, self.heaviest)


def _step(levels: int, largest: float) -> float:
    # A little above, so that rounding in double precision cannot pass the last level.
    return 2.0 ** math.ceil(math.log2(largest / levels * (1 + 2.0**-20)))


def _outside(what: str, expected: str, actual: object, hint: str) -> UpdateError:
    expected = f"the range agreed for the run, {expected}"
    return UpdateError(f"secure sums, {what}", expected, actual, f"{hint} in secure(...)")
