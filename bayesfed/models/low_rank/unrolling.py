"""Weights as matrices, and a convolution as two thin ones.

Rows of a matrix are outputs and columns are inputs, as everywhere in the package (FedHM writes the
transpose). A kernel ``(out, in, kh, kw)`` is laid out as a matrix in one of two ways:

============  ===================  ===================  ============================================
split         matrix ``(M, N)``    first convolution    second convolution
                                                        numbers, kh = kw
============  ===================  ===================  ============================================
"spatial"     ``(out kw, in kh)``  ``(R, in, kh, 1)``   ``(out, R, 1, kw)``
                                                        ``R k (in + out)``
"pufferfish"  ``(out, in kh kw)``  ``(R, in, kh, kw)``  ``(out, R, 1, 1)``
                                                        ``R (in k^2 + out)``
============  ===================  ===================  ============================================

The matrix is ``L R^T`` with L ``(M, k)`` and R ``(N, k)``: R convolves into k channels, and L out
of these. The bias belongs to the second convolution.

References
----------
FedHM (Yao et al.), sections 2.2 and B.1, Table 1. Pufferfish (Wang, Agarwal and Papailiopoulos,
2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from torch import Tensor

from bayesfed.errors import ArgumentError
from bayesfed.errors.checks import checked_class

Split = Literal["spatial", "pufferfish"]


@checked_class()
@dataclass(frozen=True)
class Unrolling:
    """The layout of a weight as a matrix. The weight of a linear layer is its own matrix.

    Parameters
    ----------
    shape
        Shape of the weight: ``(out, in)`` or ``(out, in, *kernel)``.
    split
        "spatial" or "pufferfish"; they differ for kernels of two dimensions.

    Raises
    ------
    ArgumentError
        If the shape is no such shape, or the split is unknown.
    """

    shape: tuple[int, ...]
    split: Split = "spatial"

    def __post_init__(self) -> None:
        if len(self.shape) < 2 or not prod(self.shape):
            raise ArgumentError(
                "Unrolling.shape",
                "(out, in) or (out, in, *kernel)",
                tuple(self.shape),
                "weight.shape",
            )

    @property
    def tail(self) -> int:
        """Number of dimensions of the kernel that are combined with the outputs."""
        return int(len(self.shape) == 4 and self.split == "spatial")

    @property
    def size(self) -> tuple[int, int]:
        """M and N."""
        rows = self.shape[0] * (self.shape[3] if self.tail else 1)
        return rows, prod(self.shape) // rows

    @property
    def full(self) -> int:
        """The full rank, ``min(M, N)``."""
        return min(self.size)

    @property
    def halves(self) -> tuple[range, range]:
        """Dimensions of the kernel that belong to the first and to the second convolution."""
        dimensions = len(self.shape) - 2
        return range(dimensions - self.tail), range(dimensions - self.tail, dimensions)

    def matrix(self, weight: Tensor) -> Tensor:
        """Return the matrix ``(M, N)`` of a weight."""
        return (weight.permute(0, 3, 1, 2) if self.tail else weight).reshape(self.size)

    def weight(self, matrix: Tensor) -> Tensor:
        """Return the weight of a matrix ``(M, N)``, contiguous."""
        if not self.tail:
            return matrix.reshape(self.shape)
        out, channels, height, width = self.shape
        return matrix.reshape(out, width, channels, height).permute(0, 2, 3, 1).contiguous()

    def kernels(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return the kernels ``(k, in, *first, 1...)`` and ``(out, k, 1..., *last)`` of the two
        convolutions in place of ``left right^T``.
        """
        kernel, cut, rank = self.shape[2:], len(self.halves[0]), right.shape[1]
        into = right.mT.reshape(rank, -1, *kernel[:cut], *(1,) * self.tail)
        out = left.reshape(-1, prod(kernel[cut:]), rank).mT
        return into, out.reshape(-1, rank, *(1,) * cut, *kernel[cut:])
