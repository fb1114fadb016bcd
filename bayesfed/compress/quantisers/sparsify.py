"""Sparsification: keep the largest entries (`TopK`; `Ternary`, with one magnitude for all), the
non-zero entries (`Sparse`) or the non-zero kernels (`Kernels`), and send them with another codec.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.leaf import LeafCodec, Mask, MaskCode, Reader, Writer
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.masks.runs import RunMask
from bayesfed.compress.quantisers.entries import (
    LARGEST,
    SMALLEST,
    Singles,
    as_matrix,
    entries,
    largest,
    read_positions,
    share_of,
    tensor,
    write_positions,
)
from bayesfed.compress.quantisers.floats import Exact, Float
from bayesfed.errors.checks import SHARE, checked_class
from bayesfed.keys import Key


class _Kept(ABC):
    """A leaf as rows (entries or kernels), some of which are kept: their positions, then their
    values by an inner codec.
    """

    values: LeafCodec
    mask: MaskCode

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the positions of the kept rows, then their values."""
        rows, chosen = self._parted(leaf)
        if rows.size:
            write_positions(chosen, self._layout(tuple(leaf.shape)), self.mask, out)
            self.values.write(torch.from_numpy(rows[chosen]), key.child("values"), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        dense = np.zeros(self._rows(shape), np.float32)
        if dense.size:
            chosen = read_positions(source, self._layout(shape), self.mask)
            form = (int(chosen.sum()), *dense.shape[1:])
            dense[chosen] = self.values.read(source, form, key.child("values")).numpy()
        return tensor(dense, shape)

    @abstractmethod
    def _choose(self, rows: Singles) -> Mask:
        """Return which rows are kept."""

    def _rows(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a leaf as rows."""
        return (math.prod(shape),)

    def _layout(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the matrix as which the positions of rows are coded."""
        return as_matrix(shape)

    def _parted(self, leaf: Tensor) -> tuple[Singles, Mask]:
        rows = entries(leaf, type(self).__name__).reshape(self._rows(tuple(leaf.shape)))
        return rows, self._choose(rows)


class _Largest(_Kept):
    """The largest entries by magnitude."""

    share: float

    def _choose(self, rows: Singles) -> Mask:
        count = min(share_of(self.share, len(rows)), int(np.count_nonzero(rows)))
        return largest(np.abs(rows), count) if count else np.zeros(len(rows), np.bool_)


@checked_class(share=SHARE)
@dataclass(frozen=True)
class TopK(_Largest):
    """Keep the largest entries by magnitude and set the others to zero.

    Parameters
    ----------
    share
        Share of entries to keep: ``ceil(share * n)``, at most the non-zero ones. Of equal
        magnitudes the earlier ones are kept.
    values
        Codec of the kept entries, a vector in row order.
    mask
        Code of the positions of the kept entries.

    Raises
    ------
    ArgumentError
        If `share` is not above 0 and at most 1.
    """

    share: float = 0.01
    values: LeafCodec = Float(32)
    mask: MaskCode = CheapestMask()


@dataclass(frozen=True)
class Signs:
    """Send the sign of every entry, and one magnitude, the mean of their magnitudes."""

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the magnitude, and one bit for each sign."""
        flat = entries(leaf, "Signs")
        if len(flat):
            out.f32(float(np.abs(flat).mean(dtype=np.float64)))
            out.raw(np.packbits(flat < 0).tobytes())

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        count = math.prod(shape)
        if not count:
            return torch.empty(shape)
        magnitude = source.f32(SMALLEST, LARGEST)
        raw = np.frombuffer(source.raw(-(-count // 8)), np.uint8)
        negative = np.unpackbits(raw, count=count)
        return tensor(np.where(negative, -magnitude, magnitude), shape)


@checked_class(share=SHARE)
@dataclass(frozen=True)
class Ternary(_Largest):
    """Keep the largest entries by magnitude and send their signs and one magnitude mu, the mean of
    their magnitudes: sparse ternary compression (Sattler et al. 2019, STC, algorithm 1).

    With k entries kept, ``||x - Q(x)||**2 = ||x||**2 - k mu**2``: biased, and a contraction by
    ``1 - d`` with ``d = k mu**2 / ||x||**2 >= (k / n**2) (||x||_1 / ||x||_2)**2 >= k / n**2``, as
    error feedback requires. A tensor that is already ternary, with at most k non-zero entries, is
    exact.

    Parameters
    ----------
    share
        p of the paper: ``k = ceil(share * n)``, at most the number of non-zero entries. Of equal
        magnitudes the earlier ones are kept.
    mask
        Code of the positions. The paper uses the Golomb code of the gaps.

    Raises
    ------
    ArgumentError
        If `share` is not above 0 and at most 1.
    """

    share: float = 0.01
    mask: MaskCode = RunMask()
    values: LeafCodec = field(default=Signs(), init=False, repr=False)


@dataclass(frozen=True)
class Sparse(_Kept):
    """Keep the non-zero entries.

    Parameters
    ----------
    values
        Codec of the non-zero entries, a vector in row order. Default: exact, but for the sign of a
        negative zero; a ternary tensor costs its positions and about one bit per sign.
    mask
        Code of the positions.
    """

    values: LeafCodec = Exact()
    mask: MaskCode = CheapestMask()

    def _choose(self, rows: Singles) -> Mask:
        return np.asarray(rows != 0)


@dataclass(frozen=True)
class Kernels(_Kept):
    """Keep the kernels that are not all zeros; AnycostFL (2). The codec of the leaves that
    `bayesfed.compress.flexible.Flexible` has thresholded.

    A kernel is ``[o, i]`` of a weight ``(out, in, ...)``. Vectors and scalars (biases) are kept
    whole. Positions cost one bit per kernel rather than per entry.

    Parameters
    ----------
    values
        Codec of the kept kernels, as a matrix with one kernel per row, and of leaves that are kept
        whole.
    mask
        Code of the positions of the kept kernels.
    """

    values: LeafCodec
    mask: MaskCode = CheapestMask()

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the positions of the kept kernels, then their values."""
        if leaf.ndim < 2:
            self.values.write(leaf, key.child("values"), out)
        else:
            super().write(leaf, key, out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        if len(shape) < 2:
            return self.values.read(source, shape, key.child("values"))
        return super().read(source, shape, key)

    def _choose(self, rows: Singles) -> Mask:
        return np.asarray(rows.any(1))

    def _rows(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return as_kernels(shape)

    def _layout(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return shape[0], shape[1]


def as_kernels(shape: tuple[int, ...]) -> tuple[int, int]:
    """Return the shape of a leaf with one kernel per row; each entry of a vector or scalar is a
    kernel.
    """
    total = math.prod(shape[:2])
    return total, math.prod(shape) // max(total, 1)
