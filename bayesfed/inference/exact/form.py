"""`Form`: shape and type of a row, as numbers that can be added over sites, and made-up rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesfed.data import Dataset
from bayesfed.data.packed import Packed
from bayesfed.errors import DataError

# Most axes of a row, and the types of rows by their number.
AXES = 6
TYPES = (torch.float64, torch.int64, torch.bool, torch.uint8, torch.int32)


def check_one_tensor(data: Dataset) -> None:
    """Raise `DataError` unless rows are one tensor of inputs, which a Pyro model is called with.

    Rows that are dicts or tuples are taken apart for networks alone.
    """
    if isinstance(data.inputs, Packed):
        names = ", ".join(str(leaf.name) for leaf in data.inputs.form)
        hint = "Dataset(torch.stack([column, ...], 1), targets), and inputs[:, 0] in the model"
        raise DataError("federated_svi", "one tensor of inputs", f"rows of {names}", hint)


@dataclass(frozen=True)
class Form:
    """Shape and type of a row's input and target, as numbers that can be added over sites.

    Parameters
    ----------
    numbers
        For inputs and then targets: the type, the number of axes, their lengths, zeros.
    """

    numbers: tuple[int, ...]

    @classmethod
    def of(cls, data: Dataset) -> Form:
        """Return the form of a site's rows.

        Raises
        ------
        DataError
            If the rows are trees, or of a type that has no number.
        """
        check_one_tensor(data)
        numbers = list[int]()
        for leaf in (data.inputs, data.targets):
            kind = torch.float64 if leaf.is_floating_point() else leaf.dtype
            if kind not in TYPES or leaf.ndim > AXES:
                expected = f"rows of numbers with fewer than {AXES} axes"
                raise DataError("federated_svi", expected, f"{leaf.dtype}", "float32 or int64")
            axes = leaf.shape[1:]
            numbers += [TYPES.index(kind), len(axes), *axes, *[0] * (AXES - len(axes))]
        return cls(tuple(numbers))

    @classmethod
    def read(cls, numbers: Tensor) -> Form:
        """Return the form that numbers say."""
        return cls(tuple(int(number) for number in numbers))

    @property
    def words(self) -> str:
        """What an input and a target are."""
        one = self.rows(1)
        told = (f"{tuple(leaf.shape[1:])} of {leaf.dtype}" for leaf in (one.inputs, one.targets))
        return "inputs {}, targets {}".format(*told)

    def rows(self, count: int) -> Dataset:
        """Return so many made-up rows: fractions between .5 and 1.5, whole numbers 0."""
        leaves = list[Tensor]()
        for part in (self.numbers[: AXES + 2], self.numbers[AXES + 2 :]):
            shape = (count, *part[2 : 2 + part[1]])
            size, kind = torch.Size(shape).numel(), TYPES[part[0]]
            leaf = torch.zeros(shape, dtype=kind)
            if kind.is_floating_point:
                leaf = (torch.arange(1, size + 1, dtype=kind) * 0.618 % 1 + 0.5).reshape(shape)
            leaves.append(leaf)
        return Dataset(leaves[0], leaves[1])
