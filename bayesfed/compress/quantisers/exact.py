"""`Exact`: float32 numbers without loss, by a table if they are few."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import IntegerCode
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.quantisers.entries import (
    Singles,
    check_range,
    entries,
    read_singles,
    write_singles,
)
from bayesfed.keys import Key

_TABLE = 256


@dataclass(frozen=True)
class Exact:
    """Send float32 numbers exactly.

    If there are at most 256 distinct ones, and a table of them with an index for each entry is
    shorter than four bytes per entry, the table is sent.

    Parameters
    ----------
    code
        Code of the indices into the table.
    """

    code: IntegerCode = Cheapest()

    @property
    def unbiased(self) -> bool:
        """True."""
        return True

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the number of rows of the table, 0 for none, then the table and the indices, or
        the numbers.
        """
        flat = entries(leaf, "Exact")
        if not len(flat):
            return
        table = _table(flat)
        out.varint(len(table))
        write_singles(table if len(table) else flat, out)
        if len(table):
            self.code.write(np.searchsorted(table, flat).astype(np.int64), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        count = math.prod(shape)
        if not count:
            return torch.empty(shape)
        rows = source.varint(_TABLE)
        values = read_singles(source, rows or count)
        if rows:
            values = values[check_range(self.code.read(source, count), 0, rows - 1)]
        return torch.from_numpy(values).reshape(shape)

    def bound(self, leaf: Tensor) -> float:
        """Return 0."""
        return 0.0

    def variance(self, leaf: Tensor) -> float:
        """Return 0."""
        return 0.0


def _table(flat: Singles) -> Singles:
    # In most leaves the first entries already have too many distinct values; only the other leaves
    # are sorted as a whole.
    if len(np.unique(flat[: 4 * _TABLE])) > _TABLE:
        return flat[:0]
    table = np.unique(flat)
    bits = 32 * len(table) + len(flat) * math.ceil(math.log2(len(table)))
    return table if len(table) <= _TABLE and bits < 32 * len(flat) else flat[:0]
