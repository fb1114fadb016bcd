"""Sparsification: keep the largest entries (`TopK`) or kernels (`KernelWise`), and send them with
another codec.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from bayesfed.compress.buffer import Reader, Writer
from bayesfed.compress.leaf import LeafCodec, Mask, MaskCode
from bayesfed.compress.masks.cheapest import CheapestMask
from bayesfed.compress.quantisers.entries import (
    Reals,
    Singles,
    as_matrix,
    check_share,
    energy,
    entries,
    largest,
    peak,
    read_positions,
    share_of,
    tensor,
    write_positions,
)
from bayesfed.compress.quantisers.floats import Float
from bayesfed.errors import ArgumentError, WireError
from bayesfed.keys import Key

Dense = Literal["row", "entry"]


@dataclass(frozen=True)
class TopK:
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

    def __post_init__(self) -> None:
        check_share("TopK", self.share)

    @property
    def unbiased(self) -> bool:
        """Whether everything is kept and the inner codec is unbiased."""
        return self.share == 1 and self.values.unbiased

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the positions, then the kept entries."""
        flat = entries(leaf, "TopK")
        if len(flat):
            chosen = self._choose(flat)
            write_positions(chosen, as_matrix(tuple(leaf.shape)), self.mask, out)
            self.values.write(torch.from_numpy(flat[chosen]), key.child("values"), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor."""
        dense = np.zeros(math.prod(shape), np.float32)
        if len(dense):
            chosen = read_positions(source, as_matrix(shape), self.mask)
            dense[chosen] = self.values.read(
                source, (int(chosen.sum()),), key.child("values")
            ).numpy()
        return tensor(dense, shape)

    def bound(self, leaf: Tensor) -> float:
        """Return the largest dropped entry, or the bound of the inner codec if that is larger."""
        flat = entries(leaf, "TopK")
        chosen = self._choose(flat)
        return max(peak(flat[~chosen]), self.values.bound(torch.from_numpy(flat[chosen])))

    def variance(self, leaf: Tensor) -> float:
        """Return the energy of the dropped entries, at most ``(1 - share) ||x||**2``, plus the
        variance of the inner codec.
        """
        flat = entries(leaf, "TopK")
        chosen = self._choose(flat)
        return energy(flat[~chosen]) + self.values.variance(torch.from_numpy(flat[chosen]))

    def _choose(self, flat: Singles) -> Mask:
        count = min(share_of(self.share, len(flat)), int(np.count_nonzero(flat)))
        return largest(np.abs(flat), count) if count else np.zeros(len(flat), np.bool_)


@dataclass(frozen=True)
class KernelWise:
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

    def __post_init__(self) -> None:
        if self.share is not None:
            check_share("KernelWise", self.share)
        if self.dense not in get_args(Dense):
            raise ArgumentError(
                "KernelWise", "dense 'row' or 'entry'", repr(self.dense), "KernelWise(0.1)"
            )

    @property
    def unbiased(self) -> bool:
        """Whether everything is kept and the inner codec is unbiased."""
        return self.share in {1, None} and self.values.unbiased

    def write(self, leaf: Tensor, key: Key, out: Writer) -> None:
        """Append the positions of the kept kernels, then their values."""
        if leaf.ndim < 2:
            self.values.write(leaf, key.child("values"), out)
            return
        kernels = self._kernels(leaf)
        if kernels.size:
            chosen = self._choose(kernels)
            write_positions(chosen, _layout(tuple(leaf.shape), self.dense), self.mask, out)
            self.values.write(torch.from_numpy(kernels[chosen]), key.child("values"), out)

    def read(self, source: Reader, shape: tuple[int, ...], key: Key) -> Tensor:
        """Read the tensor; refuse a number of kernels that does not fit the share."""
        if len(shape) < 2:
            return self.values.read(source, shape, key.child("values"))
        total = math.prod(_layout(shape, self.dense))
        dense = np.zeros((total, math.prod(shape) // max(total, 1)), np.float32)
        if dense.size:
            chosen = read_positions(source, _layout(shape, self.dense), self.mask)
            count = int(chosen.sum())
            if self.share is not None and count != (expected := share_of(self.share, total)):
                raise WireError(
                    "KernelWise", f"{expected} kernels", count, "the share it was encoded with"
                )
            dense[chosen] = self.values.read(
                source, (count, dense.shape[1]), key.child("values")
            ).numpy()
        return tensor(dense, shape)

    def bound(self, leaf: Tensor) -> float:
        """Return the largest dropped entry, or the bound of the inner codec if that is larger."""
        if leaf.ndim < 2:
            return self.values.bound(leaf)
        kernels = self._kernels(leaf)
        chosen = self._choose(kernels)
        return max(peak(kernels[~chosen]), self.values.bound(torch.from_numpy(kernels[chosen])))

    def variance(self, leaf: Tensor) -> float:
        """Return the energy of the dropped kernels plus the variance of the inner codec."""
        if leaf.ndim < 2:
            return self.values.variance(leaf)
        kernels = self._kernels(leaf)
        chosen = self._choose(kernels)
        return energy(kernels[~chosen].reshape(-1)) + self.values.variance(
            torch.from_numpy(kernels[chosen])
        )

    def _kernels(self, leaf: Tensor) -> Singles:
        return as_kernels(leaf, self.dense, "KernelWise")

    def _choose(self, kernels: Singles) -> Mask:
        norms = squared_norms(kernels)
        return (
            norms > 0 if self.share is None else largest(norms, share_of(self.share, len(kernels)))
        )


def as_kernels(leaf: Tensor, dense: Dense, where: str) -> Singles:
    """Return a leaf with one kernel per row; each entry of a vector or scalar is a kernel. The
    array may share the leaf's memory.
    """
    shape = tuple(leaf.shape)
    total = math.prod(_layout(shape, dense)) if len(shape) > 1 else leaf.numel()
    return entries(leaf, where).reshape(total, leaf.numel() // max(total, 1))


def squared_norms(kernels: Singles) -> Reals:
    """Return the squared Euclidean norm of each row in float64, where no norm of float32 numbers
    overflows or underflows to 0.
    """
    wide = kernels.astype(np.float64)
    return np.asarray(np.einsum("ij,ij->i", wide, wide), np.float64)


def _layout(shape: tuple[int, ...], dense: Dense) -> tuple[int, int]:
    return (shape[0], shape[1]) if len(shape) > 2 or dense == "entry" else (1, shape[0])
