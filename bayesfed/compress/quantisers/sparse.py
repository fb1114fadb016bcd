"""`Sparse`: leaves with many zeros, as the positions and the values of the non-zero entries."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import IntegerCode, LeafCodec, MaskCode
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.quantisers.entries import (
    Singles,
    as_matrix,
    check_range,
    entries,
    read_positions,
    read_singles,
    tensor,
    write_positions,
    write_singles,
)
from bayesfed.keys import Key

_TABLE = 256


@dataclass(frozen=True)
class Sparse:
    """Send the positions of the non-zero entries and their values.

    With ``values=None`` float32 values are exact, except for the sign of a negative zero. If there
    are at most 256 distinct values, and a table of them with an index for each entry is shorter
    than four bytes per entry, the table is sent: a ternary tensor costs its positions and about one
    bit per sign.

    Parameters
    ----------
    values
        Codec of the non-zero entries, a vector in row order. None: exact, as above.
    mask
        Code of the positions.
    code
        Code of the indices into the table.
    """

    values: LeafCodec | None = None
    mask: MaskCode = CheapestMask()
    code: IntegerCode = Cheapest()

    @property
    def unbiased(self) -> bool:
        """Whether it is exact or the inner codec is unbiased."""
        return self.values is None or self.values.unbiased

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the positions, then the values; exact values after the number of rows of their
        table, 0 for no table.
        """
        flat = entries(leaf, "Sparse")
        if not len(flat):
            return
        active = flat != 0
        write_positions(active, as_matrix(tuple(leaf.shape)), self.mask, out)
        kept = flat[active]
        if self.values is not None:
            self.values.write(torch.from_numpy(kept), key.child("values"), out)
        elif len(kept):
            table = _table(kept)
            out.varint(len(table))
            write_singles(table if len(table) else kept, out)
            if len(table):
                self.code.write(np.searchsorted(table, kept).astype(np.int64), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        dense = np.zeros(math.prod(shape), np.float32)
        if len(dense):
            active = read_positions(source, as_matrix(shape), self.mask)
            count = int(active.sum())
            if self.values is not None:
                dense[active] = self.values.read(source, (count,), key.child("values")).numpy()
            elif count:
                rows = source.varint(_TABLE)
                table = read_singles(source, rows or count)
                dense[active] = (
                    table[check_range(self.code.read(source, count), 0, rows - 1)]
                    if rows
                    else table
                )
        return tensor(dense, shape)

    def bound(self, leaf: Tensor) -> float:
        """Return the bound of the inner codec; 0 if exact."""
        return 0.0 if self.values is None else self.values.bound(_kept(leaf))

    def variance(self, leaf: Tensor) -> float:
        """Return the variance of the inner codec; 0 if exact."""
        return 0.0 if self.values is None else self.values.variance(_kept(leaf))


def _kept(leaf: Tensor) -> Tensor:
    flat = entries(leaf, "Sparse")
    return torch.from_numpy(flat[flat != 0])


def _table(kept: Singles) -> Singles:
    # In most leaves the first entries already have too many distinct values; only the other leaves
    # are sorted as a whole.
    if len(np.unique(kept[: 4 * _TABLE])) > _TABLE:
        return kept[:0]
    table = np.unique(kept)
    bits = 32 * len(table) + len(kept) * math.ceil(math.log2(len(table)))
    return table if len(table) <= _TABLE and bits < 32 * len(kept) else kept[:0]
