"""Sparsification: keep the largest entries (`TopK`), the largest kernels (`KernelWise`) or the
non-zero entries (`Sparse`), and send them with another codec.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.leaf import LeafCodec, Mask, MaskCode, Reader, Writer
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.quantisers.entries import (
    Reals,
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
from bayesfed.errors import WireError
from bayesfed.errors.checks import SHARE, checked_class, one_of
from bayesfed.keys import Key

Dense = Literal["row", "entry"]


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
            count = int(chosen.sum())
            if (expected := self._expected(len(chosen))) not in {None, count}:
                raise WireError(
                    type(self).__name__,
                    f"{expected} kernels",
                    count,
                    "the share it was encoded with",
                )
            form = (count, *dense.shape[1:])
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

    def _expected(self, total: int) -> int | None:
        """Return how many of all rows a message must keep; None if it may be any number."""
        return None

    def _parted(self, leaf: Tensor) -> tuple[Singles, Mask]:
        rows = entries(leaf, type(self).__name__).reshape(self._rows(tuple(leaf.shape)))
        return rows, self._choose(rows)


@checked_class(share=SHARE)
@dataclass(frozen=True)
class TopK(_Kept):
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

    def _choose(self, rows: Singles) -> Mask:
        count = min(share_of(self.share, len(rows)), int(np.count_nonzero(rows)))
        return largest(np.abs(rows), count) if count else np.zeros(len(rows), np.bool_)


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


@checked_class(
    share=replace(SHARE, fits=lambda share: share is None or SHARE.fits(share)),
    dense=one_of(Dense, "'row'"),
)
@dataclass(frozen=True)
class KernelWise(_Kept):
    """Keep the kernels of largest Euclidean norm and set the others to zero. AnycostFL (2).

    A kernel is ``[o, i]`` of the weight ``(out, in, ...)`` of a convolution; for matrices see
    `dense`. Vectors and scalars (biases) are kept whole. Positions cost one bit per kernel rather
    than per entry.

    Parameters
    ----------
    share
        rho of section III-C, the share of kernels to keep: exactly ``ceil(rho K)`` of K kernels; of
        equal norms the earlier ones. None: every kernel that is not all zeros, so that only
        `values` loses information.
    values
        Codec of the kept kernels, as a matrix with one kernel per row, and of leaves that are kept
        whole.
    mask
        Code of the positions of the kept kernels.
    dense
        Kernels of a matrix: "row", the weights of one output; or "entry", each ``[o, i]``, as in a
        1 x 1 convolution.

    Raises
    ------
    ArgumentError
        If `share` is not above 0 and at most 1, or `dense` is neither of these.
    """

    share: float | None = 0.1
    values: LeafCodec = Float(32)
    mask: MaskCode = CheapestMask()
    dense: Dense = "row"

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the positions of the kept kernels, then their values."""
        if leaf.ndim < 2:
            self.values.write(leaf, key.child("values"), out)
        else:
            super().write(leaf, key, out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor; refuse a number of kernels that does not fit the share."""
        if len(shape) < 2:
            return self.values.read(source, shape, key.child("values"))
        return super().read(source, shape, key)

    def _choose(self, rows: Singles) -> Mask:
        norms = squared_norms(rows)
        return norms > 0 if self.share is None else largest(norms, share_of(self.share, len(rows)))

    def _rows(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return as_rows(shape, self.dense)

    def _layout(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return _layout(shape, self.dense)

    def _expected(self, total: int) -> int | None:
        return None if self.share is None else share_of(self.share, total)


def as_rows(shape: tuple[int, ...], dense: Dense) -> tuple[int, int]:
    """Return the shape of a leaf with one kernel per row; each entry of a vector or scalar is a
    kernel.
    """
    size = math.prod(shape)
    total = math.prod(_layout(shape, dense)) if len(shape) > 1 else size
    return total, size // max(total, 1)


def squared_norms(kernels: Singles) -> Reals:
    """Return the squared Euclidean norm of each row in float64, where no norm of float32 numbers
    overflows or underflows to 0.
    """
    wide = kernels.astype(np.float64)
    return np.asarray(np.einsum("ij,ij->i", wide, wide), np.float64)


def _layout(shape: tuple[int, ...], dense: Dense) -> tuple[int, int]:
    return (shape[0], shape[1]) if len(shape) > 2 or dense == "entry" else (1, shape[0])
