"""Linear and convolution layers whose weight matrix is a point ``u s v^T`` of fixed rank: two thin products, and thin gradients.

Parameters are u ``(M, R)``, s ``(R, R)``, v ``(N, R)`` and the bias. A convolution's matrix is ``(out, in * kh * kw)``, one row an output channel:
v convolves into R channels, and ``u s`` is a 1 x 1 convolution of these.

The gradient of u, s and v as they stand is not what descent on the manifold needs: that reads ``G V`` and ``G^T U`` of the weight's gradient G.
A layer gives both through a *probe*, a tangent ``up v^T + u vp^T`` that is added to its weight. The probe lives in two buffers, up ``(M, R)``
and vp ``(N, R)``, which are None unless `torch.func.functional_call` puts tensors there for the length of a call; with zeros that require
gradients, the weight is what it was, and backward leaves ``G V`` in ``up.grad`` and ``G^T U`` in ``vp.grad``. The two products become twice as
wide, ``[u s + up, u] [v, vp]^T``, and no ``M x N`` array is formed on the way. Without a probe nothing of this is computed or stored.
`bayesfed.models.low_rank.fixed_rank_trees` has the whole step.

The layers are deterministic PyroModules: no sample site, until somebody assigns a `PyroSample`.

References
----------
FedRLR, the federated Riemannian low-rank compression scheme with over-the-air aggregation: the projection (47), here without its dense gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from bayesfed.geometry import FixedRank
from bayesfed.models.low_rank.thin_layers import Convolving, PaddingMode, Sizes, ThinLayer


class FixedRankLayer(ThinLayer):
    """What the layers share: the point and the bias as parameters, and the probe.

    Parameters
    ----------
    point
        The weight matrix ``(M, N)``, copied.
    bias
        ``(M,)``, copied; None: no bias.

    Raises
    ------
    ArgumentError
        If the bias does not fit the point.
    """

    up: Tensor | None
    vp: Tensor | None

    def __init__(self, point: FixedRank, bias: Tensor | None = None) -> None:
        super().__init__(point.shape[0], bias, u=point.u, s=point.s, v=point.v)
        # None rather than zeros: running_statistics takes every floating-point buffer for batch norm's, and zeros would store the point twice.
        self.register_buffer("up", None, persistent=False)
        self.register_buffer("vp", None, persistent=False)

    @property
    def point(self) -> FixedRank:
        """The weight matrix, its factors as they are."""
        return FixedRank(self.u, self.s, self.v)

    def thin(self) -> tuple[Tensor, Tensor]:
        """Return the weight, probe included, as ``(M, k)`` and ``(N, k)``, whose product it is: k is R, or 2R with a probe."""
        left: Tensor = self.u @ self.s
        right: Tensor = self.v
        if self.up is not None:
            left = left + self.up
        if self.vp is not None:
            left, right = torch.cat([left, self.u], 1), torch.cat([right, self.vp], 1)
        return left, right


class FixedRankLinear(FixedRankLayer):
    """A linear layer ``x X^T + b`` with X of fixed rank.

    Parameters
    ----------
    point
        X ``(M, N)``: N features in, M out. From nothing, `random_point`.
    bias
        ``(M,)``; None: no bias.

    Raises
    ------
    ArgumentError
        If the bias does not fit the point.
    """

    def __init__(self, point: FixedRank, bias: Tensor | None = None) -> None:
        super().__init__(point, bias)
        self.out_features, self.in_features = point.shape
        self.rank = point.rank

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., N)`` to ``(..., M)``."""
        left, right = self.thin()
        return functional.linear(x @ right, left, self.bias)

    def extra_repr(self) -> str:
        """Show sizes and rank."""
        return f"in_features={self.in_features}, out_features={self.out_features}, rank={self.rank}, bias={self.bias is not None}"


class FixedRankConv(Convolving, FixedRankLayer):
    """A convolution of 1, 2 or 3 dimensions whose matrix is of fixed rank; use one of its three classes.

    Parameters
    ----------
    point
        ``(M, N)``: M channels out, and N the channels in times the entries of a kernel.
    kernel_size
        One number for all dimensions, or one each.
    bias
        ``(M,)``; None: no bias.
    stride, dilation
        As the kernel's size.
    padding
        As the kernel's size, or "valid" or "same", the latter at stride 1.
    padding_mode
        What is outside the image.

    Raises
    ------
    ArgumentError
        If a setting is outside what PyTorch's convolutions take, N is not a multiple of the kernel's entries, or the bias does not fit.
    """

    def __init__(
        self,
        point: FixedRank,
        kernel_size: Sizes,
        bias: Tensor | None = None,
        *,
        stride: Sizes = 1,
        padding: Sizes | str = 0,
        dilation: Sizes = 1,
        padding_mode: PaddingMode = "zeros",
    ) -> None:
        super().__init__(point, bias)
        self._configure(kernel_size, stride, padding, dilation, padding_mode)
        self._channels(*point.shape, tail=0)
        self.rank = point.rank

    def forward(self, x: Tensor) -> Tensor:
        """Map images ``(..., in, *size)`` to ``(..., out, *size)``, with one batch dimension or none."""
        return self._convolved(x, *self.thin(), self.bias, tail=0)

    def extra_repr(self) -> str:
        """Show sizes, rank and what is not the default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, rank={self.rank}, stride={self.stride}"
        text += f", padding={self.padding!r}, dilation={self.dilation}"
        return text + f", padding_mode={self.padding_mode!r}, bias={self.bias is not None}"


class FixedRankConv1d(FixedRankConv):
    """`FixedRankConv` of ``(B, in, length)``."""

    dimensions = 1


class FixedRankConv2d(FixedRankConv):
    """`FixedRankConv` of ``(B, in, height, width)``."""

    dimensions = 2


class FixedRankConv3d(FixedRankConv):
    """`FixedRankConv` of ``(B, in, depth, height, width)``."""

    dimensions = 3
