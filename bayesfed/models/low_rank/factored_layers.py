"""Linear and convolution layers with a weight ``W = U V^T`` whose two factors are trained directly:
FedHM's low-rank layers.

U is ``(M, R)`` and V ``(N, R)``. Rows of the matrix are outputs and columns are inputs, as
everywhere in the package (FedHM writes the transpose; its U is V here). A kernel
``(out, in, kh, kw)`` is laid out as a matrix in one of two ways:

============  ===================  ===================  ============================================
split         matrix ``(M, N)``    first convolution    second convolution
                                                        numbers, kh = kw
============  ===================  ===================  ============================================
"spatial"     ``(out kw, in kh)``  ``(R, in, kh, 1)``   ``(out, R, 1, kw)``
                                                        ``R k (in + out)``
"pufferfish"  ``(out, in kh kw)``  ``(R, in, kh, kw)``  ``(out, R, 1, 1)``
                                                        ``R (in k^2 + out)``
============  ===================  ===================  ============================================

The bias belongs to the second convolution. If G is the gradient of the matrix, autograd gives
``G V`` for U and ``G^T U`` for V. Columns that are zero in both factors therefore stay zero, and
padding the factors with zero columns does not change training. A layer runs at whatever rank its
tensors have. There are no buffers and no sample sites.

References
----------
FedHM (Yao et al.), sections 2.2 and B.1, Table 1, equation (10). Khodak et al. (2021),
Initialization and regularization of factorized neural layers. Pufferfish (Wang, Agarwal and
Papailiopoulos, 2021).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from torch import Tensor
from torch.nn import functional

from bayesfed.errors import ArgumentError
from bayesfed.geometry.thin import check_matrices
from bayesfed.models.low_rank.thin_layers import Convolving, PaddingMode, Sizes, ThinLayer

Split = Literal["spatial", "pufferfish"]


@dataclass(frozen=True)
class Unrolling:
    """The layout of a weight as a matrix. The weight of a linear layer is its own matrix.

    Parameters
    ----------
    shape
        Shape of the weight: ``(out, in)`` or ``(out, in, kh, kw)``.
    split
        "spatial" or "pufferfish"; for a linear layer both are the same.

    Raises
    ------
    ArgumentError
        If the shape is neither of the two, or the split is unknown.
    """

    shape: tuple[int, ...]
    split: Split = "spatial"

    def __post_init__(self) -> None:
        if len(self.shape) not in (2, 4) or not prod(self.shape):
            raise ArgumentError(
                "Unrolling.shape",
                "(out, in) or (out, in, kh, kw)",
                tuple(self.shape),
                "weight.shape",
            )
        if self.split not in ("spatial", "pufferfish"):
            raise ArgumentError(
                "Unrolling.split", "'spatial' or 'pufferfish'", repr(self.split), "'spatial'"
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

    def matrix(self, weight: Tensor) -> Tensor:
        """Return the matrix ``(M, N)`` of a weight."""
        return (weight.permute(0, 3, 1, 2) if self.tail else weight).reshape(self.size)

    def weight(self, matrix: Tensor) -> Tensor:
        """Return the weight of a matrix ``(M, N)``, contiguous."""
        if not self.tail:
            return matrix.reshape(self.shape)
        out, channels, height, width = self.shape
        return matrix.reshape(out, width, channels, height).permute(0, 2, 3, 1).contiguous()


class FactoredLayer(ThinLayer):
    """Base class of factored layers: two factors and a bias as parameters.

    Parameters
    ----------
    u, v
        ``(M, R)`` and ``(N, R)``, copied. R may be more than M or N.
    outputs
        Number of entries of the bias.
    bias
        ``(outputs,)``, copied. None for no bias.

    Raises
    ------
    ArgumentError
        If the factors are not two float32 or two float64 matrices with the same number of columns,
        at least 1, or the bias does not fit.
    """

    def __init__(self, u: Tensor, v: Tensor, outputs: int, bias: Tensor | None = None) -> None:
        where = type(self).__name__
        check_matrices(where, u=u, v=v)
        if u.shape[1] != v.shape[1] or not u.numel() or not v.numel():
            actual = f"{tuple(u.shape)} and {tuple(v.shape)}"
            raise ArgumentError(
                f"{where}, u and v",
                "shapes (M, R) and (N, R)",
                actual,
                "V with its columns, not V^T",
            )
        super().__init__(outputs, bias, u=u, v=v)

    @property
    def rank(self) -> int:
        """Number of columns that the factors have now."""
        return int(self.u.shape[1])


class FactoredLinear(FactoredLayer):
    """A linear layer ``x (U V^T)^T + b``.

    Parameters
    ----------
    u, v
        ``(out, R)`` and ``(in, R)``, copied.
    bias
        ``(out,)``, copied. None for no bias.

    Raises
    ------
    ArgumentError
        As `FactoredLayer`.
    """

    def __init__(self, u: Tensor, v: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(u, v, len(u), bias)
        self.out_features, self.in_features = len(u), len(v)

    @property
    def unrolling(self) -> Unrolling:
        """The weight's layout."""
        return Unrolling((self.out_features, self.in_features))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in)`` to ``(..., out)``."""
        return functional.linear(x @ self.v, self.u, self.bias)

    def extra_repr(self) -> str:
        """Show sizes and rank."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"rank={self.rank}, bias={self.bias is not None}"
        )


class FactoredConv2d(Convolving, FactoredLayer):
    """A two-dimensional convolution as two thin ones.

    Parameters
    ----------
    u, v
        ``(M, R)`` and ``(N, R)``, factors of the matrix of this split, copied.
    kernel_size
        One number for both dimensions, or one each.
    bias
        ``(out,)``, copied. None for no bias.
    stride, dilation
        One number for both dimensions, or one each.
    padding
        One number for both dimensions, or one each, or "valid", or "same" (at stride 1 only).
    padding_mode
        Values outside the image: "zeros", "reflect", "replicate" or "circular".
    split
        Layout of the matrix: "spatial" (FedHM) or "pufferfish".

    Raises
    ------
    ArgumentError
        If PyTorch's convolutions do not accept a setting, the kernel's entries do not divide M and
        N, or as `FactoredLayer`.
    """

    dimensions = 2

    def __init__(
        self,
        u: Tensor,
        v: Tensor,
        kernel_size: Sizes,
        bias: Tensor | None = None,
        *,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        padding_mode: PaddingMode = "zeros",
        split: Split = "spatial",
    ) -> None:
        if split not in ("spatial", "pufferfish"):
            raise self._complaint("split", "'spatial' or 'pufferfish'", repr(split), "'spatial'")
        width = self._sizes("kernel_size", kernel_size, 1)[-1]
        super().__init__(u, v, len(u) // (width if split == "spatial" else 1), bias)
        self._configure(kernel_size, stride, padding, dilation, padding_mode)
        self._channels(len(u), len(v), tail=int(split == "spatial"))
        self.split: Split = split

    @property
    def unrolling(self) -> Unrolling:
        """The weight's layout."""
        return Unrolling((self.out_channels, self.in_channels, *self.kernel_size), self.split)

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(..., in, H, W)`` to ``(..., out, H', W')``, with one batch dimension or
        none.
        """
        return self._convolved(x, self.u, self.v, self.bias, self.unrolling.tail)

    def extra_repr(self) -> str:
        """Show sizes, rank and settings."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"rank={self.rank}, split={self.split!r}, stride={self.stride}"
        )
        text += f", padding={self.padding!r}, dilation={self.dilation}"
        return text + f", padding_mode={self.padding_mode!r}, bias={self.bias is not None}"
