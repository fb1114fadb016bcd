"""Codecs without chance: `Float`, numbers as float32 or IEEE half, with a code of their exponents;
`Exact`, float32 without loss, by a table if they are few; and `Uniform`, the nearest points of an
even grid.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.leaf import IntegerCode, Reader, Writer
from bayesfed.compress.lossless.cheapest import Cheapest
from bayesfed.compress.quantisers.entries import (
    LARGEST,
    Singles,
    check_range,
    entries,
    peak,
    read_singles,
    tensor,
    write_singles,
)
from bayesfed.errors import WireError
from bayesfed.errors.checks import checked_class, whole
from bayesfed.keys import Key
from bayesfed.trees import is_finite

Kind = Literal[32, 16]
_DTYPES: dict[Kind, torch.dtype] = {32: torch.float32, 16: torch.float16}


@checked_class()
@dataclass(frozen=True)
class Float:
    """Send each entry as a little-endian float of `kind`, rounded to nearest.

    Parameters
    ----------
    kind
        32 (lossless for float32 leaves) or 16 (IEEE half: relative error at most 2**-11 between
        6.1e-5 and 65504, absolute 2**-25 below).
    entropy
        Code of the highest byte of every number, after a rotation that moves the sign to the lowest
        bit, so that this byte holds the exponent; trained weights have few distinct exponents. The
        other bytes are sent unchanged. None: all bytes are.

    Raises
    ------
    ArgumentError
        If `kind` is not one of these.
    WireError
        On encoding NaN, infinity or a value outside the range of `kind`; on decoding a value that
        is not finite.
    """

    kind: Kind = 32
    entropy: IntegerCode | None = None

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the numbers: all bytes, or the code of the high bytes and then the other bytes."""
        size = self.kind // 8
        flat = entries(leaf, f"Float({self.kind})")
        narrow = torch.from_numpy(flat).to(_DTYPES[self.kind])
        if not is_finite(narrow):
            raise WireError(
                f"Float({self.kind})",
                "values within its range",
                f"largest {peak(flat):g}",
                "Float(32) or a smaller step",
            )
        words = narrow.numpy().view(f"u{size}")
        if self.entropy is None:
            out.raw(words.astype(f"<u{size}").tobytes())
            return
        planes = (
            (words << 1 | words >> (8 * size - 1))
            .astype(f"<u{size}")
            .view(np.uint8)
            .reshape(-1, size)
        )
        self.entropy.write(planes[:, -1].astype(np.int64), out)
        out.raw(planes[:, :-1].tobytes())

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the numbers as float32; refuse numbers that are not finite."""
        size, count = self.kind // 8, math.prod(shape)
        if self.entropy is None:
            words = np.frombuffer(source.raw(size * count), f"<u{size}").astype(f"u{size}")
        else:
            planes = np.empty((count, size), np.uint8)
            planes[:, -1] = check_range(self.entropy.read(source, count), 0, 255)
            planes[:, :-1] = np.frombuffer(source.raw((size - 1) * count), np.uint8).reshape(
                count, size - 1
            )
            turned = planes.view(f"<u{size}").reshape(-1).astype(f"u{size}")
            words = turned >> 1 | turned << (8 * size - 1)
        wide = torch.from_numpy(words.view(f"f{size}")).float()
        if not is_finite(wide):
            raise WireError(
                f"Float({self.kind})",
                "finite numbers",
                "NaN or Inf",
                "sending it again",
                field="values",
            )
        return wide.reshape(shape)


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


def _table(flat: Singles) -> Singles:
    # In most leaves the first entries already have too many distinct values; only the other leaves
    # are sorted as a whole.
    if len(np.unique(flat[: 4 * _TABLE])) > _TABLE:
        return flat[:0]
    table = np.unique(flat)
    bits = 32 * len(table) + len(flat) * math.ceil(math.log2(len(table)))
    return table if len(table) <= _TABLE and bits < 32 * len(flat) else flat[:0]


@checked_class(bits=whole(1, "8", 24))
@dataclass(frozen=True)
class Uniform:
    """Round each entry to the nearest of ``2**bits`` evenly spaced numbers from the leaf's minimum
    to its maximum.

    Minimum and maximum are sent as float32 and are exact; a leaf of equal entries is exact and
    costs eight bytes. Biased; for random rounding see `Probabilistic` and `Qsgd`.

    Parameters
    ----------
    bits
        Bits of a grid index, 1 to 24.
    code
        Code of the grid indices, ``0`` to ``2**bits - 1``.

    Raises
    ------
    ArgumentError
        If `bits` is out of range.
    """

    bits: int = 8
    code: IntegerCode = Cheapest()

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append minimum, maximum and, unless they are equal, the indices."""
        flat = entries(leaf, "Uniform")
        if not len(flat):
            return
        low, high = float(flat.min()), float(flat.max())
        out.f32(low)
        out.f32(high)
        if low < high:
            # By rounding, the quotient may exceed the last grid point in its last bit.
            ratios = (flat.astype(np.float64) - low) / ((high - low) / self._top)
            self.code.write(np.minimum(np.rint(ratios), self._top).astype(np.int64), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read minimum, maximum and indices."""
        count = math.prod(shape)
        if not count:
            return tensor(np.empty(0), shape)
        low = source.f32()
        high = source.f32(low, LARGEST)
        if low == high:
            return tensor(np.full(count, low), shape)
        indices = check_range(self.code.read(source, count), 0, self._top)
        return tensor(np.clip(low + indices * ((high - low) / self._top), low, high), shape)

    @property
    def _top(self) -> int:
        return int(2**self.bits - 1)
